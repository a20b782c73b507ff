"""Attempts of an execution: where one ends and the next begins."""

from __future__ import annotations

from gyre.proxy.commands import EndExecution, PutExecution, StartExecution
from gyre.proxy.executions import Executions, placed
from gyre.proxy.settings import Pin


def test_calls_are_counted_and_open_ones_known() -> None:
    executions = Executions()
    first = executions.begin_call("e1")
    assert executions.begin_call("e1") is first
    assert (first.calls, first.open, first.attempt, first.over) == (2, 2, 0, False)
    assert not executions.end_call(first, 0)
    assert first.open == 1


def test_a_call_that_finishes_after_the_end_is_late() -> None:
    executions = Executions()
    state = executions.begin_call("e1")
    attempt = state.ends
    executions.apply(EndExecution("e1", 1))
    assert state.over
    assert executions.end_call(state, attempt)


def test_a_call_after_the_end_opens_the_next_attempt() -> None:
    executions = Executions()
    executions.begin_call("e1")
    executions.apply(EndExecution("e1", 1))
    state = executions.begin_call("e1")
    assert (state.attempt, state.over, state.ends) == (1, False, 1)
    assert not executions.end_call(state, 1)


def test_ending_twice_is_ending_once() -> None:
    executions = Executions()
    executions.begin_call("e1")
    for _ in range(2):
        attempt, command = placed("e1", executions.get("e1").ends, executions.get("e1").begun, "ended")
        assert attempt == 0
        if command:
            executions.apply(EndExecution("e1", 1))
    assert executions.get("e1").ends == 1


def test_where_an_event_belongs() -> None:
    # (ends, begun) as all workers together know them
    assert placed("e", 0, 0, "ended") == (0, EndExecution("e", 1))
    assert placed("e", 0, 1, "timed_out") == (0, EndExecution("e", 1))
    assert placed("e", 1, 1, "ended") == (0, None)
    assert placed("e", 1, 2, "ended") == (1, EndExecution("e", 2))
    assert placed("e", 0, 0, "scored") == (0, None)
    assert placed("e", 1, 1, "scored") == (0, None)
    assert placed("e", 1, 2, "scored") == (1, None)
    assert placed("e", 0, 0, "started") == (0, StartExecution("e", 1))
    assert placed("e", 0, 1, "started") == (0, StartExecution("e", 1))
    assert placed("e", 1, 1, "started") == (1, StartExecution("e", 2))


def test_what_is_put_stays_until_it_is_put_again() -> None:
    executions = Executions()
    executions.apply(PutExecution("e1", task="t1", pin=Pin(temperature=1.0)))
    executions.apply(PutExecution("e1", group="g1", evaluation=False))
    executions.apply(PutExecution("e1", pin=Pin()))
    state = executions.get("e1")
    assert (state.put, state.task, state.group, state.evaluation) == (True, "t1", "g1", False)
    assert state.pin == Pin()


def test_commands_are_harmless_twice_and_never_turn_back() -> None:
    executions = Executions()
    executions.apply(EndExecution("e1", 2))
    executions.apply(EndExecution("e1", 1))
    executions.apply(StartExecution("e1", 3))
    executions.apply(StartExecution("e1", 1))
    state = executions.get("e1")
    assert (state.ends, state.begun, state.attempt) == (2, 3, 2)


def test_the_longest_idle_is_forgotten() -> None:
    executions = Executions(most=2)
    executions.begin_call("a")
    executions.begin_call("b")
    state = executions.begin_call("a")
    executions.begin_call("c")
    assert list(executions.known) == ["a", "c"]
    forgotten = executions.begin_call("b")
    assert list(executions.known) == ["c", "b"]
    assert not executions.end_call(state, 0)
    assert forgotten.calls == 1


def test_recent_gives_what_was_touched_since() -> None:
    executions = Executions()
    first = executions.begin_call("a")
    executions.begin_call("b")
    turn = executions.turn
    assert list(executions.recent(turn)) == []
    executions.end_call(first, 0)
    assert [state.name for state in executions.recent(turn)] == ["a"]
    assert [state.name for state in executions.recent()] == ["a", "b"]
