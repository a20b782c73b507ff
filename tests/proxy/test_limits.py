"""Limits of an execution: what goes beyond is refused, in each protocol's form, and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.allowance import Allowance, limit_in, refusal
from gyre.proxy.calls import ExecutionRecord, Outcome
from gyre.proxy.commands import Command, EndExecution, PutExecution, SpendExecution, StartExecution
from gyre.proxy.executions import Executions
from gyre.proxy.log.append import append_events
from gyre.proxy.log.folder import Folder, create_folder
from gyre.proxy.log.reading.before import commands_before
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.serve.channel import Report
from gyre.proxy.serve.crew import Crew
from gyre.proxy.settings import Pin
from gyre.proxy.status import ExecutionStatus, Status
from gyre.proxy.tally import Tally, is_lost, merged
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.controls import Control
from tests.proxy.running import RunningProxy
from tests.proxy.test_crew import play, served

MESSAGE = "execution `e1` has reached its limit of 2 calls"


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[RunningProxy]:
    with FakeEngine(script=Answer(text="one two three")) as engine, RunningProxy(tmp_path, engine) as proxy:
        yield proxy


def put(proxy: RunningProxy, name: str = "e1", **limits: int) -> None:
    proxy.worker.apply(PutExecution(name, limits=Allowance(**limits)))


def test_a_call_beyond_is_refused_and_recorded(proxy: RunningProxy) -> None:
    put(proxy, calls=2)
    assert [proxy.chat().status_code for _ in range(4)] == [200, 200, 403, 403]
    error = proxy.chat().json()["error"]
    assert (error["code"], error["message"]) == ("execution_limit", MESSAGE)
    last = proxy.rows(5)[-1]
    assert (last.outcome, last.http_status, last.error) == ("rejected", 403, MESSAGE)
    assert len(proxy.rows(5)) == 5
    assert proxy.chat("e2").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/messages", {"max_tokens": 9}, ("permission_error", MESSAGE)),
        ("/responses", {"input": "hi"}, ("invalid_request_error", MESSAGE)),
    ],
)
def test_it_is_said_in_the_form_of_the_protocol(
    proxy: RunningProxy, path: str, body: dict[str, Any], found: tuple[str, str]
) -> None:
    put(proxy, calls=2)
    proxy.chat(), proxy.chat()
    messages = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    answer = proxy.post(proxy.base() + path, json=messages | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["message"]) == (403, *found)


def test_what_asks_for_no_answer_is_not_counted(proxy: RunningProxy) -> None:
    put(proxy, calls=1)
    count = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    assert proxy.post(proxy.base() + "/messages/count_tokens", json=count).status_code == 200
    assert proxy.chat().status_code == 200


def test_sampled_tokens_are_counted(proxy: RunningProxy) -> None:
    assert proxy.chat("other").status_code == 200
    tokens = proxy.worker.executions.get("other").tally.tokens
    assert tokens > 0
    put(proxy, tokens=tokens + 1)
    assert [proxy.chat().status_code for _ in range(3)] == [200, 200, 403]
    assert proxy.rows(4)[-1].error == f"execution `e1` has reached its limit of {tokens + 1} tokens"


def test_each_attempt_has_the_whole_of_it(proxy: RunningProxy) -> None:
    put(proxy, calls=1)
    assert [proxy.chat().status_code for _ in range(2)] == [200, 403]
    proxy.worker.apply(EndExecution("e1", 1))
    assert [proxy.chat().status_code for _ in range(2)] == [200, 403]


def test_what_calls_came_to_is_shown(tmp_path: Path) -> None:
    answers = [Answer(), Answer(status=429, text="no"), Answer(status=500, text="out of memory")]
    with FakeEngine(script=answers) as engine, RunningProxy(tmp_path, engine) as proxy:
        put(proxy, calls=3)
        shown = []
        for _ in range(4):
            proxy.chat()
            shown.append(proxy.worker.executions.get("e1").tally)
            shown[-1] = Tally(**{name: getattr(shown[-1], name) for name in Tally.__slots__})
    assert [(tally.made, tally.answered, tally.lost, tally.limit) for tally in shown] == [
        (1, 1, False, ""),
        (2, 1, False, ""),
        (3, 1, True, ""),
        (4, 1, False, "its limit of 3 calls"),
    ]
    assert shown[2].error is not None and "(500)" in shown[2].error


def test_the_control_api_sets_and_shows_them(tmp_path: Path) -> None:
    with Control(tmp_path) as control:
        view = control.ok("PUT", "executions/e1", {"limits": {"calls": 5}, "pin": {"temperature": 0}})
        assert view["limits"] == {"calls": 5, "tokens": None}
        assert view["tally"] == {
            "made": 0, "answered": 0, "tokens": 0, "lost": False, "error": None, "limit": ""
        }  # fmt: skip
        assert control("PUT", "executions/e1", {"limits": {"calls": 0}}).status_code == 422
        control.worker.executions.get("e1").tally.note(Outcome.OK, None, 200, 7, 1)
        assert control.ok("GET", "executions/e1")["tally"]["tokens"] == 7
        control.ok("POST", "executions/e1/events", {"event": "ended"})
        control.ok("POST", "executions/e1/events", {"event": "started"})
        assert control.ok("GET", "executions/e1")["tally"]["tokens"] == 0


def test_an_event_of_another_attempt_than_meant_is_refused(tmp_path: Path) -> None:
    with Control(tmp_path) as control:
        control.ok("PUT", "executions/e1", {})
        refused = control("POST", "executions/e1/events", {"event": "ended", "attempt": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "other_attempt")
        assert [event.event for event in control.events()] == ["started"]
        assert control.ok("POST", "executions/e1/events", {"event": "ended", "attempt": 0})["attempt"] == 0


# Several workers.


def counted(begun: int, tokens: int = 0, attempt: int = 0) -> Status:
    tally = Tally(attempt=attempt, begun=begun, tokens=tokens)
    return Status(executions={"e1": ExecutionStatus(name="e1", tally=tally, first_ns=1, last_ns=2)})


def test_workers_that_reach_a_limit_together_are_told() -> None:
    async def scene(crew: Crew) -> None:
        one, two = await served(crew), await served(crew)
        put = PutExecution("e1", limits=Allowance(calls=4))
        await crew.submit(put)
        one.channel.tell(Report(counted(2)))
        two.channel.tell(Report(counted(1)))
        await asyncio.sleep(0.05)
        assert one.commands == two.commands == [put]
        two.channel.tell(Report(counted(2)))
        two.channel.tell(Report(counted(2)))
        await asyncio.sleep(0.05)
        assert one.commands == two.commands == [put, SpendExecution("e1", 0, "its limit of 4 calls")]
        newcomer = await served(crew)
        start: Any = newcomer.heard[0]
        assert start.replay[-1] == SpendExecution("e1", 0, "its limit of 4 calls")

    play(scene)


def test_what_workers_were_told_holds_for_one_attempt() -> None:
    executions = Executions()
    executions.apply(PutExecution("e1", limits=Allowance(calls=4)))
    executions.apply(SpendExecution("e1", 0, "its limit of 4 calls"))
    state = executions.get("e1")
    assert state.limit_reached(0) == "its limit of 4 calls"
    assert state.limit_reached(1) == ""
    executions.apply(PutExecution("e1", limits=Allowance(calls=9)))
    assert state.limit_reached(0) == ""


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(list(Outcome)), st.integers(0, 9)), min_size=1))
def test_tallies_of_workers_are_that_of_one(calls: list[tuple[int, Outcome, int]]) -> None:
    workers, alone = [Tally() for _ in range(3)], Tally()
    for now, (worker, outcome, tokens) in enumerate(calls, 1):
        for tally in (workers[worker], alone):
            tally.begun += 1
            tally.note(outcome, None, None, tokens, now)
    assert merged(workers) == alone
    assert merged([*workers, Tally(attempt=1)]) == Tally(attempt=1)


def test_a_late_call_counts_for_nothing() -> None:
    state = Executions().get("e1")
    state.tally_of(1).begun += 1
    state.tally_of(0).begun += 1
    assert (state.tally.attempt, state.tally.begun) == (1, 1)


# Pure.


def test_which_limit_is_reached() -> None:
    assert Allowance().reached(10**9, 10**9) == ""
    assert Allowance(calls=3).reached(2, 10**9) == ""
    assert Allowance(calls=3, tokens=10).reached(3, 10) == "its limit of 3 calls"
    assert Allowance(calls=3, tokens=10).reached(2, 10) == "its limit of 10 tokens"
    assert limit_in(refusal("e1", "its limit of 3 calls")) == "its limit of 3 calls"
    assert limit_in("something else") == ""


@pytest.mark.parametrize(
    ("outcome", "status", "lost"),
    [
        (Outcome.OK, 200, False),
        (Outcome.UPSTREAM_ERROR, 500, True),
        (Outcome.UPSTREAM_ERROR, None, True),
        (Outcome.UPSTREAM_ERROR, 400, False),
        (Outcome.UPSTREAM_CUT, 200, True),
        (Outcome.TIMEOUT, None, True),
        (Outcome.REJECTED, 503, True),
        (Outcome.REJECTED, 403, False),
        (Outcome.CLIENT_GONE, None, False),
    ],
)
def test_when_no_engine_was_there(outcome: Outcome, status: int | None, lost: bool) -> None:
    assert is_lost(outcome, status) is lost


# Started anew.


def test_a_limit_that_an_older_proxy_took_and_no_worker_can_is_left_out(tmp_path: Path) -> None:
    said = ExecutionRecord(
        order=1,
        worker="w",
        execution_id="e1",
        execution_attempt=0,
        event="started",
        at_ns=1,
        task="t",
        details=b'{"limits":{"calls":' + b"9" * 30 + b"}}",
    )
    append_events(create_folder(tmp_path), [said])
    assert commands_before(Folder(tmp_path)) == [PutExecution("e1", "t")]


def told(logs: Path) -> list[Command]:
    limits, pin = {"calls": 5}, {"temperature": 0.0}
    with Control(logs) as control:
        control.ok("PUT", "executions/over", {"limits": limits})
        control.ok("POST", "executions/over/events", {"event": "ended"})
        control.ok("PUT", "executions/open", {"limits": limits, "task": "t"})
        control.ok("PUT", "executions/open", {"pin": pin, "evaluation": True})
        control.ok("PUT", "executions/again", {"pin": {"temperature": 1.0}})
        control.ok("POST", "executions/again/events", {"event": "timed_out"})
        control.ok("POST", "executions/again/events", {"event": "started"})
        control.ok("PUT", "executions/again", {"restore_arguments": True})
    return [
        EndExecution("over", 1),
        PutExecution("open", "t", None, None, None, None, Allowance(calls=5)),
        PutExecution("open", None, None, True, Pin(temperature=0.0)),
        EndExecution("again", 1),
        PutExecution("again", pin=Pin(temperature=1.0)),
        PutExecution("again"),
        PutExecution("again", restore_arguments=True),
        StartExecution("again", 2),
    ]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_proxy_that_starts_anew_keeps_to_what_was_put(tmp_path: Path, sealed: bool) -> None:
    expected = told(tmp_path)
    if sealed:
        seal(tmp_path)
    assert commands_before(Folder(tmp_path)) == expected
