"""Many executions: names, K at once, what goes wrong with one, and going on where a run stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.group import Plan, Result, plan, run_jobs, slug
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.place import locked
from gyre.trainer.rollout.score import Command, Verdict, run_scorer
from gyre.trainer.rollout.secret import Secrets
from gyre.trainer.rollout.state import State, Status
from gyre.trainer.rollout.tree import remove_tree
from tests.engines.script import Answer
from tests.proxy.processes import wait_for
from tests.rollout.harnesses import Stage, said, thread
from tests.rollout.test_task import write as write_task

REWARD = '#!/bin/sh\ncat answer > "$GYRE_REWARD_DIR/reward.txt"\n'
AGENT = "call(); write('answer', '1')"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def task_folder(folder: Path, name: str, **files: str) -> Path:
    return write_task(folder / name, {"tests/test.sh": REWARD} | files)


def run(stage: Stage, jobs: Sequence[Job], agent: str = AGENT, at_once: int = 4, **more: Any) -> Result:
    options = stage.options(stage.agent(agent))
    return run_jobs(jobs, options, stage.record, stage.stop, at_once=at_once, **more)


def planned(folders: Sequence[Path], n: int, **more: Any) -> Plan:
    return plan(folders, n, Options(runs=Path("/runs"), command=["true"], **more))


def test_each_task_has_n_executions_with_its_name_and_is_their_group(tmp_path: Path) -> None:
    folders = [task_folder(tmp_path, "a"), task_folder(tmp_path, "b")]
    made = planned(folders, 2)
    assert [(job.name, job.group) for job in made.jobs] == [
        ("a-0", "a"),
        ("a-1", "a"),
        ("b-0", "b"),
        ("b-1", "b"),
    ]
    assert made.broken == []


def test_a_name_with_a_slash_is_a_group_and_no_folder(tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "lamp 1", **{"task.toml": '[task]\nname = "harbour/lamp"\n'})
    (job,) = planned([folder], 1).jobs
    assert (job.name, job.group) == ("lamp-1-0", "harbour/lamp")


@pytest.mark.parametrize(
    ("name", "short"),
    [("a b/c", "a-b-c"), ("..", "task"), ("-x", "x"), ("y" * 200, "y" * 120)],
)
def test_names_are_what_executions_can_be_called(name: str, short: str) -> None:
    assert slug(name) == short


def test_names_in_other_scripts_stay_apart(tmp_path: Path) -> None:
    names = [
        "\u65e5\u672c",
        "\u4e2d\u56fd",
        "caf\u00e9",
        "cafe",
        "\u00e9" * 150,
        "y" * 130 + "\u00e9",
        "task",
    ]
    shorts = [slug(name) for name in names]
    assert len(set(shorts)) == len(names)
    assert all(re.fullmatch(r"(task|caf|y+)-[0-9a-f]{6}|cafe|task", short) for short in shorts)
    assert max(map(len, shorts)) == 120
    assert slug("cafe\u0301") == slug("caf\u00e9")
    folders = [task_folder(tmp_path, name) for name in names[:2]]
    made = planned(folders, 1)
    assert (made.broken, [job.group for job in made.jobs]) == ([], names[:2])


def test_a_link_to_a_task_has_its_own_name(tmp_path: Path) -> None:
    links = []
    for number in (1, 2):
        (tmp_path / f"link{number}").symlink_to(task_folder(tmp_path / f"real{number}", "v1"))
        links.append(tmp_path / f"link{number}")
    made = planned(links, 1)
    assert [(job.name, job.group) for job in made.jobs] == [("link1-0", "link1"), ("link2-0", "link2")]
    assert made.broken == []


def test_a_prefix_sets_a_run_apart_from_others_in_the_log(stage: Stage, tmp_path: Path) -> None:
    folder = task_folder(tmp_path, "a")
    (job,) = plan([folder], 1, Options(runs=Path("/runs"), command=["true"]), prefix="step 2").jobs
    assert (job.name, job.group, job.only_new) == ("step-2-a-0", "step 2-a", True)
    first = planned([folder], 1).jobs
    run(stage, first)
    stage.runs = tmp_path / "other"
    (failure,) = run(stage, first).failures
    assert "the log has an execution `a-0` that is not of this run" in str(failure[1])
    assert "--group" in failure[1].hint
    assert run(stage, [job]).states[0].outcome == "completed"
    assert [attempt for attempt, *_ in said(stage.events("a-0"))] == [0, 0, 0]


def test_a_broken_task_is_named_and_the_others_are_planned(tmp_path: Path) -> None:
    good = task_folder(tmp_path, "good")
    lacking = task_folder(tmp_path, "lacking")
    (lacking / "instruction.md").unlink()
    untested = task_folder(tmp_path, "untested")
    (untested / "tests" / "test.sh").unlink()
    docker = {"environment/Dockerfile": "FROM ubuntu\nRUN make\n"}
    contained = task_folder(tmp_path, "contained", **docker)
    wanting = task_folder(
        tmp_path, "wanting", **{"task.toml": '[environment]\nenv = { A = "${GYRE_NOT_SET}" }\n'}
    )
    twin = task_folder(tmp_path / "other", "good")
    made = planned([good, lacking, untested, contained, wanting, twin], 1)
    assert [job.name for job in made.jobs] == ["good-0"]
    messages = [str(problem) for problem in made.broken]
    expected = (
        "has no `instruction.md`",
        "has no `tests/test.sh`",
        "needs a container",
        "GYRE_NOT_SET",
        "has the name of",
    )
    assert len(messages) == 5
    for message, part in zip(messages, expected, strict=True):
        assert part in message


def test_a_command_scores_tasks_without_tests(tmp_path: Path) -> None:
    untested = task_folder(tmp_path, "untested")
    (untested / "tests" / "test.sh").unlink()
    assert len(planned([untested], 3, score="echo 1").jobs) == 3


def test_a_group_runs_and_its_executions_are_told_of_as_they_end(stage: Stage, tmp_path: Path) -> None:
    jobs = planned([task_folder(tmp_path, "a")], 3).jobs
    told: dict[str, tuple[int, int]] = {}
    result = run(stage, jobs, tell=lambda state, *counts: told.update({state.execution: counts}))
    assert [state.execution for state in result.states] == ["a-0", "a-1", "a-2"]
    assert set(told) == {"a-0", "a-1", "a-2"} and sorted(told.values()) == [(1, 3), (2, 3), (3, 3)]
    assert [state.score for state in result.states] == [1, 1, 1]
    assert (result.kept, result.failures, result.gone) == (0, [], None)
    assert [stage.events(f"a-{n}")[0]["group"] for n in range(3)] == ["a"] * 3


@pytest.mark.parametrize("at_once", [1, 2])
def test_no_more_run_at_once_than_asked_for(tmp_path: Path, at_once: int) -> None:
    with Stage(tmp_path, script=Answer(delay=0.15)) as stage:
        result = run(stage, [Job(f"x-{n}") for n in range(3)], "call()", at_once=at_once)
        assert stage.engine.peak_open <= at_once
    assert [state.outcome for state in result.states] == ["completed"] * 3


def test_finished_ones_are_not_run_again(stage: Stage) -> None:
    jobs = [Job(f"x-{n}") for n in range(3)]
    run(stage, jobs[:2])
    result = run(stage, jobs)
    assert (result.kept, len(result.states)) == (2, 3)
    assert [row.identity.execution_id for row in stage.proxy.rows(3)].count("x-0") == 1
    assert len(stage.proxy.rows(3)) == 3


def test_interrupted_ones_begin_anew_and_the_others_stay(stage: Stage) -> None:
    jobs = [Job(f"x-{n}") for n in range(4)]
    first = "call(); name = os.environ['GYRE_EXECUTION']; write('up', ''); time.sleep(1000 * (name != 'x-0'))"
    with thread(lambda: run(stage, jobs, first, at_once=2)):
        wait_for(lambda: all((stage.runs / f"x-{n}" / "workspace" / "up").exists() for n in range(3)))
        stage.stop.set()
    found = [states.load(stage.runs / job.name) for job in jobs]
    assert [state and state.status for state in found] == [
        Status.DONE,
        Status.INTERRUPTED,
        Status.INTERRUPTED,
        None,
    ]
    stage.stop.clear()
    result = run(stage, jobs)
    assert [(state.attempt, state.outcome) for state in result.states] == [
        (0, "completed"), (1, "completed"), (1, "completed"), (0, "completed")
    ]  # fmt: skip
    assert result.kept == 1


def test_one_that_cannot_be_started_is_tried_again_without_being_asked_to(stage: Stage) -> None:
    options = Options(runs=stage.runs, command=["no-such-program"])
    first = run_jobs([Job("x-0")], options, stage.record, stage.stop, at_once=1)
    assert [(state.status, state.ran) for state in first.states] == [(Status.NOT_STARTED, False)]
    assert run(stage, [Job("x-0")]).states[0].outcome == "completed"


def test_failed_ones_are_run_again_when_asked_to(stage: Stage) -> None:
    jobs = [Job("x-0"), Job("x-1")]
    run(stage, jobs, "call(); sys.exit(os.environ['GYRE_EXECUTION'] == 'x-1')")
    assert [state.outcome for state in run(stage, jobs).states] == ["completed", "failed"]
    again = run(stage, jobs, retry_failed=True)
    assert [(state.outcome, state.attempt) for state in again.states] == [("completed", 0), ("completed", 1)]
    assert again.kept == 1


def test_what_could_not_be_scored_is_scored_again_and_not_run(stage: Stage) -> None:
    def go(scorer: str, **more: Any) -> State:
        options = stage.options(stage.agent(AGENT), score=scorer)
        return run_jobs([Job("x-0")], options, stage.record, stage.stop, at_once=1, **more).states[0]

    assert go("exit 1").outcome == "scorer_failed"
    assert go("echo 3").outcome == "scorer_failed"
    state = go("echo 3", retry_failed=True)
    assert (state.outcome, state.score, state.attempt) == ("completed", 3, 0)
    assert len(stage.proxy.rows()) == 1
    assert said(stage.events("x-0"))[2:] == [(0, "scored", "scorer_failed", None), (0, "scored", None, 3)]


def test_what_goes_wrong_with_one_is_told_and_the_rest_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.run._UNWIND_S", 0.1)
    (stage.runs / "x-0").mkdir(parents=True)
    (stage.runs / "x-0" / "execution.json").write_text("[]")
    with locked(stage.runs / "x-1", ""):
        result = run(stage, [Job(f"x-{n}") for n in range(3)])
    assert [state.execution for state in result.states] == ["x-2"]
    assert [(job.name, type(problem).__name__) for job, problem in result.failures] == [
        ("x-0", "StateError"), ("x-1", "BusyError")
    ]  # fmt: skip


def test_once_the_proxy_is_gone_no_more_are_begun(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        pass
    jobs = [Job(f"x-{n}") for n in range(50)]
    result = run(stage, jobs, at_once=1)
    assert result.gone and "no proxy answers" in str(result.gone)
    assert result.states == [] and not list(stage.runs.rglob("execution.json"))


def test_what_the_log_could_not_take_is_brought_to_it_by_the_next_run(stage: Stage) -> None:
    run(stage, [Job("x-0")])
    state = states.load(stage.runs / "x-0")
    assert state
    late = states.Event(event=ExecutionEvent.SCORED, attempt=0, score=9.0)
    state.unrecorded = [late]
    states.save(stage.runs / "x-0", state)
    assert run(stage, [Job("x-0")]).kept == 1
    assert said(stage.events("x-0"))[-1] == (0, "scored", None, 9)
    assert run(stage, [Job("x-0")]).states[0].unrecorded == []
    assert len(stage.events("x-0")) == 3


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Stage]:
    """A stage whose folders may become deeper than pytest can remove."""
    with Stage(tmp_path) as stage:
        yield stage
    remove_tree(tmp_path / "runs")


DEEP = """
call()
if os.environ["GYRE_EXECUTION"] == "x-0":
    for _ in range(DEPTH):
        os.mkdir("NAME")
        os.chdir("NAME")
"""


@pytest.mark.parametrize(("depth", "name", "left"), [(600, "d", 0), (600, "d" * 100, 1)])
def test_folders_in_folders_are_scored_like_others(deep: Stage, depth: int, name: str, left: int) -> None:
    agent = DEEP.replace("DEPTH", str(depth)).replace("NAME", name)
    options = deep.options(deep.agent(agent), score="echo 1")
    jobs = [Job(f"x-{n}") for n in range(3)]
    result = run_jobs(jobs, options, deep.record, deep.stop, at_once=2)
    assert [(state.outcome, state.score) for state in result.states] == [("completed", 1)] * 3
    assert json.loads(deep.events("x-0")[-1]["details"])["not_copied"] == left
    assert sorted(path.name for path in (deep.runs / "x-0" / "scorer" / "try-1").iterdir()) == [
        "rewards", "stderr.txt", "stdout.txt"
    ]  # fmt: skip


def test_a_fault_of_ours_ends_one_execution_and_is_recorded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def faulty_scorer(scorer: Command, workspace: Path, *rest: Any, **more: Any) -> Verdict:
        if workspace.parent.name == "x-0":
            raise RecursionError("too deep")
        return run_scorer(scorer, workspace, *rest, **more)

    def faulty_words(*files: Path, secrets: Secrets) -> str:
        if files[0].parent.name == "x-1":
            raise LookupError("no such word")
        return ""

    monkeypatch.setattr("gyre.trainer.rollout.run.run_scorer", faulty_scorer)
    monkeypatch.setattr("gyre.trainer.rollout.run.last_words", faulty_words)
    options = stage.options(stage.agent("call()"), score="echo 1")
    jobs = [Job(f"x-{n}") for n in range(4)]
    result = run_jobs(jobs, options, stage.record, stage.stop, at_once=4)
    assert not stage.stop.is_set() and result.failures == []
    assert [(state.outcome, state.score, state.reason) for state in result.states] == [
        ("scorer_failed", None, "a fault of gyre's own: RecursionError: too deep"),
        ("failed", None, "a fault of gyre's own: LookupError: no such word"),
        ("completed", 1, ""),
        ("completed", 1, ""),
    ]
    assert said(stage.events("x-0"))[-1] == (0, "scored", "scorer_failed", None)
    assert said(stage.events("x-1"))[-1] == (0, "ended", "failed", None)
    assert caplog.text.count("Traceback") == 2


def test_a_fault_that_cannot_be_recorded_is_told_and_the_rest_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = states.save

    def broken(folder: Path, state: State) -> None:
        if folder.name == "x-0":
            raise OSError(5, "Input/output error")
        save(folder, state)

    monkeypatch.setattr("gyre.trainer.rollout.run.states.save", broken)
    result = run(stage, [Job("x-0"), Job("x-1")])
    assert [(state.execution, state.outcome) for state in result.states] == [("x-1", "completed")]
    ((job, problem),) = result.failures
    assert (job.name, str(problem)) == ("x-0", "`x-0`: a fault of gyre's own: [Errno 5] Input/output error")


@pytest.mark.slow
def test_a_failed_execution_and_a_hanging_scorer_leave_the_group_complete(
    stage: Stage, tmp_path: Path
) -> None:
    files = {
        "tests/test.sh": f"#!/bin/sh\n[ -e slow ] && sleep 1000\n{REWARD}",
        "task.toml": "[verifier]\ntimeout_sec = 0.5\n",
    }
    jobs = planned([task_folder(tmp_path, "a", **files)], 4).jobs
    agent = """
number = int(os.environ["GYRE_EXECUTION"][-1])
if number != 2:
    call()
write("answer", str(number))
if number == 1:
    write("slow", "")
sys.exit(number == 3)
"""
    result = run(stage, jobs, agent)
    assert [(state.outcome, state.score) for state in result.states] == [
        (ExecutionOutcome.COMPLETED, 0),
        (ExecutionOutcome.SCORER_FAILED, None),
        (ExecutionOutcome.FAILED, None),
        (ExecutionOutcome.FAILED, 3),
    ]
