"""What a run says of its executions, and learns of them: to the proxy, or into its log when that is gone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.allowance import STATUS, Allowance, limit_in
from gyre.proxy.calls import ExecutionRecord, Outcome, Wire
from gyre.proxy.errors import LogError, UpstreamError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.proxy.log.append import append_events
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.settings import Pin
from gyre.proxy.tally import error_text, is_lost
from gyre.trainer.rollout.control import Control, GoneError, OtherError, execution_route
from gyre.trainer.rollout.place import BusyError
from gyre.trainer.rollout.state import Event

PATIENCE_S = 30.0
"""How long a proxy that is started again is waited for."""
_SETTLE_S = 5.0
"""How long calls may take to end after their harness has."""


@dataclass(frozen=True)
class Calls:
    """What an attempt has asked its engine, retries included."""

    made: int
    answered: int
    """Completely, and not refused."""
    error: str | None = None
    """Of the last that was not answered."""
    lost: bool = False
    """Whether the last one found no engine."""
    cut: bool = False
    """Whether the proxy went away meanwhile."""
    limit: str = ""
    """Of the execution, that a call was refused for."""


@dataclass(frozen=True)
class Standing:
    """How far the proxy had counted when an attempt began."""

    attempt: int
    calls: int
    held_s: float
    first_ns: int = field(default=0, compare=False)
    """When the proxy first heard of the execution: another time says that it is another proxy."""


View = Mapping[str, Any]
"""What a proxy shows of an execution."""


class Record:
    """The log of the executions of a run."""

    def __init__(
        self, control: Control, patience_s: float = PATIENCE_S, *, event_patience_s: float = 0.0
    ) -> None:
        """How long a proxy that is not there is waited for: at a begin; before an event goes beside it."""
        self.control = control
        self._patience_s = patience_s
        self._event_patience_s = event_patience_s

    def begin(
        self,
        name: str,
        task: str | None,
        group: str | None,
        evaluation: bool | None = None,
        *,
        restores: bool = False,
        pin: Pin | None = None,
        allowance: Allowance | None = None,
        again: bool = True,
        ended: int = -1,
    ) -> Standing:
        """Say that an execution starts: a new attempt, where one of that name has ended before.

        `restores`: the proxy shall put arguments of tool calls back as they were sampled. `pin`: how its
        calls are sampled. `again`: whether a new attempt may be; the one before is not trained any more.
        `ended`: the last attempt of it that is known to have ended.

        Raises:
            UpstreamError: there is no proxy.
            BusyError: somebody else makes calls of that name, or it has been used.
        """
        about: dict[str, Any] = {"task": task, "group": group, "evaluation": evaluation}
        about |= {"restore_arguments": True if restores else None, "pin": pin, "limits": allowance}
        said = {key: msgspec.to_builtins(value) for key, value in about.items() if value is not None}
        if ended < 0 and (fresh := self._begin_new(name, said)) is not None:
            return fresh
        route = execution_route(name)
        view = self.control.ask("GET", route, patience_s=self._patience_s)
        if view and view["ended"] and not again:
            hint = "give `--group NAME`, which is put before all names, or another `--logs`"
            raise BusyError(f"the log has an execution `{name}` that is not of this run", hint)
        over = self._catch_up(name, view, ended)
        if over:
            self._post(name, {"event": ExecutionEvent.STARTED}, self._patience_s)
        elif view and (_has_calls(view) or self._has_recorded(name, view["attempt"])):
            message = f"calls of an execution `{name}` are recorded already, and it has not ended"
            raise BusyError(message, "give it another name with `--execution`")
        method, body = ("GET", None) if over and not said else ("PUT", said)
        return _standing(self._ask(method, route, body, self._patience_s))

    def _begin_new(self, name: str, said: View) -> Standing | None:
        """In one request, which does nothing where the proxy knows of such an execution."""
        try:
            return _standing(self._ask("PUT", execution_route(name), {**said, "new": True}, self._patience_s))
        except OtherError:
            return None

    def _catch_up(self, name: str, view: View | None, ended: int) -> bool:
        """Whether the attempt that the proxy knows of is over; those until `ended` are.

        A proxy that was started anew may have read its log before their ends were in it.
        """
        attempt, over = (view["attempt"], view["ended"]) if view else (0, False)
        while attempt < ended or (attempt == ended and not over):
            if over:
                self._post(name, {"event": ExecutionEvent.STARTED}, self._patience_s)
            said = {"event": ExecutionEvent.ENDED, "outcome": ExecutionOutcome.RUN_TIMEOUT}
            attempt, over = self._post(name, said, self._patience_s)["attempt"], True
        return bool(over)

    def deliver(self, name: str, event: Event) -> None:
        """Bring an event into the log.

        Raises:
            LogError, UpstreamError: it is not there.
        """
        try:
            told = self._tell(name, event)
        except GoneError:
            if self.control.logs is None:
                raise
            told = False
        if not told:
            if self.control.logs is None:
                raise UpstreamError(f"the proxy does not know attempt {event.attempt} of `{name}` any more")
            append(self.control.logs, name, event)

    def settle(self, name: str) -> View | None:
        """Wait a little until calls that its harness left open have ended; what the proxy then shows."""
        end = time.monotonic() + _SETTLE_S
        while (view := self._view(name)) is not None and view["open"] and time.monotonic() < end:
            time.sleep(0.05)
        return view

    def held_s(self, name: str, since: Standing) -> float:
        """Seconds that the proxy has held calls of the attempt, as far as can be known."""
        return held_in(self._view(name), since)

    def calls(self, name: str, since: Standing, view: View | None = None) -> Calls | None:
        """What the attempt has asked; None where that cannot be known.

        The proxy has counted it. Reading the log takes the longer the more of it there is, so that is for
        attempts which outlived their proxy.
        """
        view = view or self._view(name)
        same = view is not None and view["first_ns"] == since.first_ns
        if view and same and view["attempt"] == since.attempt:
            return Calls(**{key: value for key, value in view["tally"].items() if key != "tokens"})
        found = calls_in(self.control.logs, name, since.attempt) if self.control.logs is not None else None
        return replace(found, cut=not same) if found else None

    def _has_recorded(self, name: str, attempt: int) -> bool:
        """Whether the log has answers to it that the proxy, started anew since, has not counted."""
        found = calls_in(self.control.logs, name, attempt) if self.control.logs is not None else None
        return found is not None and found.answered > 0

    def _tell(self, name: str, event: Event) -> bool:
        """False when the proxy would take it for another attempt."""
        said = msgspec.to_builtins(event)
        try:
            self._post(name, said, self._event_patience_s)
            return True
        except OtherError:
            view = self.control.ask("GET", execution_route(name))
        if (view["attempt"] if view else 0) > event.attempt:
            return False
        # It was started anew, and nothing that it has seen says that the attempt runs.
        if self._post(name, {"event": ExecutionEvent.STARTED})["attempt"] != event.attempt:
            return False
        self._post(name, said)
        return True

    def _post(self, name: str, said: Mapping[str, Any], patience_s: float = 0.0) -> dict[str, Any]:
        return self._ask("POST", f"{execution_route(name)}/events", said, patience_s)

    def _ask(
        self, method: str, route: str, body: Mapping[str, Any] | None, patience_s: float
    ) -> dict[str, Any]:
        answer = self.control.ask(method, route, body, patience_s=patience_s)
        if answer is None:
            hint = "give the URL that `gyre proxy` prints"
            raise UpstreamError(f"what listens at `{self.control.url}` is no gyre proxy", hint)
        return answer

    def _view(self, name: str) -> dict[str, Any] | None:
        try:
            return self.control.ask("GET", execution_route(name))
        except UpstreamError:
            return None


def _standing(view: View) -> Standing:
    return Standing(view["attempt"], view["calls"], view["held_s"], view["first_ns"])


def _has_calls(view: View) -> bool:
    """Whether the attempt that runs has any; all are counted together, and those that generate by attempt."""
    of_this = view["tally"]["made"] or view["open"]
    return bool(of_this if view["attempt"] else view["calls"])


def held_in(view: View | None, since: Standing) -> float:
    """Seconds that calls of the attempt were held, by what a proxy shows."""
    held: float = view["held_s"] if view else 0.0
    return held - since.held_s if held >= since.held_s else held


def calls_in(logs: Path, name: str, attempt: int) -> Calls | None:
    """The calls of an attempt that a log has; None when it cannot be read."""
    columns = ["execution_attempt", "wire", "outcome", "error", "http_status"]
    try:
        rows = read_log(logs, executions={name}, columns=columns).calls.to_pylist()
    except (LogError, OSError):
        return None
    asked = [row for row in rows if row["execution_attempt"] == attempt and Wire(row["wire"]).generates]
    bad = [row for row in asked if row["outcome"] != Outcome.OK]
    return Calls(
        made=len(asked),
        answered=len(asked) - len(bad),
        error=error_text(bad[-1]["outcome"], bad[-1]["error"], bad[-1]["http_status"]) if bad else None,
        lost=bool(asked) and is_lost(asked[-1]["outcome"], asked[-1]["http_status"]),
        limit=next((limit for row in bad if (limit := _limit(row))), ""),
    )


def _limit(row: Mapping[str, Any]) -> str:
    """Of the execution, for which the call was refused."""
    refused = row["outcome"] == Outcome.REJECTED and row["http_status"] == STATUS
    return limit_in(row["error"] or "") if refused else ""


def append(logs: Path, name: str, event: Event) -> None:
    """Write an event into a log beside its proxy, or without one.

    Raises:
        LogError: it cannot be written.
    """
    append_events(create_folder(logs), [_record(logs, name, event)])


def _record(logs: Path, name: str, event: Event) -> ExecutionRecord:
    """It stands after all that the log has of the execution, also when clocks ran back."""
    log = read_log(logs, executions={name}, columns=["order"])
    orders = [*log.calls["order"].to_pylist(), *log.executions["order"].to_pylist()]
    return ExecutionRecord(
        order=max([time.time_ns(), *(order + 1 for order in orders)]),
        worker=secrets.token_hex(4),
        execution_id=name,
        execution_attempt=event.attempt,
        event=event.event.value,
        at_ns=time.time_ns(),
        outcome=event.outcome.value if event.outcome else None,
        score=event.score,
        artifact=event.artifact,
        reason=event.reason,
        details=msgspec.json.encode(event.details) if event.details is not None else None,
    )
