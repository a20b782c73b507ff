"""What a run says of its executions, and learns of them: to the proxy, or into its log when that is gone."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gyre.proxy.calls import ExecutionRecord, Outcome, Wire
from gyre.proxy.errors import LogError, UpstreamError
from gyre.proxy.executions import ExecutionEvent
from gyre.proxy.log.append import append_events
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.reading.read import read_log
from gyre.trainer.rollout.control import Control, GoneError, execution_route
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


@dataclass(frozen=True)
class Standing:
    """How far the proxy had counted when an attempt began."""

    attempt: int
    calls: int
    held_s: float


class Record:
    """The log of the executions of a run."""

    def __init__(self, control: Control, patience_s: float = PATIENCE_S) -> None:
        self.control = control
        self._patience_s = patience_s

    def begin(
        self,
        name: str,
        task: str | None,
        group: str | None,
        evaluation: bool | None = None,
        *,
        restores: bool = False,
        again: bool = True,
    ) -> Standing:
        """Say that an execution starts: a new attempt, where one of that name has ended before.

        `restores`: the proxy shall put arguments of tool calls back as they were sampled. `again`: whether a
        new attempt may be; the one before is not trained any more.

        Raises:
            UpstreamError: there is no proxy.
            BusyError: somebody else makes calls of that name, or it has been used.
        """
        about = {"task": task, "group": group, "evaluation": evaluation}
        about |= {"restore_arguments": True} if restores else {}
        said = {key: value for key, value in about.items() if value is not None}
        route = execution_route(name)
        view = self.control.ask("GET", route, patience_s=self._patience_s)
        if view and view["ended"] and not again:
            hint = "give `--group NAME`, which is put before all names, or another `--logs`"
            raise BusyError(f"the log has an execution `{name}` that is not of this run", hint)
        if view and view["ended"]:
            self._post(name, {"event": ExecutionEvent.STARTED})
        elif view and view["calls"]:
            message = f"calls of an execution `{name}` are recorded already, and it has not ended"
            raise BusyError(message, "give it another name with `--execution`")
        if said or not view or not view["ended"]:
            self._ask("PUT", route, said)
        begun = self._ask("GET", route)
        return Standing(begun["attempt"], begun["calls"], begun["held_s"])

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

    def settle(self, name: str) -> None:
        """Wait a little until calls that its harness left open have ended."""
        end = time.monotonic() + _SETTLE_S
        while time.monotonic() < end and (view := self._view(name)) is not None and view["open"]:
            time.sleep(0.05)

    def held_s(self, name: str, since: Standing) -> float:
        """Seconds that the proxy has held calls of the attempt, as far as can be known."""
        view = self._view(name)
        held: float = view["held_s"] if view else 0.0
        return held - since.held_s if held >= since.held_s else held

    def calls(self, name: str, since: Standing) -> Calls | None:
        """What the attempt has asked; None where that cannot be known."""
        if self.control.logs is not None:
            return calls_in(self.control.logs, name, since.attempt)
        view = self._view(name)
        if view is None or view["calls"] < since.calls:
            return None
        made = view["calls"] - since.calls
        return Calls(made, made)

    def _tell(self, name: str, event: Event) -> bool:
        """False when the proxy would take it for another attempt."""
        view = self.control.ask("GET", execution_route(name))
        attempt = view["attempt"] if view else 0
        if attempt < event.attempt:
            # It was started anew, and nothing that it has seen says that the attempt runs.
            attempt = self._post(name, {"event": ExecutionEvent.STARTED})["attempt"]
        if attempt != event.attempt:
            return False
        said = msgspec.to_builtins(event)
        del said["attempt"]
        self._post(name, said)
        return True

    def _post(self, name: str, said: Mapping[str, Any]) -> dict[str, Any]:
        return self._ask("POST", f"{execution_route(name)}/events", said)

    def _ask(self, method: str, route: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        answer = self.control.ask(method, route, body, patience_s=self._patience_s)
        if answer is None:
            hint = "give the URL that `gyre proxy` prints"
            raise UpstreamError(f"what listens at `{self.control.url}` is no gyre proxy", hint)
        return answer

    def _view(self, name: str) -> dict[str, Any] | None:
        try:
            return self.control.ask("GET", execution_route(name))
        except UpstreamError:
            return None


def calls_in(logs: Path, name: str, attempt: int) -> Calls | None:
    """The calls of an attempt that a log has; None when it cannot be read."""
    columns = ["execution_attempt", "wire", "outcome", "error", "http_status"]
    try:
        rows = read_log(logs, executions={name}, columns=columns).calls.to_pylist()
    except (LogError, OSError):
        return None
    asked = [row for row in rows if row["execution_attempt"] == attempt and Wire(row["wire"]).generates]
    bad = [row for row in asked if row["outcome"] != Outcome.OK]
    return Calls(len(asked), len(asked) - len(bad), _said(bad[-1]) if bad else None)


def _said(row: Mapping[str, Any]) -> str:
    status = f" ({row['http_status']})" if row["http_status"] else ""
    return f"{row['error'] or row['outcome']}{status}"


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
