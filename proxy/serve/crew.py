"""All workers together, as their supervisor sees them: commands to all of them, one answer for all.

A command is sent to the workers in the order it came, and a worker that joins is first brought to
where the others are. The counters of workers that left are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from gyre.proxy.commands import Command, SpendExecution
from gyre.proxy.errors import GyreError, UpstreamError
from gyre.proxy.executions import MOST
from gyre.proxy.serve.channel import (
    Apply,
    Ask,
    Channel,
    Done,
    Failed,
    Message,
    Poll,
    Report,
    Seal,
    SealAll,
    Sealed,
    SealReport,
    Serve,
    Start,
    Submit,
)
from gyre.proxy.serve.logs import LogFormat
from gyre.proxy.serve.shared import Shared
from gyre.proxy.settings import ProxySettings
from gyre.proxy.status import ExecutionQuery, ExecutionStatus, Status, merge, retired, selected, selected_here
from gyre.proxy.tally import merged

_APPLY_S = 30.0
"""How long a command waits for a worker that does not react."""
_POLL_S = 5.0
"""Beyond it a worker's last report stands in."""


@dataclass(slots=True, eq=False)
class Hand:
    """One worker."""

    channel: Channel
    built: asyncio.Future[Message] = field(init=False)
    """Answered when the process is up and has caught up with the others."""
    serves: bool = False
    """Before that nobody need wait for it: it accepts no call until it has carried out all it was told."""
    status: Status = field(default_factory=Status)
    executions: dict[str, ExecutionStatus] = field(default_factory=dict)
    """As far as they were reported; the one that changed last stands last."""

    async def serve(self) -> None:
        """Wait until it accepts calls.

        Raises:
            GyreError: it says that it cannot, and why.
            ConnectionError: the process died.
        """
        answer = await self.built
        if not isinstance(answer, Failed):
            self.serves = True
            answer = await self.channel.ask(Serve())
        if isinstance(answer, Failed):
            raise GyreError(answer.message, answer.hint)

    def take(self, report: Report) -> None:
        self.status = replace(report.status, executions={})
        for name, execution in reversed(report.status.executions.items()):
            self.executions.pop(name, None)
            self.executions[name] = execution
        while len(self.executions) > MOST:
            del self.executions[next(iter(self.executions))]


class Crew:
    """Nothing here waits between looking at the workers and sending to them, so the order is kept."""

    def __init__(
        self, settings: ProxySettings, log_format: LogFormat, log_level: int, before: Iterable[Command] = ()
    ) -> None:
        """`before`: commands whose effect every worker starts with."""
        self.hands: list[Hand] = []
        self._settings = msgspec.structs.replace(settings, backends=[])
        self._log_format: LogFormat = log_format
        self._log_level = log_level
        self._shared = Shared(settings.backends)
        for command in before:
            self._shared.apply(command)
        self._gone = Status()
        """What is left of workers that are gone."""

    def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Hand:
        """A new worker; it takes part in commands from now on. Start reading its channel."""
        hand = Hand(Channel(reader, writer, lambda message: self._handle(hand, message)))
        self.hands.append(hand)
        replay = self._shared.replay()
        hand.built = hand.channel.ask(Start(self._settings, replay, self._log_format, self._log_level))
        return hand

    def leave(self, hand: Hand) -> None:
        """The worker is gone; its counters stay."""
        self.hands.remove(hand)
        last = retired(replace(hand.status, executions=hand.executions))
        self._gone = merge([self._gone, last])
        known = self._gone.executions
        for name in sorted(known, key=lambda name: known[name].last_ns)[:-MOST]:
            del known[name]

    async def submit(self, command: Command) -> None:
        """Returns when every worker has carried it out; one that died meanwhile is replaced by one that has.

        Raises:
            UpstreamError: a worker does not react.
        """
        self._shared.apply(command)
        answers = [(hand.serves, hand.channel.ask(Apply(command))) for hand in self.hands]
        late = await _all_within(_APPLY_S, [answer for serves, answer in answers if serves])
        if late:
            raise UpstreamError(f"{late} of {len(answers)} workers do not react")

    async def status(self, query: ExecutionQuery) -> Status:
        """All workers as one, with the executions that are asked for."""
        hands = list(self.hands)
        await _all_within(_POLL_S, [hand.channel.ask(Poll()) for hand in hands if hand.serves])
        backends = self._shared.router.backends
        gone = replace(
            self._gone,
            executions={},
            backends={name: b for name, b in self._gone.backends.items() if name in backends},
        )
        status = merge([*(hand.status for hand in hands), gone])
        tables = [*(hand.executions for hand in hands), self._gone.executions, self._told(query)]
        status.executions = {execution.name: execution for execution in selected(tables, query)}
        return status

    def _told(self, query: ExecutionQuery) -> dict[str, ExecutionStatus]:
        """What commands said of executions, whatever became of the workers that carried them out."""
        wanted = replace(query, limit=MOST if query.limit else 0)
        return {told.name: told for told in selected_here(self._shared.executions, wanted)}

    async def seal(self) -> list[SealReport]:
        """Rotate and seal in one worker after the other, since only one can seal at a time."""
        reports: list[SealReport] = []
        for hand in [hand for hand in self.hands if hand.serves]:
            with contextlib.suppress(ConnectionError):
                # A worker that dies now leaves a journal that the next seal takes in.
                answer = await hand.channel.ask(Seal())
                reports += answer.reports if isinstance(answer, Sealed) else [None]
        return reports

    def _spend(self, name: str) -> None:
        """Each worker counts its own calls; where they reach a limit together, all of them are told."""
        told = self._shared.executions.known.get(name)
        if told is None or told.limits is None:
            return
        tally = merged([hand.executions[name].tally for hand in self.hands if name in hand.executions])
        limit = told.limits.reached(tally.begun, tally.tokens)
        if limit and told.spent != (tally.attempt, limit):
            command = SpendExecution(name, tally.attempt, limit)
            self._shared.apply(command)
            for hand in self.hands:
                hand.channel.ask(Apply(command))

    async def _handle(self, hand: Hand, message: Message) -> Message:
        match message:
            case Report():
                hand.take(message)
                for name in message.status.executions:
                    self._spend(name)
            case Submit(command):
                await self.submit(command)
            case Ask(query):
                return Report(await self.status(query))
            case SealAll():
                return Sealed(await self.seal())
            case _:
                raise TypeError(f"a supervisor knows no `{type(message).__name__}`")
        return Done()


async def _all_within(seconds: float, answers: Sequence[asyncio.Future[Any]]) -> int:
    """How many did not come in time; that the other process died is no matter here."""
    if not answers:
        return 0
    done, late = await asyncio.wait(answers, timeout=seconds)
    for answer in done:
        with contextlib.suppress(ConnectionError):
            answer.result()
    for answer in late:
        answer.cancel()
    return len(late)
