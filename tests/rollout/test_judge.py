"""What became of an execution, from how its harness ended and what it had asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gyre.elastic.process.supervised import Report
from gyre.proxy.executions import ExecutionOutcome as Outcome
from gyre.trainer.rollout.judge import judge, last_words
from gyre.trainer.rollout.record import Calls
from gyre.trainer.rollout.watch import Ending

WELL, BAD = Report(code=0), Report(code=3)
KILLED, ODD = Report(code=None, signal=9), Report(code=None, signal=99)
LOST = Report(code=None, lost=True)
UNANSWERED = "none of its 2 calls was answered: busy; words"
SPENT = Calls(5, 4, "no more", limit="its limit of 4 calls")
GONE, CUT = Calls(5, 4, "none is there", lost=True), Calls(5, 5, cut=True)
NONE, SOME, REFUSED = Calls(0, 0), Calls(5, 4, "late"), Calls(2, 0, "busy")


@pytest.mark.parametrize(
    ("ending", "report", "calls", "outcome", "scored", "reason"),
    [
        (Ending.EXITED, WELL, SOME, Outcome.COMPLETED, True, ""),
        (Ending.EXITED, WELL, None, Outcome.COMPLETED, True, ""),
        (Ending.EXITED, BAD, SOME, Outcome.FAILED, True, "exit code 3; words"),
        (Ending.EXITED, KILLED, SOME, Outcome.FAILED, True, "it was ended by SIGKILL; words"),
        (Ending.EXITED, ODD, None, Outcome.FAILED, True, "it was ended by signal 99; words"),
        (Ending.EXITED, LOST, SOME, Outcome.FAILED, True, "its supervisor was killed; words"),
        (Ending.EXITED, WELL, NONE, Outcome.FAILED, False, "it made no call; words"),
        (Ending.EXITED, BAD, NONE, Outcome.FAILED, False, "it made no call; exit code 3; words"),
        (Ending.EXITED, WELL, REFUSED, Outcome.FAILED, False, UNANSWERED),
        (Ending.EXITED, WELL, GONE, Outcome.FAILED, True, "its last call found no engine: none is there"),
        (Ending.EXITED, WELL, CUT, Outcome.COMPLETED, True, ""),
        (Ending.TIMED_OUT, BAD, SOME, Outcome.TIMED_OUT, True, "not done after LIMIT"),
        (Ending.TIMED_OUT, BAD, REFUSED, Outcome.TIMED_OUT, True, "not done after LIMIT"),
        (Ending.TIMED_OUT, BAD, NONE, Outcome.FAILED, False, "it made no call within LIMIT"),
        (Ending.TOO_LARGE, BAD, SOME, Outcome.FAILED, True, "its files took LIMIT"),
        (Ending.TOO_MANY, BAD, SOME, Outcome.FAILED, True, "it had more than LIMIT"),
        (Ending.EXITED, WELL, SPENT, Outcome.TIMED_OUT, True, "its limit of 4 calls"),
        (Ending.EXITED, BAD, SPENT, Outcome.TIMED_OUT, True, "its limit of 4 calls"),
        (Ending.INTERRUPTED, BAD, SPENT, Outcome.RUN_TIMEOUT, False, "the run was interrupted"),
        (Ending.INTERRUPTED, BAD, SOME, Outcome.RUN_TIMEOUT, False, "the run was interrupted"),
    ],
)  # fmt: skip
def test_every_ending_has_its_outcome(
    ending: Ending, report: Report, calls: Calls | None, outcome: Outcome, scored: bool, reason: str
) -> None:
    judged = judge(ending, report, calls, "LIMIT", "words")
    assert (judged.outcome, judged.is_scored, judged.reason) == (outcome, scored, reason)
    assert judged.event == ("timed_out" if outcome is Outcome.TIMED_OUT else "ended")


def test_last_words_are_the_last_line_that_can_be_read(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"\n \n")
    second.write_bytes(b"x" * 9000 + b"\n\x1b[31mred \xff\x1b[0m\n\n")
    assert last_words(tmp_path / "none", first, second) == "[31mred \ufffd[0m"
    second.write_text("y" * 9000)
    assert last_words(second) == "y" * 200
    assert last_words(first) == ""


def test_of_a_pipe_or_a_link_in_their_place_there_are_no_last_words(tmp_path: Path) -> None:
    pipe, link, plain = tmp_path / "pipe", tmp_path / "link", tmp_path / "plain"
    os.mkfifo(pipe)
    plain.write_text("said\n")
    link.symlink_to(plain)
    assert last_words(pipe, link) == ""
    assert last_words(pipe, plain) == "said"
