"""The supervisor's view of its workers, with workers that are played by the test."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import pytest

from gyre.proxy.commands import (
    AddBackend,
    Command,
    DrainBackend,
    EndExecution,
    PutExecution,
    RemoveBackend,
    SetVersion,
    StartExecution,
)
from gyre.proxy.errors import GyreError, UpstreamError
from gyre.proxy.serve import crew as module
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
    Serve,
    Start,
    Submit,
)
from gyre.proxy.serve.crew import Crew, Hand
from gyre.proxy.settings import Backend, Pin, ProxySettings, load_settings
from gyre.proxy.status import BackendStatus, ExecutionQuery, ExecutionStatus, LogStatus, Status
from gyre.proxy.worker import Worker

T = TypeVar("T")
B1, B2 = Backend(url="http://b1", name="b1", version="1"), Backend(url="http://b2", name="b2")


def settings() -> ProxySettings:
    return load_settings(None, {"logs": "logs", "backends": [{"url": "http://b1", "name": "b1"}]})


class Played:
    """A worker process as far as the supervisor can tell: does as it is told and remembers it."""

    alive: ClassVar[list[Played]] = []
    """The loop holds tasks weakly: a worker that no test names would be collected in mid-scene."""

    def __init__(self, crew: Crew) -> None:
        self.alive.append(self)
        self.crew = crew
        self.heard: list[Message] = []
        self.status = Status(workers=1)
        self.refusal: Failed | None = None
        self.deaf = asyncio.Event()
        """Not set: it reacts to nothing."""
        self.deaf.set()

    async def join(self) -> Hand:
        ours, theirs = socket.socketpair()
        self.channel = Channel(*await asyncio.open_unix_connection(sock=theirs), self.handle)
        self.running = asyncio.create_task(self.channel.run())
        self.hand = self.crew.join(*await asyncio.open_unix_connection(sock=ours))
        self.reading = asyncio.create_task(self.hand.channel.run())
        return self.hand

    async def die(self) -> None:
        self.channel.close()
        await self.reading
        self.crew.leave(self.hand)

    async def handle(self, message: Message) -> Message:
        await self.deaf.wait()
        self.heard.append(message)
        match message:
            case Serve() if self.refusal:
                return self.refusal
            case Poll():
                self.channel.tell(Report(self.status))
            case Seal():
                return Sealed([{"calls": 1}])
        return Done()

    @property
    def commands(self) -> list[Command]:
        return [message.command for message in self.heard if isinstance(message, Apply)]


def play(work: Callable[[Crew], Awaitable[T]]) -> T:
    async def scene() -> T:
        crew = Crew(settings(), "text", logging.WARNING)
        result = await work(crew)
        for hand in crew.hands:
            hand.channel.close()
        await asyncio.sleep(0.01)
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        Played.alive.clear()
        return result

    return asyncio.run(scene())


async def served(crew: Crew) -> Played:
    played = Played(crew)
    await (await played.join()).serve()
    return played


def test_a_command_is_carried_out_by_all_in_the_same_order() -> None:
    async def scene(crew: Crew) -> None:
        one, two = await served(crew), await served(crew)
        commands: list[Command] = [SetVersion(None, str(n)) for n in range(20)]
        await asyncio.gather(*(crew.submit(command) for command in commands[:10]))
        for command in commands[10:]:
            assert isinstance(await one.channel.ask(Submit(command)), Done)
        assert one.commands == two.commands == commands

    play(scene)


def test_a_worker_that_joins_is_brought_to_where_the_others_are() -> None:
    async def scene(crew: Crew) -> None:
        history: list[Command] = [
            AddBackend(B2),
            DrainBackend("b2", True),
            RemoveBackend("b1"),
            AddBackend(B1),
            SetVersion("b1", "7"),
            PutExecution("e1", task="t", pin=Pin(temperature=1.0)),
            PutExecution("e1", group="g"),
            EndExecution("e1", 1),
            StartExecution("e1", 2),
            EndExecution("e2", 1),
        ]
        for command in history:
            await crew.submit(command)
        newcomer = await served(crew)
        start = newcomer.heard[0]
        assert isinstance(start, Start)
        replayed, told = Worker(start.settings), Worker(settings())
        for command in start.replay:
            replayed.apply(command)
        for command in history:
            told.apply(command)
        for worker in (replayed, told):
            assert {b.name: (b.version, b.draining) for b in worker.router.backends.values()} == {
                "b1": ("7", False),
                "b2": (None, True),
            }
            e1 = worker.executions.known["e1"]
            assert (e1.task, e1.group, e1.pin) == ("t", "g", Pin(temperature=1.0))
            assert (e1.attempt, e1.over, e1.put) == (1, False, True)
            assert worker.executions.known["e2"].over

    play(scene)


def test_what_is_said_while_a_worker_starts_reaches_it_before_it_serves() -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        starting = Played(crew)
        starting.deaf.clear()
        hand = await starting.join()
        await asyncio.wait_for(crew.submit(SetVersion(None, "1")), 5)
        assert one.commands == [SetVersion(None, "1")]
        starting.deaf.set()
        await hand.serve()
        kinds = [type(message) for message in starting.heard]
        assert kinds == [Start, Apply, Serve]

    play(scene)


def test_a_command_returns_only_when_the_slowest_worker_has_carried_it_out() -> None:
    async def scene(crew: Crew) -> None:
        await served(crew)
        slow = await served(crew)
        slow.deaf.clear()
        submitted = asyncio.create_task(crew.submit(SetVersion(None, "1")))
        await asyncio.sleep(0.05)
        assert not submitted.done()
        slow.deaf.set()
        await submitted
        assert slow.commands == [SetVersion(None, "1")]

    play(scene)


def test_a_worker_that_hangs_is_said_to_and_one_that_dies_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_APPLY_S", 0.1)

    async def scene(crew: Crew) -> None:
        one, two = await served(crew), await served(crew)
        two.deaf.clear()
        with pytest.raises(UpstreamError, match="1 of 2 workers do not react"):
            await crew.submit(SetVersion(None, "1"))
        answer = await one.channel.ask(Submit(SetVersion(None, "2")))
        assert answer == Failed("1 of 2 workers do not react")
        submitted = asyncio.create_task(crew.submit(SetVersion(None, "3")))
        await asyncio.sleep(0)
        await two.die()
        await submitted

    play(scene)


def test_a_worker_that_cannot_start_says_why() -> None:
    async def scene(crew: Crew) -> None:
        played = Played(crew)
        played.refusal = Failed("cannot write the log", "free some space")
        hand = await played.join()
        with pytest.raises(GyreError, match="cannot write the log") as caught:
            await hand.serve()
        assert caught.value.hint == "free some space"

    play(scene)


def told(rows: int, *executions: str) -> Status:
    return Status(
        workers=1,
        backends={"b1": BackendStatus(name="b1", url="http://b1", profile="auto", calls=rows)},
        executions={e: ExecutionStatus(name=e, calls=rows, first_ns=1, last_ns=rows) for e in executions},
        log=LogStatus(rows=rows),
    )


def test_a_question_is_answered_for_all_and_the_dead_are_counted_in() -> None:
    async def scene(crew: Crew) -> None:
        one, two = await served(crew), await served(crew)
        one.status, two.status = told(1, "e1"), told(10, "e1", "e2")
        answer = await one.channel.ask(Ask(ExecutionQuery(limit=5)))
        assert isinstance(answer, Report)
        assert (answer.status.workers, answer.status.log.rows) == (2, 11)
        assert [(e.name, e.calls) for e in answer.status.executions.values()] == [("e1", 11), ("e2", 10)]
        two.status = told(10)  # the second report repeats no execution that did not change
        await two.die()
        status = await crew.status(ExecutionQuery(name="e2"))
        assert (status.workers, status.log.rows, status.backends["b1"].calls) == (1, 11, 11)
        assert [(e.name, e.calls) for e in status.executions.values()] == [("e2", 10)]

    play(scene)


def test_what_was_put_is_known_whatever_becomes_of_the_workers() -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        await crew.submit(PutExecution("e1", task="t"))
        await one.die()
        (listed,) = (await crew.status(ExecutionQuery(limit=1))).executions.values()
        (named,) = (await crew.status(ExecutionQuery(name="e1"))).executions.values()
        assert listed == named
        assert (named.task, named.put, named.calls) == ("t", True, 0)

    play(scene)


def test_a_backend_that_was_removed_is_not_shown_for_the_sake_of_the_dead() -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        one.status = told(3)
        await crew.status(ExecutionQuery())
        await one.die()
        await crew.submit(RemoveBackend("b1"))
        assert (await crew.status(ExecutionQuery())).backends == {}

    play(scene)


def test_the_last_report_of_a_worker_that_hangs_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_POLL_S", 0.1)

    async def scene(crew: Crew) -> None:
        one = await served(crew)
        one.channel.tell(Report(told(5, "e1")))
        await asyncio.sleep(0.05)
        one.deaf.clear()
        status = await crew.status(ExecutionQuery(name="e1"))
        assert (status.log.rows, list(status.executions)) == (5, ["e1"])

    play(scene)


def test_all_are_sealed_one_after_the_other() -> None:
    async def scene(crew: Crew) -> None:
        one, _ = await served(crew), await served(crew)
        assert await one.channel.ask(SealAll()) == Sealed([{"calls": 1}, {"calls": 1}])

    play(scene)


def test_a_bug_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        answer = await one.channel.ask(Serve())
        assert answer == Failed("a supervisor knows no `Serve`")

    play(scene)
    assert "cannot carry out `Serve`" in caplog.text


def test_large_messages_pass_whole() -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        command = PutExecution("e1", task="x" * 5_000_000)
        await crew.submit(command)
        assert one.commands == [command]

    play(scene)


def test_asking_a_process_that_is_gone_fails_at_once() -> None:
    async def scene(crew: Crew) -> None:
        one = await served(crew)
        await one.die()
        with pytest.raises(ConnectionError):
            await one.hand.channel.ask(Poll())

    play(scene)
