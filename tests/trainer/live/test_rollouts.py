"""Executions of a live run, with real agents, a real proxy and a scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.allowance import Allowance
from gyre.proxy.settings import Pin
from gyre.trainer.live import rollouts as module
from gyre.trainer.live.assignment import Assignment, Finished
from gyre.trainer.live.rollouts import Rollouts
from gyre.trainer.rollout import room
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.control import Control, GoneError, RefusedError
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.record import Record
from gyre.trainer.rollout.run import run_execution
from gyre.trainer.rollout.score import Verdict, run_scorer
from gyre.trainer.rollout.state import State, Status
from gyre.treebuilder import build_trees, read_trees
from gyre.treebuilder.score import left_out
from tests.engines.fake import FakeEngine, refused_url
from tests.engines.script import Answer, Request
from tests.proxy.processes import ProxyProcess, wait_for
from tests.rollout.harnesses import Stage, events_of, said, write_agent

WORK = "call(); write('answer', '1')"
SCORE = "cat answer"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_RETRY_S", "_PAUSE_S", "_ASK_S"):
        monkeypatch.setattr(module, name, 0.05)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def rollouts(stage: Stage, at_once: int = 2, **more: Any) -> Rollouts:
    return Rollouts(stage.record, stage.stop, at_once=at_once, **more)


def group(stage: Stage, key: str = "g0", n: int = 2, agent: str = WORK, **more: Any) -> Assignment:
    urgent = more.pop("urgent", False)
    jobs = [Job(f"{key}-{number}", None, key) for number in range(n)]
    options = stage.options(write_agent(stage.folder, agent, f"{key}.py"), **{"score": SCORE} | more)
    return Assignment(key=key, jobs=jobs, options=options, urgent=urgent)


def awaited(running: Rollouts, seconds: float = 60) -> Finished:
    finished = running.next(seconds)
    assert finished is not None
    return finished


def begun(stage: Stage) -> list[str]:
    """Executions in the order of their first calls."""
    return list(dict.fromkeys(request.json["messages"][0]["content"] for request in stage.engine.calls))


def test_an_assignment_is_given_when_all_of_it_has_ended(stage: Stage) -> None:
    told: list[str] = []
    with rollouts(stage, tell=lambda state: told.append(state.execution)) as running:
        running.submit(group(stage, n=3))
        finished = awaited(running)
        assert running.next(0) is None
        counts = running.counts
    assert (finished.key, finished.failures) == ("g0", [])
    assert [(state.execution, state.outcome, state.score) for state in finished.states] == [
        ("g0-0", "completed", 1),
        ("g0-1", "completed", 1),
        ("g0-2", "completed", 1),
    ]
    assert sorted(told) == ["g0-0", "g0-1", "g0-2"]
    assert (counts.running, counts.waiting, counts.done, counts.timed_out) == (0, 0, 3, 0)
    assert counts.outcomes == {"completed": 3}


HELD = """
call("first")
write("up", "")
while not os.path.exists("go"):
    time.sleep(0.02)
"""
NAMED = "call(os.environ['GYRE_EXECUTION']); write('answer', '1')"


def test_urgent_ones_begin_before_what_waits_and_the_others_in_their_order(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage, rollouts(stage, at_once=1) as running:
        running.submit(group(stage, "g0", 1, HELD + WORK))
        wait_for((stage.runs / "g0-0" / "workspace" / "up").exists, 30)
        running.submit(group(stage, "g1", 2, NAMED))
        running.submit(group(stage, "eval", 2, NAMED, urgent=True))
        counts = running.counts
        (stage.runs / "g0-0" / "workspace" / "go").write_text("")
        keys = [awaited(running).key for _ in range(3)]
        order = begun(stage)
    assert (counts.running, counts.waiting) == (1, 4)
    assert keys == ["g0", "eval", "g1"]
    assert order == ["first", "hi", "eval-0", "eval-1", "g1-0", "g1-1"]


def test_what_an_earlier_run_did_is_not_done_again(stage: Stage) -> None:
    assignment = group(stage, n=4)
    options = assignment.options
    run_execution(assignment.jobs[0], options, stage.record, stage.stop)

    unscored = run_execution(assignment.jobs[1], replace(options, score=None), stage.record, stage.stop)
    unscored.status = Status.UNSCORED
    states.save(stage.runs / "g0-1", unscored)

    killed = run_execution(assignment.jobs[2], replace(options, score=None), stage.record, stage.stop)
    killed.status, killed.unrecorded = Status.RUNNING, []
    states.save(stage.runs / "g0-2", killed)

    with rollouts(stage) as running:
        running.submit(assignment)
        finished = awaited(running)
    assert [(state.attempt, state.number, state.score) for state in finished.states] == [
        (0, 0, 1), (0, 0, 1), (1, 1, 1), (0, 0, 1)
    ]  # fmt: skip
    names = [row.identity.execution_id for row in stage.proxy.rows(5)]
    assert sorted(names) == ["g0-0", "g0-1", "g0-2", "g0-2", "g0-3"]


def test_what_goes_wrong_costs_one_execution(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage.runs / "g0-0").mkdir(parents=True)
    (stage.runs / "g0-0" / "execution.json").write_text("{")
    real = module.run_execution

    def faulty(job: Job, *rest: Any) -> State:
        if job.name == "g0-1":
            raise LookupError("no such word")
        return real(job, *rest)

    monkeypatch.setattr(module, "run_execution", faulty)
    agent = "name = os.environ['GYRE_EXECUTION']; call(); write('answer', '1'); sys.exit(name == 'g0-2')"
    with rollouts(stage) as running:
        running.submit(group(stage, n=4, agent=agent))
        finished = awaited(running)
    assert [(state.execution, state.outcome) for state in finished.states] == [
        ("g0-2", "failed"),
        ("g0-3", "completed"),
    ]
    problems = {job.name: str(problem) for job, problem in finished.failures}
    assert "is damaged" in problems["g0-0"]
    assert problems["g0-1"] == "`g0-1`: a fault of gyre's own: LookupError"


def test_a_fault_in_whoever_is_told_does_not_end_the_thread(stage: Stage) -> None:
    def tell(state: State) -> None:
        raise KeyError(state.execution)

    with rollouts(stage, at_once=1, tell=tell) as running:
        running.submit(group(stage, n=2))
        finished = awaited(running)
    assert [job.name for job, _ in finished.failures] == ["g0-0", "g0-1"]


# Engines and proxies that go away.


def failing(times: int, status: int = 500) -> Callable[[Request], Answer]:
    """An engine that fails so many times."""
    left = [times]

    def answer(request: Request) -> Answer:
        left[0] -= 1
        return Answer(status=status, text="engine died") if left[0] >= 0 else Answer()

    return answer


STRICT = "status, _ = call(); write('answer', '1'); sys.exit(status != 200)"


@pytest.mark.parametrize(("retries", "outcome", "attempt"), [(1, "completed", 1), (0, "failed", 0)])
def test_one_that_had_no_engine_is_run_again(
    tmp_path: Path, retries: int, outcome: str, attempt: int
) -> None:
    with Stage(tmp_path, script=failing(1)) as stage, rollouts(stage, retries=retries) as running:
        running.submit(group(stage, n=1, agent=STRICT))
        (state,) = awaited(running).states
        events = said(stage.events("g0-0"))
    assert (state.outcome, state.attempt) == (outcome, attempt)
    assert events[:2] == [(0, "started", None, None), (0, "ended", "failed", None)]


def test_it_is_run_again_so_often_and_no_more(tmp_path: Path) -> None:
    with Stage(tmp_path, script=Answer(status=500, text="dead")) as stage:
        with rollouts(stage, retries=2) as running:
            running.submit(group(stage, n=1, agent=STRICT))
            (state,) = awaited(running).states
            counts = running.counts
        with rollouts(stage, retries=2) as running:
            stage.stop.clear()
            running.submit(group(stage, n=1, agent=STRICT))
            (later,) = awaited(running).states
    assert (state.outcome, state.attempt, state.retried) == ("failed", 2, 2)
    assert (counts.done, counts.outcomes) == (1, {"failed": 1})
    assert later == state


def test_what_a_dead_engine_cost_is_not_scored_and_in_no_stored_tree(tmp_path: Path) -> None:
    """It had an answer, and work that a scorer could have looked at."""
    agent = "call(); write('answer', '0.5'); status, _ = call(); sys.exit(status != 200)"
    answers = iter([Answer(), Answer(), Answer(), Answer(status=500, text="dead")])
    with Stage(tmp_path, script=lambda _: next(answers)) as stage:
        with rollouts(stage, at_once=1, retries=0) as running:
            running.submit(group(stage, n=2, agent=agent))
            states = awaited(running).states
        events = stage.events("g0-1")
        logs = stage.proxy.logs
    assert [(state.outcome, state.score, state.lost) for state in states] == [
        ("completed", 0.5, False),
        ("failed", None, True),
    ]
    assert said(events)[-1] == (0, "ended", "failed", None)
    assert '"lost":true' in events[-1]["details"]
    build_trees(logs, tmp_path / "trees")
    summaries = {one.execution_id: one for one in read_trees(tmp_path / "trees").executions()}
    assert left_out(summaries["g0-0"]) is None and left_out(summaries["g0-1"]) == "no_score"


@pytest.mark.parametrize("status", [400, 429])
def test_one_that_the_engine_refuses_is_not(tmp_path: Path, status: int) -> None:
    with Stage(tmp_path, script=Answer(status=status, text="no")) as stage, rollouts(stage) as running:
        running.submit(group(stage, n=1, agent=STRICT))
        (state,) = awaited(running).states
    assert (state.outcome, state.attempt) == ("failed", 0)


def test_one_that_crashes_by_itself_is_not(stage: Stage) -> None:
    with rollouts(stage) as running:
        running.submit(group(stage, n=1, agent=WORK + "; sys.exit(3)"))
        (state,) = awaited(running).states
    assert (state.outcome, state.attempt) == ("failed", 0)


@pytest.mark.slow
def test_a_proxy_that_is_killed_and_started_again_costs_one_attempt(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        first = ProxyProcess(tmp_path, engine.url)
        with first:
            record = Record(Control(first.url, first.logs))
            options = Options(
                runs=tmp_path / "runs", command=write_agent(tmp_path, HELD + STRICT), score="echo 1"
            )
            assignment = Assignment(key="g0", jobs=[Job("g0-0"), Job("g0-1")], options=options)
            running = Rollouts(record, threading.Event(), at_once=1)
            running.submit(assignment)
            wait_for((tmp_path / "runs" / "g0-0" / "workspace" / "up").exists, 30)
            first.process.kill()
            first.process.wait()
        (tmp_path / "runs" / "g0-0" / "workspace" / "go").write_text("")
        with ProxyProcess(tmp_path, engine.url, "--port", str(first.port)) as second, running:
            for name in ("g0-0/attempt-1", "g0-1"):
                wait_for((tmp_path / "runs" / name / "workspace" / "up").exists, 30)
                (tmp_path / "runs" / name / "workspace" / "go").write_text("")
            finished = awaited(running)
    assert [(state.outcome, state.attempt) for state in finished.states] == [
        ("completed", 1),
        ("completed", 0),
    ]
    events = said(events_of(second.logs, "g0-0"))
    assert (0, "ended", "failed", None) in events and events[-1] == (1, "scored", None, 1)


def test_a_proxy_that_does_not_come_back_is_a_failure_of_each(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.record = Record(Control(refused_url()))
        with rollouts(stage, patience_s=0.2) as running:
            running.submit(group(stage, n=2))
            finished = awaited(running)
    assert [type(problem) for _, problem in finished.failures] == [GoneError, GoneError]


def test_a_proxy_that_refuses_is_not_asked_again(stage: Stage) -> None:
    """With the patience of a real run, which would be minutes."""
    assignment = group(stage, n=1)
    (job,) = assignment.jobs
    with rollouts(stage) as running:
        running.submit(replace(assignment, jobs=[replace(job, name="-no-name")]))
        finished = awaited(running)
    assert [type(problem) for _, problem in finished.failures] == [RefusedError]


# A disk that is full.


def test_a_full_disk_ends_all_of_them_and_what_ended_without_room_is_run_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assignment = group(stage, n=3)
    real = module.run_execution

    def filling(job: Job, *rest: Any) -> State:
        state = real(job, *rest)
        if job.name == "g0-1":
            patch.setattr(room, "LEAST", 1 << 62)
        return state

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_execution", filling)
        running = rollouts(stage, at_once=1)
        running.submit(assignment)
        wait_for(lambda: running.failed is not None, 60)
        running.close()
        assert running.next(0) is None
    assert "the disk is full: for `" in str(running.failed)
    stage.stop.clear()
    with rollouts(stage) as running:
        running.submit(assignment)
        finished = awaited(running)
    assert [(state.attempt, state.score) for state in finished.states] == [(0, 1), (1, 1), (0, 1)]


def test_what_a_scorer_has_no_room_for_is_run_anew(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assignment = group(stage, n=1)

    def filling(*rest: Any, **more: Any) -> Verdict:
        patch.setattr(room, "LEAST", 1 << 62)
        return run_scorer(*rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr("gyre.trainer.rollout.run.run_scorer", filling)
        running = rollouts(stage)
        running.submit(assignment)
        wait_for(lambda: running.failed is not None, 60)
        running.close()
    assert "the disk is full: for `" in str(running.failed)
    stage.stop.clear()
    with rollouts(stage) as running:
        running.submit(assignment)
        finished = awaited(running)
    assert [(state.attempt, state.score) for state in finished.states] == [(1, 1)]


def test_what_is_done_is_taken_over_though_there_is_no_room(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assignment = group(stage, n=1)
    with rollouts(stage) as running:
        running.submit(assignment)
        before = awaited(running)
    stage.stop.clear()
    monkeypatch.setattr(room, "LEAST", 1 << 62)
    with rollouts(stage) as running:
        running.submit(assignment)
        assert awaited(running) == before


# Its end.


def test_closing_ends_what_runs_and_the_next_run_goes_on(stage: Stage) -> None:
    agent = "call(); write('up', '')\ntime.sleep(1000)"
    running = rollouts(stage, at_once=1)
    running.submit(group(stage, n=2, agent=agent))
    wait_for((stage.runs / "g0-0" / "workspace" / "up").exists, 30)
    running.close()
    assert running.next(0) is None
    found = [states.load(stage.runs / f"g0-{number}") for number in range(2)]
    assert [state and state.status for state in found] == [Status.INTERRUPTED, None]
    stage.stop.clear()
    with rollouts(stage) as running:
        running.submit(group(stage, n=2))
        finished = awaited(running)
    assert [(state.outcome, state.attempt) for state in finished.states] == [
        ("completed", 1),
        ("completed", 0),
    ]


def test_closing_does_not_wait_for_a_proxy_that_is_gone(stage: Stage) -> None:
    stage.record = Record(Control(refused_url()))
    running = rollouts(stage)
    running.submit(group(stage, n=2))
    wait_for(lambda: running.counts.running == 2)
    running.close()
    assert running.next(0) is None


# What executions may do.


def test_calls_are_sampled_as_the_options_say(stage: Stage) -> None:
    with rollouts(stage) as running:
        running.submit(group(stage, "g0", 1, NAMED, pin=Pin(temperature=1.0)))
        running.submit(group(stage, "eval", 1, NAMED, pin=Pin(temperature=0.0)))
        awaited(running), awaited(running)
    found = {call.json["messages"][0]["content"]: call.json["temperature"] for call in stage.engine.calls}
    assert found == {"g0-0": 1.0, "eval-0": 0.0}


@pytest.mark.parametrize("code", [0, 1])
def test_one_that_reaches_its_limit_is_scored_on_what_it_left(stage: Stage, code: int) -> None:
    agent = f"""
for number in range(5):
    status, _ = call()
    if status != 200:
        sys.exit({code})
    write("answer", str(number))
"""
    with rollouts(stage) as running:
        running.submit(group(stage, n=1, agent=agent, allowance=Allowance(calls=3)))
        (state,) = awaited(running).states
        counts = running.counts
    assert (state.outcome, state.score, state.reason) == ("timed_out", 2, "its limit of 3 calls")
    assert (counts.timed_out, counts.outcomes) == (1, {"timed_out": 1})
    assert said(stage.events("g0-0"))[1:] == [(0, "timed_out", "timed_out", None), (0, "scored", None, 2)]
