"""One execution, with a real program, a real proxy and a real scorer: whatever the program does."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gyre.proxy.errors import UpstreamError
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.control import Control
from gyre.trainer.rollout.harness import Harness
from gyre.trainer.rollout.job import Job
from gyre.trainer.rollout.place import BusyError, locked
from gyre.trainer.rollout.record import Calls, Record, Standing, View
from gyre.trainer.rollout.room import RoomError
from gyre.trainer.rollout.run import run_execution
from gyre.trainer.rollout.state import State, Status
from gyre.trainer.rollout.task import TaskError, load_task
from tests.engines.script import Answer, Request
from tests.proxy.processes import wait_for
from tests.rollout.harnesses import Stage, alive, said, thread
from tests.rollout.test_task import write as write_task


class WhenThere:
    """A clock whose time is over once a file is there, so that no test depends on how fast a machine is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, limit_s: float, held_s: Callable[[], float]) -> WhenThere:
        return self

    def over(self) -> bool:
        return self._path.exists()


def over_when(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.run.Clock", WhenThere(path))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def test_a_harness_works_and_its_work_is_scored(stage: Stage) -> None:
    state = stage.run(
        stage.agent("call(); call(); write('answer.txt', '42'); print('done')"), score="cat answer.txt"
    )
    assert (state.status, state.outcome, state.score, state.ran) == (Status.DONE, "completed", 42, True)
    assert (Path(state.workspace) / "answer.txt").read_text() == "42"
    assert Path(state.stdout).read_text() == "done\n"
    assert state.details["scorer_seconds"] > 0
    assert said(stage.events()) == [
        (0, "started", None, None),
        (0, "ended", "completed", None),
        (0, "scored", None, 42),
    ]
    ended = stage.events()[1]
    details = json.loads(ended["details"])
    assert ended["artifact"] == state.workspace
    assert (details["harness"], details["exit_code"], details["calls"], details["answered"]) == (
        Path(sys.executable).name,
        0,
        2,
        2,
    )
    assert details["stdout_bytes"] == 5 and details["seconds"] > 0


def test_it_says_what_it_belongs_to(stage: Stage) -> None:
    options = stage.options(stage.agent("call()"), evaluation=True)
    run_execution(Job("e1", group="g"), options, stage.record, stage.stop)
    started = stage.events()[0]
    assert (started["group"], started["evaluation"]) == ("g", True)


def test_nothing_of_the_user_reaches_it_but_what_is_named(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://elsewhere:3128")
    command = stage.agent(
        "call(); write('env.json', json.dumps(dict(os.environ))); print(os.getcwd(), sys.stdin.read())"
    )
    state = stage.run(command, env={"MINE": "yes"})
    env = json.loads((Path(state.workspace) / "env.json").read_text())
    assert "secret" not in json.dumps(env) and "HTTP_PROXY" not in env
    assert (env["MINE"], env["PATH"], env["LANG"]) == ("yes", os.environ["PATH"], "C.UTF-8")
    assert env["OPENAI_BASE_URL"] == stage.proxy.base("e1")
    assert env["ANTHROPIC_BASE_URL"] == f"{stage.proxy.url}/x/e1"
    assert env["OPENAI_API_KEY"] == env["ANTHROPIC_API_KEY"] == "gyre-x-e1"
    assert env["HOME"] == str(stage.runs / "e1" / "home")
    assert not Path(env["TMPDIR"]).exists()
    assert Path(state.stdout).read_text() == f"{state.workspace} \n"


def test_places_in_a_command_are_filled_in(stage: Stage) -> None:
    command = [*stage.agent("call(); print(json.dumps(sys.argv[1:]))"), "--url={base_url}", "{instruction}"]
    command += [
        "{anthropic_url}|{execution}|{workspace}|{model}|{api_key}",
        "{instruction_file}",
        '{"a": {}}',
    ]
    state = stage.run(command, instruction="say {base_url}", model="m")
    url, told, more, file, other = json.loads(Path(state.stdout).read_text())
    assert url == f"--url={stage.proxy.base('e1')}"
    assert told == Path(file).read_text() == "say {base_url}"
    assert more == f"{stage.proxy.url}/x/e1|e1|{state.workspace}|m|gyre-x-e1"
    assert other == '{"a": {}}'


def test_a_workspace_begins_as_a_copy_without_our_own_folder(stage: Stage) -> None:
    source = stage.folder / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_text("theirs")
    (source / "link").symlink_to("deep/file")
    stage.runs = source / "runs"
    state = stage.run(stage.agent("call(); write('deep/file', 'changed')"), workspace=source)
    work = Path(state.workspace)
    assert (work / "deep" / "file").read_text() == "changed" and (work / "link").is_symlink()
    assert (source / "deep" / "file").read_text() == "theirs"
    assert not (work / "runs").exists()


def test_a_workspace_has_neither_log_nor_runs_in_it(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("theirs")
    with Stage(tmp_path) as stage:
        assert stage.proxy.logs.parent == stage.runs.parent == tmp_path
        state = stage.run(stage.agent("call()"), workspace=tmp_path)
    assert sorted(path.name for path in Path(state.workspace).iterdir()) == ["agent.py", "own"]


def test_a_task_says_what_to_do_how_long_and_what_it_is_worth(stage: Stage, tmp_path: Path) -> None:
    files = {
        "task.toml": "[agent]\ntimeout_sec = 30\n[environment]\nenv = { LAMP = 'on' }\n",
        "instruction.md": "Write the word.\n",
        "environment/given.txt": "word",
        "tests/test.sh": '#!/bin/sh\ngrep -c word answer.txt > "$GYRE_REWARD_DIR/reward.txt"\n',
    }
    task = load_task(write_task(tmp_path / "lamp", files))
    command = [
        *stage.agent("call(); write('answer.txt', open('given.txt').read() + os.environ['LAMP'])"),
        "{instruction}",
    ]
    state = run_execution(Job("lamp-0", task, "g"), stage.options(command), stage.record, stage.stop)
    assert (state.outcome, state.score) == ("completed", 1)
    started, ended, scored = stage.events("lamp-0")
    assert (started["task"], started["group"], scored["score"]) == ("lamp", "g", 1)
    assert json.loads(ended["details"])["timeout_s"] == 30


# Bad input: each has its outcome and its message.


def test_a_harness_that_is_not_installed(stage: Stage) -> None:
    state = stage.run([], harness=Harness.CODEX, program="no-such-codex", instruction="x", score="echo 1")
    assert (state.status, state.outcome, state.score, state.ran) == (
        Status.NOT_STARTED,
        "failed",
        None,
        False,
    )
    assert state.reason == "`no-such-codex` is not installed"
    assert "npm i -g @openai/codex@0.171.0" in state.hint and "--harness-path" in state.hint
    assert said(stage.events()) == [(0, "started", None, None), (0, "ended", "failed", None)]
    assert stage.events()[1]["reason"] == state.reason


def test_a_harness_that_crashes_at_once(stage: Stage) -> None:
    state = stage.run(stage.agent("raise KeyError('no config')"), score="echo 1")
    assert (state.status, state.outcome, state.score, state.ran) == (Status.DONE, "failed", None, False)
    assert state.reason == "it made no call; exit code 1; KeyError: 'no config'"


def test_a_harness_that_fails_after_its_work_is_scored(stage: Stage) -> None:
    state = stage.run(
        stage.agent("call(); write('a', '1'); print('bad end', file=sys.stderr); sys.exit(3)"), score="cat a"
    )
    assert (state.outcome, state.score, state.ran) == ("failed", 1, True)
    assert state.reason == "exit code 3; bad end"
    assert said(stage.events())[1:] == [(0, "ended", "failed", None), (0, "scored", None, 1)]


def test_a_harness_that_is_killed_by_a_signal(stage: Stage) -> None:
    state = stage.run(stage.agent("call(); os.kill(os.getpid(), signal.SIGSEGV)"))
    assert (state.outcome, state.reason) == ("failed", "it was ended by SIGSEGV")


def test_a_harness_that_ends_well_and_made_no_call(stage: Stage) -> None:
    state = stage.run(stage.agent("print('nothing to do')"), score="echo 1")
    assert (state.outcome, state.score, state.ran) == ("failed", None, False)
    assert state.reason == "it made no call; nothing to do"


def test_asking_for_models_is_no_call(stage: Stage) -> None:
    text = "import urllib.request as u; u.urlopen(os.environ['OPENAI_BASE_URL'] + '/models').read()"
    assert stage.run(stage.agent(text)).reason == "it made no call"


def test_a_harness_none_of_whose_calls_is_answered(tmp_path: Path) -> None:
    with Stage(tmp_path, script=Answer(status=500, text="out of memory")) as stage:
        state = stage.run(stage.agent("call(); call()"), score="echo 1")
    assert (state.outcome, state.score, state.ran) == ("failed", None, False)
    assert state.reason.startswith("none of its 2 calls was answered: ") and "500" in state.reason


def test_a_timeout_is_scored_on_what_was_left(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    over_when(monkeypatch, stage.runs / "e1" / "workspace" / "a")
    state = stage.run(stage.agent("call(); write('a', '7'); time.sleep(1000)"), score="cat a", timeout_s=9)
    assert (state.outcome, state.score, state.reason) == ("timed_out", 7, "not done after 9 s")
    assert said(stage.events())[1:] == [(0, "timed_out", "timed_out", None), (0, "scored", None, 7)]
    assert alive(str(stage.folder / "agent.py")) == []


def test_a_timeout_in_mid_call_leaves_the_call_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second(request: Request) -> Answer:
        (tmp_path / "asked").touch()
        return Answer(hang_after=0)

    with Stage(tmp_path) as stage:
        over_when(monkeypatch, tmp_path / "asked")
        answers = iter([lambda request: Answer(), second])
        stage.engine.script = lambda request: next(answers)(request)
        state = stage.run(stage.agent("call(); call()"))
        rows = stage.proxy.rows(2)
        last = max(record.order for record in stage.proxy.records())
    assert (state.outcome, state.ran) == ("timed_out", True)
    assert [row.outcome for row in rows] == ["ok", "client_gone"]
    # The call had ended before the execution was said to have.
    assert rows[1].order < last and "late" not in rows[1].capture_flags


def test_a_timeout_without_a_call_is_no_result(stage: Stage) -> None:
    state = stage.run(stage.agent("time.sleep(1000)"), score="echo 1", timeout_s=0.4)
    assert (state.outcome, state.score, state.reason) == ("failed", None, "it made no call within 0.4 s")


def test_a_harness_that_ignores_sigterm_and_forks_daemons(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_when(monkeypatch, stage.runs / "e1" / "workspace" / "daemon")
    monkeypatch.setattr("gyre.trainer.rollout.start.GRACE_S", 0.3)
    text = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
call()
daemon = "trap '' TERM; echo $$ > d; mv d daemon; while :; do sleep 0.1; done"
subprocess.Popen(["setsid", "sh", "-c", daemon])
while True:
    time.sleep(0.1)
"""
    state = stage.run(stage.agent(text))
    details = json.loads(stage.events()[1]["details"])
    assert (state.outcome, details["signal"]) == ("timed_out", 9)
    daemon = int((Path(state.workspace) / "daemon").read_text())
    assert not Path(f"/proc/{daemon}").exists()
    assert alive(str(stage.folder / "agent.py")) == []


def test_a_harness_that_floods_its_output(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.start.OUTPUT_LIMIT", 200_000)
    state = stage.run(stage.agent("call(); [print('x' * 99) for _ in range(100_000)]; print('the end')"))
    details = json.loads(stage.events()[1]["details"])
    assert state.outcome == "completed"
    assert (details["stdout_bytes"], details["stdout_dropped"]) == (10_000_008, 9_800_008)
    assert Path(state.stdout).stat().st_size < 201_000


def test_a_harness_that_fills_the_disk(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.watch._MEASURE_S", 0.2)
    text = (
        "call()\nfor n in range(1000): write(f'part-{n}', 'x' * 100_000); time.sleep(0.01)\ntime.sleep(1000)"
    )
    state = stage.run(stage.agent(text), workspace_limit=1 << 20, score="ls | wc -l")
    assert (state.outcome, state.ran) == ("failed", True)
    assert state.reason.startswith("its files took ") and state.reason.endswith(", more than 1 MB")
    assert state.score and state.score > 9


def test_no_file_becomes_larger_than_all_may_be(stage: Stage) -> None:
    text = """
call()
try:
    write("large", "x" * (5 << 20))
except OSError as problem:
    print(problem.strerror)
"""
    state = stage.run(stage.agent(text), workspace_limit=1 << 20)
    assert Path(state.stdout).read_text() == "File too large\n"
    assert (Path(state.workspace) / "large").stat().st_size == 1 << 20


def test_room_outside_of_the_workspace_counts_too(stage: Stage) -> None:
    text = "call(); [write(os.environ[name] + '/f', 'x' * 900_000) for name in ('TMPDIR', 'HOME')]"
    assert stage.run(stage.agent(text), workspace_limit=1 << 20).reason.startswith("its files took ")


def test_a_harness_that_removes_its_own_folder(stage: Stage) -> None:
    text = "call(); import shutil; shutil.rmtree(os.path.dirname(os.getcwd()))"
    state = stage.run(stage.agent(text), score="ls | wc -l")
    assert (state.outcome, state.score) == ("completed", 0)


def test_a_harness_that_kills_its_supervisor(stage: Stage) -> None:
    state = stage.run(stage.agent("call(); os.kill(os.getppid(), signal.SIGKILL); time.sleep(1000)"))
    assert (state.outcome, state.reason) == ("failed", "its supervisor was killed")
    assert alive(str(stage.folder / "agent.py")) == []


@pytest.mark.parametrize(
    ("scorer", "reason"),
    [
        ("echo all good", "the scorer printed no number and wrote no reward"),
        ("echo nan", "the number it printed is nan, no finite number"),
        ("echo 1; exit 4", "the scorer failed: exit code 4: 1"),
    ],
)
def test_a_scorer_that_fails_drops_the_execution_and_says_why(stage: Stage, scorer: str, reason: str) -> None:
    state = stage.run(stage.agent("call(); write('a', '1')"), score=scorer)
    assert (state.status, state.outcome, state.score) == (Status.DONE, "scorer_failed", None)
    assert state.reason == f"{reason} (in each of 2 tries)"
    assert said(stage.events())[1:] == [(0, "ended", "completed", None), (0, "scored", "scorer_failed", None)]


def test_a_scorer_that_hangs(stage: Stage) -> None:
    command = stage.agent("call(); write('a', '1')")
    state = stage.run(command, score="sleep 1000", score_timeout_s=0.3)
    assert (state.outcome, state.score) == ("scorer_failed", None)
    assert state.reason == "the scorer was not done after 0.3 s (in each of 2 tries)"


def test_an_empty_workspace_that_cannot_be_scored_is_a_score_of_0(stage: Stage) -> None:
    state = stage.run(stage.agent("call(); os.mkdir('empty')"), score="cat answer.txt")
    assert (state.outcome, state.score) == (ExecutionOutcome.NO_ARTIFACT, 0)
    assert state.reason.startswith("the workspace is empty: ")
    assert said(stage.events())[2] == (0, "scored", "no_artifact", 0)


@pytest.mark.parametrize("score", ["sleep 1000", "kill -9 $$"])
def test_a_scorer_that_did_not_get_to_look_makes_no_empty_workspace_worth_0(stage: Stage, score: str) -> None:
    state = stage.run(stage.agent("call()"), score=score, score_timeout_s=1.0)
    assert (state.outcome, state.score) == ("scorer_failed", None)


def test_what_a_scorer_says_of_an_empty_workspace_counts(stage: Stage) -> None:
    state = stage.run(stage.agent("call(); print('0.5')"), score='cat "$GYRE_STDOUT"')
    assert (state.outcome, state.score) == ("completed", 0.5)


def test_a_task_without_tests_is_refused_before_anything_starts(stage: Stage, tmp_path: Path) -> None:
    folder = write_task(tmp_path / "lamp", {})
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match=r"has no `tests/test\.sh`"):
        run_execution(Job("e1", load_task(folder)), stage.options(["true"]), stage.record, stage.stop)
    assert not stage.runs.exists()


# Started again.


def test_a_finished_name_gets_its_next_attempt_and_the_first_stays(stage: Stage) -> None:
    first = stage.run(stage.agent("call(); write('a', '1')"), score="cat a")
    second = stage.run(stage.agent("call(); write('a', '2')"), score="cat a")
    assert (first.attempt, second.attempt, first.score, second.score) == (0, 1, 1, 2)
    assert Path(second.workspace) == stage.runs / "e1" / "attempt-1" / "workspace"
    assert (Path(first.workspace) / "a").read_text() == "1"
    assert said(stage.events())[3:] == [
        (1, "started", None, None), (1, "ended", "completed", None), (1, "scored", None, 2)
    ]  # fmt: skip
    assert [row.execution_attempt for row in stage.proxy.rows(2)] == [0, 1]


def test_an_interrupted_one_is_never_trained_and_starts_anew(stage: Stage) -> None:
    command = stage.agent("call(); write('up', ''); time.sleep(1000)")
    with thread(lambda: stage.run(command, score="echo 1")):
        wait_for((stage.runs / "e1" / "workspace" / "up").exists)
        stage.stop.set()
    state = states.load(stage.runs / "e1")
    assert state and (state.status, state.outcome) == (Status.INTERRUPTED, "run_timeout")
    stage.stop.clear()
    again = stage.run(stage.agent("call()"), score="echo 1")
    assert (again.attempt, again.outcome, again.score) == (1, "completed", 1)
    assert said(stage.events())[1] == (0, "ended", "run_timeout", None)


def test_what_ran_is_only_scored_when_the_run_ended_before_that(stage: Stage) -> None:
    command = stage.agent("call(); write('ran', '')")
    slow = f"touch {stage.folder}/scoring; sleep 1000"
    with thread(lambda: stage.run(command, score=slow)):
        wait_for((stage.folder / "scoring").exists)
        stage.stop.set()
    stage.stop.clear()
    state = stage.run(["no-such-program"], score="echo 5")
    assert (state.attempt, state.outcome, state.score) == (0, "completed", 5)
    assert len(stage.proxy.rows()) == 1
    assert said(stage.events())[1:] == [(0, "ended", "completed", None), (0, "scored", None, 5)]


def test_one_whose_run_was_killed_is_ended_and_starts_anew(stage: Stage) -> None:
    stage.run(stage.agent("call()"))
    state = states.load(stage.runs / "e1")
    assert state
    # As a killed run leaves it: the log knows of no end, and a temporary folder lies around.
    stage.record.begin("e2", None, None)
    temporary = stage.folder / "left"
    temporary.mkdir()
    states.save(
        stage.runs / "e2",
        states.State(execution="e2", harness="x", workspace="w", temporary=str(temporary)),
    )
    again = stage.run(stage.agent("call()"), name="e2")
    assert (again.attempt, again.number, again.outcome) == (1, 1, "completed")
    ended = stage.events("e2")[1]
    assert (ended["outcome"], ended["reason"], ended["execution_attempt"]) == (
        "run_timeout",
        "the run was killed",
        0,
    )
    assert not temporary.exists()


def test_two_at_once_are_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.run._UNWIND_S", 0.1)
    with (
        locked(stage.runs / "e1", ""),
        pytest.raises(BusyError, match="execution `e1` is being run by another"),
    ):
        stage.run(["true"])


def test_a_name_that_somebody_else_uses_is_refused(stage: Stage) -> None:
    stage.proxy.chat("e1")
    with pytest.raises(BusyError, match="calls of an execution `e1` are recorded already"):
        stage.run(["true"])


def test_a_damaged_state_is_named(stage: Stage) -> None:
    (stage.runs / "e1").mkdir(parents=True)
    (stage.runs / "e1" / "execution.json").write_text("{")
    with pytest.raises(states.StateError, match=r"e1/execution\.json` is damaged"):
        stage.run(["true"])


class Noting(Record):
    """What a run asks and says, in order."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self.notes: list[str] = []

    def settle(self, name: str) -> View | None:
        self.notes.append("settle")
        return super().settle(name)

    def calls(self, name: str, since: Standing, view: View | None = None) -> Calls | None:
        self.notes.append("calls")
        return super().calls(name, since, view)

    def deliver(self, name: str, event: states.Event) -> None:
        self.notes.append(event.event)
        super().deliver(name, event)


def test_calls_that_were_left_open_end_before_the_execution_does(stage: Stage) -> None:
    stage.record = noting = Noting(stage.control)
    stage.run(stage.agent("call()"), score="echo 1")
    assert noting.notes == ["settle", "calls", "ended", "scored"]


# Without a proxy.


def test_without_a_proxy_nothing_is_started(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        gone = Record(Control("http://127.0.0.1:1"), patience_s=0)
        with pytest.raises(UpstreamError, match="no proxy answers at"):
            run_execution(Job("e1"), stage.options(["touch", "started"]), gone, stage.stop)
    assert list(stage.runs.rglob("started")) == []


def test_an_engine_is_no_proxy(stage: Stage) -> None:
    record = Record(Control(stage.engine.url), patience_s=0)
    with pytest.raises(UpstreamError, match="is no gyre proxy"):
        run_execution(Job("e1"), stage.options(["true"]), record, stage.stop)


@pytest.mark.slow
def test_the_clock_stands_still_while_the_proxy_holds_a_call(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        backend = next(iter(stage.control.ask("GET", "/gyre/v1/status")["backends"]))["name"]  # type: ignore[index]
        stage.control.ask("PATCH", f"/gyre/v1/backends/{backend}", {"draining": True})
        command = stage.agent("call(); write('a', '1')")
        with thread(lambda: stage.run(command, timeout_s=3)):
            wait_for(lambda: stage.control.ask("GET", "/gyre/v1/status")["holding"])  # type: ignore[index]
            time.sleep(4)  # longer than the limit
            stage.control.ask("PATCH", f"/gyre/v1/backends/{backend}", {"draining": False})
        state = states.load(stage.runs / "e1")
    assert state and state.outcome == "completed"
    assert state.details["held_s"] > 3.9


def test_a_full_disk_is_told_and_the_next_run_goes_on(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = states.save

    def full(folder: Path, state: State) -> None:
        if state.status is not Status.RUNNING:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        real(folder, state)

    agent = stage.agent("call()")
    with monkeypatch.context() as patch:
        patch.setattr(states, "save", full)
        with pytest.raises(RoomError, match=r"^the disk is full: `.*/e1`$"):
            stage.run(agent, score="echo 1")
    state = stage.run(agent, score="echo 1")
    assert (state.attempt, state.outcome, state.score) == (1, "completed", 1)
