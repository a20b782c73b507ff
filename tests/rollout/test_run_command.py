"""`gyre run` as a user types it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.cli import output
from gyre.cli.main import main
from gyre.proxy import read_log
from gyre.trainer.rollout import state as states
from gyre.trainer.rollout.place import locked
from gyre.trainer.rollout.state import Status
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request
from tests.proxy.processes import ProxyProcess, end, wait_for
from tests.rollout.harnesses import Stage, alive, events_of, said, write_agent
from tests.rollout.test_task import write as write_task
from tests.test_imports import loaded_by

Capture = pytest.CaptureFixture[str]
REWARD = '#!/bin/sh\ncat answer > "$GYRE_REWARD_DIR/reward.txt"\n'


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())
    monkeypatch.delenv("GYRE_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main(["run", *map(str, arguments)])
    return int(end.value.code or 0)


def run_json(capsys: Capture, *arguments: object, code: int = 0) -> Any:
    assert run("--json", *arguments) == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    return document


class GyreRun:
    """`gyre run` in a process of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "gyre.cli.main", "run", *map(str, arguments)]
        self._said = (folder / "said.txt").open("w+")
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=self._said, text=True, start_new_session=True
        )

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """(exit code, stdout, stderr), after a signal if one is given."""
        if number is not None:
            self.process.send_signal(number)
        try:
            out, _ = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._said.seek(0)
        with self._said:
            return self.process.returncode, out, self._said.read()


def tasks_of(folder: Path, *names: str) -> Path:
    for name in names:
        write_task(folder / name, {"tests/test.sh": REWARD})
    return folder


def test_one_execution_under_the_proxy_of_the_log(stage: Stage, capsys: Capture) -> None:
    agent = stage.agent("call(); write('answer', '42')")
    document = run_json(capsys, "-x", "mine", "--group", "g", "--score", "cat answer", "--", *agent)
    (execution,) = document["executions"]
    assert {name: execution[name] for name in ("execution", "outcome", "score", "group", "recorded")} == {
        "execution": "mine", "outcome": "completed", "score": 42, "group": "g", "recorded": True
    }  # fmt: skip
    assert execution["workspace"] == str(stage.runs / "mine" / "workspace")
    assert stage.events("mine")[0]["group"] == "g"


def test_the_shell_sees_a_table_and_remarks_on_stderr(stage: Stage, capsys: Capture) -> None:
    assert run("--logs", stage.proxy.logs, "--", *stage.agent("call()")) == 0
    shown = capsys.readouterr()
    assert "completed" in shown.out and str(stage.runs) in shown.out
    assert shown.err.startswith("running `") and "error" not in shown.err


def test_options_of_the_command_need_no_dashes_before_it(stage: Stage, capsys: Capture) -> None:
    (execution,) = run_json(capsys, *stage.agent("call(); print(sys.argv[1:])"), "--json", "-q")["executions"]
    assert Path(execution["stdout"]).read_text() == "['--json', '-q']\n"


def test_a_name_is_made_up_from_what_is_known(stage: Stage, tmp_path: Path, capsys: Capture) -> None:
    tasks_of(tmp_path / "t", "lamp")
    command = ["--task", "t/lamp", "--", *stage.agent("call(); write('answer', '1')")]
    names = {run_json(capsys, *command)["executions"][0]["execution"] for _ in range(2)}
    assert len(names) == 2 and all(name.startswith("lamp-") for name in names)


def test_what_fails_is_an_error_with_a_hint(stage: Stage, capsys: Capture) -> None:
    assert (
        run(
            "-x",
            "e1",
            "--harness",
            "codex",
            "--harness-path",
            "no-codex",
            "--instruction",
            "go",
            "--model",
            "m",
        )
        == 1
    )
    errors = capsys.readouterr().err.splitlines()[1:]
    assert errors[0] == "error: `e1`: `no-codex` is not installed"
    assert errors[1].startswith("hint: install it: npm i -g @openai/codex@")
    assert states.load(stage.runs / "e1")


@pytest.mark.parametrize(
    ("text", "code"),
    [("call()", 0), ("call(); sys.exit(2)", 1), ("pass", 1)],
)
def test_the_exit_code_says_whether_it_ran(stage: Stage, text: str, code: int) -> None:
    assert run("--", *stage.agent(text)) == code


def test_a_scorer_that_fails_is_exit_code_1(stage: Stage) -> None:
    assert run("--score", "true", "--", *stage.agent("call(); write('a', '')")) == 1


PRESET = """
import tomllib
config = tomllib.loads(open(os.environ["HOME"] + "/.codex/config.toml").read())
os.environ["OPENAI_BASE_URL"] = config["model_providers"]["gyre"]["base_url"]
call()
print(json.dumps([config["model"], sys.argv[1:], os.environ["MINE"], os.environ["KEPT"]]))
"""


def test_a_known_harness_finds_its_files_its_arguments_and_the_engines_model(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("KEPT", "theirs")
    python, flag, path = stage.agent(PRESET)
    program = stage.folder / "codex"
    program.write_text(f'#!/bin/sh\nexec {python} {flag} {path} "$@"\n')
    program.chmod(0o755)
    words = ["--harness", "codex", "--harness-path", "./codex", "--instruction", "do it"]
    words += ["--env", "MINE=a=b", "--keep-env", "KEPT", "--", "--more"]
    (execution,) = run_json(capsys, *words)["executions"]
    assert execution["outcome"] == "completed" and execution["harness"] == "codex"
    model, argv, mine, kept = json.loads(Path(execution["stdout"]).read_text())
    assert (model, mine, kept) == ("fake", "a=b", "theirs")
    assert argv[-3:] == ["--more", "--", "do it"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a command after `--`, or `--harness`"),
        (["--harness", "codex"], "give `--task` or `--instruction`"),
        (["--task", "a", "--tasks", "b", "x"], "give `--task` or `--tasks`"),
        (["--n", "3", "x"], "`--n` needs `--task`"),
        (["--tasks", "a", "-x", "b", "x"], "named after its task"),
        (["--task", "a", "--instruction", "b", "x"], "the task says what to do"),
        (["--retry-failed", "x"], "`--retry-failed` is for"),
        (["--harness-path", "a", "x"], "`--harness-path` needs `--harness`"),
        (["--proxy", "http://a", "--upstream", "http://b", "x"], "leave out `--upstream`"),
        (["--timeout", "soon", "x"], "`--timeout`: `soon` is no time"),
        (["--workspace-limit", "much", "x"], "`--workspace-limit`: `much` is no size"),
        (["--workspace", "none", "x"], "none"),
        (["--env", "A", "x"], "`--env A`: give NAME=VALUE"),
        (["--keep-env", "GYRE_NOT_SET", "x"], "`--keep-env GYRE_NOT_SET`: it is not set"),
        (["--harness", "cursor"], "cursor"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert run(*arguments) == 2
    # Boxes and folded lines around it.
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert message in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x"], "no proxy writes `"),
        (["--proxy", "http://127.0.0.1:1", "x"], "no proxy answers at `http://127.0.0.1:1`"),
        (["-x", "../up", "x"], "execution name `../up` from `--execution` is not allowed"),
        (["--task", "none", "x"], "has no `task.toml`"),
        (["--tasks", ".", "x"], "no tasks in `.`"),
        (
            ["--upstream", "ftp://x", "x"],
            "the proxy does not start: `ftp://x` is not the base URL of an engine",
        ),
    ],
)
def test_what_cannot_be_done_is_exit_code_1_and_starts_nothing(
    arguments: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    assert run(*arguments) == 1
    shown = capsys.readouterr()
    assert f"error: {message}" in shown.err or message in shown.err
    assert shown.out == "" and not list(tmp_path.rglob("execution.json"))


def test_an_engine_in_place_of_a_proxy_is_named(stage: Stage, capsys: Capture) -> None:
    assert run("--proxy", stage.engine.url, "x") == 1
    assert "is no gyre proxy" in capsys.readouterr().err


def test_two_proxies_for_one_log_are_refused(
    stage: Stage, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyre.trainer.rollout.private._DOUBT_S", 0.0)
    assert run("--upstream", stage.engine.url, "x") == 1
    assert "writes `" in capsys.readouterr().err
    assert run("--proxy", stage.proxy.url + "/v1/", "--", *stage.agent("call()")) == 0


def test_a_group_with_a_broken_task_runs_the_rest_and_is_exit_code_1(
    stage: Stage, tmp_path: Path, capsys: Capture
) -> None:
    tasks = tasks_of(tmp_path / "tasks", "good", "lacking")
    (tasks / "lacking" / "instruction.md").unlink()
    agent = stage.agent("call(); write('answer', '0.5')")
    assert run("--tasks", tasks, "--n", 2, "--", *agent) == 1
    shown = capsys.readouterr()
    assert "lacking` has no `instruction.md`" in shown.err
    assert "/2] good-0: completed, score 0.5" in shown.err and "good-1: completed" in shown.err
    row = next(line for line in shown.out.splitlines() if "good" in line)
    assert row.split()[:4] == ["good", "2", "2", "0.50"]


def test_what_no_execution_of_a_group_could_do_is_said_once(
    stage: Stage, tmp_path: Path, capsys: Capture
) -> None:
    tasks = tasks_of(tmp_path / "tasks", "a")
    words = ["--tasks", tasks, "-n", 3, "--group", "g", "--harness", "codex", "--harness-path", "no-codex"]
    assert run(*words, "--model", "m") == 1
    told = capsys.readouterr().err
    assert told.count("hint: install it") == 1
    assert "g-a-2: failed (`no-codex` is not installed)" in told


def test_a_group_as_json_has_every_execution_and_problem(
    stage: Stage, tmp_path: Path, capsys: Capture
) -> None:
    tasks = tasks_of(tmp_path / "tasks", "a", "b")
    (tasks / "b" / "task.toml").write_text("[")
    agent = stage.agent("call(); write('answer', '1')")
    document = run_json(capsys, "--tasks", tasks, "-n", 3, "-j", 3, "--", *agent, code=1)
    assert [one["execution"] for one in document["executions"]] == ["a-0", "a-1", "a-2"]
    assert len(document["problems"]) == 1 and "task.toml" in document["problems"][0]["message"]


def test_two_runs_in_one_folder_are_refused(stage: Stage, tmp_path: Path, capsys: Capture) -> None:
    tasks = tasks_of(tmp_path / "tasks", "a")
    with locked(stage.runs, ""):
        assert run("--tasks", tasks, "x") == 1
    assert "is being run by another process" in capsys.readouterr().err


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("gyre.cli.main", ["run", "--help"], "Usage: gyre run") == ""


# As processes.


@pytest.mark.slow
def test_a_proxy_of_its_own_ends_with_the_run(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "call(); call()")
    with FakeEngine() as engine:
        code, out, told = GyreRun(
            tmp_path, "--upstream", engine.url, "-x", "e1", "--json", "--", *agent
        ).end()
    assert (code, json.loads(out)["executions"][0]["outcome"]) == (0, "completed")
    assert "proxy ready: http://127.0.0.1:" in told
    assert read_log(tmp_path / "logs").calls.num_rows == 2
    assert not (tmp_path / "logs" / "proxy.json").exists()
    assert alive(str(tmp_path / "logs")) == []


EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
STORY = """
call()
write("up", "")
while not os.path.exists("{go}"):
    time.sleep(0.05)
os.remove("up")
task = os.environ["GYRE_EXECUTION"].rpartition("-")[0]
subprocess.run(["sh", "{examples}/" + task + "/solution/solve.sh"], check=True)
"""


@pytest.mark.slow
def test_a_group_that_is_interrupted_goes_on_where_it_stopped(tmp_path: Path) -> None:
    go, runs = tmp_path / "go", tmp_path / "runs"
    agent = write_agent(tmp_path, STORY.format(go=go, examples=EXAMPLES))
    arguments = ["--tasks", EXAMPLES, "--n", 4, "--jobs", 2, "--json", "--", *agent]

    def up() -> list[str]:
        """Those that run and have made their call."""
        names = [name for name, status in _statuses(runs).items() if status is Status.RUNNING]
        return [name for name in names if (runs / name / "workspace" / "up").exists()]

    with FakeEngine() as engine, ProxyProcess(tmp_path, engine.url):
        go.touch()
        first = GyreRun(tmp_path, *arguments)
        wait_for(lambda: list(_statuses(runs).values()).count(Status.DONE) >= 3, 60)
        go.unlink()
        wait_for(lambda: len(up()) == 2, 60)
        code, out, told = first.end(signal.SIGINT)
        before = _statuses(runs)
        interrupted = {name for name, status in before.items() if status is Status.INTERRUPTED}
        assert (code, len(interrupted)) == (130, 2)
        assert "ending what runs" in told and alive(str(tmp_path / "agent.py")) == []
        assert {one["execution"] for one in json.loads(out)["executions"]} == set(before)
        go.touch()
        code, out, told = GyreRun(tmp_path, *arguments).end()
        calls = read_log(tmp_path / "logs").calls.to_pylist()
    executions = json.loads(out)["executions"]
    assert code == 0, told
    assert [(one["outcome"], one["score"]) for one in executions] == [("completed", 1)] * 16
    made: dict[str, list[int]] = {}
    for call in calls:
        made.setdefault(call["execution_id"], []).append(call["execution_attempt"])
    names = {one["execution"] for one in executions}
    assert made == {name: [0, 1] if name in interrupted else [0] for name in names}
    for name in interrupted:
        assert (0, "ended", "run_timeout", None) in said(events_of(tmp_path / "logs", name))


def _statuses(runs: Path) -> dict[str, Status]:
    found = {path.parent.name: states.load(path.parent) for path in runs.glob("*/execution.json")}
    return {name: state.status for name, state in found.items() if state}


STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
call()
write("up", "")
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once_and_the_supervisors_end_the_rest(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, STUBBORN)
    with FakeEngine() as engine, ProxyProcess(tmp_path, engine.url):
        running = GyreRun(tmp_path, "-x", "e1", "--", *agent)
        wait_for((tmp_path / "runs" / "e1" / "workspace" / "up").exists, 60)
        running.process.send_signal(signal.SIGINT)
        wait_for(lambda: "ending what runs" in (tmp_path / "said.txt").read_text())
        code, _, _ = running.end(signal.SIGINT)
        assert code == 130 and alive(str(tmp_path / "agent.py")) != []
        wait_for(lambda: alive(str(tmp_path / "agent.py")) == [], 30)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_nothing_running_and_is_started_again(tmp_path: Path) -> None:
    text = f"call(); write('up', ''); time.sleep(1000 * (not os.path.exists('{tmp_path}/go')))"
    agent = write_agent(tmp_path, text)
    with FakeEngine() as engine:
        arguments = ["--upstream", engine.url, "-x", "e1", "--json", "--", *agent]
        running = GyreRun(tmp_path, *arguments)
        wait_for((tmp_path / "runs" / "e1" / "workspace" / "up").exists, 60)
        code, _, _ = running.end(signal.SIGKILL)
        assert code == -signal.SIGKILL
        (tmp_path / "go").touch()
        # At once: it waits until what the killed one left is gone.
        code, out, told = GyreRun(tmp_path, *arguments).end()
    assert (code, json.loads(out)["executions"][0]["attempt"]) == (0, 1), told
    assert said(events_of(tmp_path / "logs", "e1"))[1] == (0, "ended", "run_timeout", None)
    assert alive(str(tmp_path / "agent.py")) == [] and alive(str(tmp_path / "logs")) == []


@pytest.mark.slow
def test_a_proxy_that_dies_takes_no_outcome_with_it(tmp_path: Path) -> None:
    agent = write_agent(tmp_path, "call(); write('up', '')\nwhile not os.path.exists('go'): time.sleep(0.05)")
    work = tmp_path / "runs" / "e1" / "workspace"
    with FakeEngine() as engine, ProxyProcess(tmp_path, engine.url) as proxy:
        running = GyreRun(tmp_path, "-x", "e1", "--score", "echo 2", "--json", "--", *agent)
        wait_for((work / "up").exists, 60)
        proxy.process.kill()
        proxy.process.wait()
        (work / "go").touch()
        code, out, told = running.end()
    assert (code, json.loads(out)["executions"][0]["score"]) == (0, 2), told
    assert said(events_of(proxy.logs, "e1")) == [
        (0, "started", None, None),
        (0, "ended", "completed", None),
        (0, "scored", None, 2),
    ]


@pytest.mark.slow
def test_a_proxy_that_is_killed_and_started_again_in_mid_run_loses_nothing(tmp_path: Path) -> None:
    text = """
call()
write('up', '')
while True:
    try:
        call()
        break
    except OSError:
        time.sleep(0.05)
"""
    agent = write_agent(tmp_path, text)
    gate = tmp_path / "gate"

    def script(request: Request) -> Answer:
        return (
            Answer()
            if gate.exists() or not (tmp_path / "runs/e1/workspace/up").exists()
            else Answer(hang_after=0)
        )

    with FakeEngine(script=script) as engine:
        with ProxyProcess(tmp_path, engine.url) as first:
            running = GyreRun(tmp_path, "-x", "e1", "--json", "--", *agent)
            wait_for(lambda: len(engine.calls) == 2, 60)
            first.process.kill()
            first.process.wait()
        gate.touch()
        with ProxyProcess(tmp_path, engine.url, "--port", str(first.port)) as second:
            code, _, told = running.end()
            assert code == 0, told
            assert end(second) == 0
    calls = read_log(first.logs).calls.to_pylist()
    assert sorted(call["outcome"] for call in calls) == ["interrupted", "ok", "ok"]
    assert {(call["execution_id"], call["execution_attempt"]) for call in calls} == {("e1", 0)}
    assert said(events_of(first.logs, "e1"))[-1] == (0, "ended", "completed", None)


@pytest.mark.parametrize("name", ["lock", "proxy.txt", "Lock", "proxy.stdout.txt"])
def test_a_name_that_the_folder_of_runs_has_already(stage: Stage, capsys: Capture, name: str) -> None:
    assert run("-x", name, "--", "true") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"error: an execution cannot be called `{name}`: gyre itself writes that in the folder of runs",
        "hint: give it another name with `--execution`",
    ]
    assert not stage.runs.exists()


def test_something_else_where_a_folder_is_to_be(stage: Stage, tmp_path: Path, capsys: Capture) -> None:
    (stage.runs / "lock").mkdir(parents=True)
    (stage.runs / "e1").write_text("")
    assert run("--tasks", tasks_of(tmp_path / "t", "a"), "--", "true") == 1
    hint = "hint: move that out of the way, or give another `--runs`"
    said = capsys.readouterr().err.splitlines()
    assert said == [f"error: `{stage.runs}` cannot be run: `{stage.runs}/lock`: Is a directory", hint]
    assert run("-x", "e1", "--", "true") == 1
    said = capsys.readouterr().err.splitlines()[1:]
    assert said == [f"error: execution `e1` cannot be run: `{stage.runs}/e1`: File exists", hint]


@pytest.mark.parametrize("folder", ["runs", "logs"])
def test_a_workspace_that_is_ours(stage: Stage, capsys: Capture, folder: str) -> None:
    stage.runs.mkdir()
    assert run("--workspace", folder, "--", "true") == 2
    assert "`--workspace` is the folder of runs or log" in capsys.readouterr().err
