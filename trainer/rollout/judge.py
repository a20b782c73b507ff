"""What became of an execution, from how its harness ended and what it had asked. Pure, but for last words."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

from gyre.elastic.process.left import read_end
from gyre.elastic.process.supervised import Report
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.trainer.rollout.record import Calls
from gyre.trainer.rollout.secret import NO_SECRETS, Secrets
from gyre.trainer.rollout.watch import Ending

_TAIL = 4096
_WORDS = 200


@dataclass(frozen=True)
class Judgement:
    """How an execution ended."""

    outcome: ExecutionOutcome
    reason: str = ""
    ran: bool = True
    """Whether the harness worked with the engine at all: only then its work says something."""

    @property
    def event(self) -> ExecutionEvent:
        timed_out = self.outcome == ExecutionOutcome.TIMED_OUT
        return ExecutionEvent.TIMED_OUT if timed_out else ExecutionEvent.ENDED

    @property
    def is_scored(self) -> bool:
        return self.ran and self.outcome != ExecutionOutcome.RUN_TIMEOUT


def judge(ending: Ending, report: Report, calls: Calls | None, limit: str, words: str) -> Judgement:
    """`limit` says which one was hit, `words` are the harness's last."""
    match ending:
        case Ending.INTERRUPTED:
            return Judgement(ExecutionOutcome.RUN_TIMEOUT, "the run was interrupted")
        case Ending.TIMED_OUT if calls and not calls.made:
            return Judgement(ExecutionOutcome.FAILED, f"it made no call within {limit}", ran=False)
        case Ending.TIMED_OUT:
            return Judgement(ExecutionOutcome.TIMED_OUT, f"not done after {limit}")
        case Ending.TOO_LARGE:
            return Judgement(ExecutionOutcome.FAILED, f"its files took {limit}")
        case Ending.TOO_MANY:
            return Judgement(ExecutionOutcome.FAILED, f"it had more than {limit}")
    if calls and calls.limit and calls.answered:
        # However it takes the refusal: what it had done by then is its work.
        return Judgement(ExecutionOutcome.TIMED_OUT, calls.limit)
    how = _how(report)
    if calls and not calls.answered:
        said = (
            f"none of its {calls.made} calls was answered: {calls.error}" if calls.made else "it made no call"
        )
        return Judgement(ExecutionOutcome.FAILED, _joined(said, how, words), ran=False)
    if how:
        return Judgement(ExecutionOutcome.FAILED, _joined(how, words))
    if calls and calls.lost:
        # It made the best of it; what that is worth says nothing of the policy.
        return Judgement(ExecutionOutcome.FAILED, f"its last call found no engine: {calls.error}")
    return Judgement(ExecutionOutcome.COMPLETED)


def _how(report: Report) -> str:
    """What is wrong with its end; empty when nothing is."""
    if report.lost:
        return "its supervisor was killed"
    if report.signal is not None:
        return f"it was ended by {_name(report.signal)}"
    return f"exit code {report.code}" if report.code else ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def last_words(*files: Path, secrets: Secrets = NO_SECRETS) -> str:
    """The last line of the first of `files` that has one, without what is secret."""
    for path in files:
        try:
            text = last_line(_tail(path, secrets))
        except OSError:
            continue
        if text:
            return secrets.hide(text)[:_WORDS]
    return ""


def last_line(text: str) -> str:
    """The last one that has something to read."""
    lines = ("".join(c for c in line if c.isprintable()).strip() for line in reversed(text.split("\n")))
    return next((line for line in lines if line), "")


def _tail(path: Path, secrets: Secrets) -> str:
    """Its end. Where the beginning is left out, no half of a secret stands at the cut."""
    cut = secrets.longest + 3  # letters, and what is left of a cut one
    most = _TAIL + 4 * cut
    # One more tells whether that is all of it.
    data = read_end(path, most + 1) or b""
    text = secrets.hide(data[-most:].decode(errors="replace"))
    return text[cut:] if len(data) > most else text
