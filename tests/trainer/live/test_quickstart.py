"""The quickstart: its tasks, its agents, and a model that can do the tasks and hardly ever does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from gyre.elastic.engine.text.conversation import read_conversation
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.trainer.live.config import load_run
from gyre.trainer.rollout.score import own_scorer, run_scorer
from gyre.trainer.rollout.task import load_task, prepare
from gyre.treebuilder import read_trees
from gyre.treebuilder.build import build_trees
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.test_engine import engine_process

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart"
KINDS = ("tiny", "smollm2", "smollm2-copy")
MODULES = ("agent_tiny", "agent", "tasks", "warmstart")
GOOD = {
    "tiny": ["READ a.txt", "WRITE b.txt apple", "DONE"],
    "write": ["WRITE b.txt apple", "DONE"],
    "copy": [" cat a.txt\n", " echo apple > b.txt\n", " exit\n"],
}
"""What a model says that does it right."""


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's modules, which are no part of the installed project."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(QUICKSTART))
        yield SimpleNamespace(**{name: import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def task(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the word `apple` from `a.txt` to `b.txt`."""
    folder = tmp_path_factory.mktemp("tasks")
    example.tasks.Work("apple", "b.txt", "a.txt").save(folder)
    return folder / "apple-a-b"


# -- tasks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_out_is_not_trained_on(example: Any, kind: str) -> None:
    train, held_out = example.tasks.works(kind)
    assert len(train) >= 200 and len(held_out) >= 120
    assert not set(train) & set(held_out)
    if kind != "tiny":
        for part in ("word", "goal", "given"):
            trained, kept = ({getattr(work, part) for work in works} for works in (train, held_out))
            assert not trained & kept - {""}


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_are_folders_that_run_on_this_machine(example: Any, tmp_path: Path, kind: str) -> None:
    _, held_out = example.tasks.works(kind)
    for work in held_out[:3]:
        work.save(tmp_path)
        loaded = load_task(tmp_path / work.name)
        assert loaded.instruction.strip() == work.instruction and loaded.needs_container is None
        prepare(loaded, tmp_path / "workspace" / work.name)
        given = {path.name for path in (tmp_path / "workspace" / work.name).iterdir()}
        assert given == {work.given} - {""}


@pytest.mark.parametrize(
    ("left", "score"),
    [
        ({"b.txt": "apple\n"}, 1.0),
        ({"b.txt": "apple"}, 0.5),
        ({"b.txt": "apple\n\n"}, 0.5),
        ({"b.txt": "an apple\n"}, 0.5),
        ({"b.txt": "pear\n"}, 0.2),
        ({"b.txt": ""}, 0.2),
        ({}, 0.0),
        ({"c.txt": "apple\n"}, 0.0),
        ({"b.txt": "apple\n", "c.txt": "apple\n"}, 0.5),
        ({"b.txt": "apple\n", "a.txt": "pear\n"}, 0.5),
        ({"b.txt": "apple\n", ".unfinished": ""}, 0.5),
        ({"b.txt": "pear\n", ".unfinished": ""}, 0.1),
    ],
)
def test_what_work_is_worth(task: Path, tmp_path: Path, left: dict[str, str], score: float) -> None:
    loaded, workspace = load_task(task), tmp_path / "workspace"
    prepare(loaded, workspace)
    for name, text in left.items():
        (workspace / name).write_text(text)
    verdict = run_scorer(own_scorer(loaded, {}), workspace, tmp_path / "scorer", 10.0)
    assert verdict.score == score, verdict


# -- agents ------------------------------------------------------------------------------------------------


def work(workspace: Path, kind: str, answers: list[str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The requests of an agent that is given these answers, and the files it leaves."""
    workspace.mkdir(exist_ok=True)
    (workspace / "a.txt").write_text("apple\n")
    how = ["-S", "agent_tiny.py"] if kind == "tiny" else ["agent.py", "--family", kind]
    how = [str(QUICKSTART / word) if word.endswith(".py") else word for word in how]
    with FakeEngine(script=[Answer(text=text, close=True) for text in answers]) as engine:
        subprocess.run(
            [sys.executable, *how, "fake", "Copy a.txt to b.txt.\n"],
            cwd=workspace,
            env={"OPENAI_BASE_URL": f"{engine.url}/v1", "OPENAI_API_KEY": "unused"},
            check=True,
        )
        requests = [request.json for request in engine.calls]
    return requests, {path.name: path.read_text() for path in workspace.iterdir()}


@pytest.mark.parametrize("kind", GOOD)
def test_an_agent_does_what_the_model_says(tmp_path: Path, kind: str) -> None:
    requests, left = work(tmp_path, kind, GOOD[kind])
    assert left == {"a.txt": "apple\n", "b.txt": "apple\n"}
    said = [message["content"] for message in requests[-1]["messages"] if message["role"] == "assistant"]
    assert said[1 - len(GOOD[kind]) :] == GOOD[kind][:-1]
    assert {request["max_tokens"] for request in requests} == {14}


def test_the_tiny_model_is_asked_as_it_was_taught(example: Any, tmp_path: Path) -> None:
    requests, _ = work(tmp_path, "tiny", GOOD["tiny"])
    taught = example.warmstart.skilled(example.tasks.Work("apple", "b.txt", "a.txt"))
    assert [request["messages"] for request in requests] == [taught[:2], taught[:4], taught[:6]]


@pytest.mark.parametrize("kind", GOOD)
def test_an_agent_whose_model_comes_to_no_end_gives_up_and_says_so(tmp_path: Path, kind: str) -> None:
    requests, left = work(tmp_path, kind, ["What a nice day\nDONE"])
    assert len(requests) == 4
    assert left == {"a.txt": "apple\n", ".unfinished": ""}
    assert requests[-1]["messages"][-1] == {"role": "user", "content": "ERROR"}


@pytest.mark.parametrize(
    "name", ["../a.txt", "/etc/a.txt", ".unfinished", "x/a.txt", ".txt", "a.sh", "", "~"]
)
@pytest.mark.parametrize("command", ["READ {}", "WRITE {} apple"])
def test_an_agent_touches_files_of_its_own_folder_only(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, command: str
) -> None:
    place = tmp_path / "workspace"
    (place / "x").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("secret\n")
    monkeypatch.chdir(place)
    assert example.agent_tiny.act(command.format(name)) == "ERROR"
    assert [path.name for path in place.rglob("*")] == ["x"]
    assert (tmp_path / "a.txt").read_text() == "secret\n"


def test_a_refusal_is_told_in_the_engines_words(tmp_path: Path) -> None:
    with FakeEngine(script=Answer(status=403, text="no more calls", close=True)) as engine:
        env = {"OPENAI_BASE_URL": f"{engine.url}/v1", "OPENAI_API_KEY": "unused"}
        command = [sys.executable, "-S", str(QUICKSTART / "agent_tiny.py"), "fake", "Copy."]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no more calls" in done.stderr and "Traceback" not in done.stderr


def test_a_terminal_is_a_plain_text_that_grows_token_by_token(example: Any) -> None:
    template = ChatTemplate(
        AutoTokenizer.from_pretrained(QUICKSTART / "tiny"), (QUICKSTART / "plain.jinja").read_text()
    )
    told = ["apple", "", "ERROR"]
    messages: list[dict[str, str]] = [{"role": "user", "content": "Task: Copy a.txt to b.txt."}]
    prompt = template.encode(template.render(read_conversation(messages)))
    for said, answer in zip(GOOD["copy"], told, strict=True):
        expected = prompt + template.encode(said)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": answer}]
        prompt = template.encode(template.render(read_conversation(messages)))
        assert prompt[: len(expected)] == expected
    assert template.render(read_conversation(messages)) == (
        "Task: Copy a.txt to b.txt.\n$ cat a.txt\napple\n$ echo apple > b.txt\n$ exit\nERROR\n$"
    )


# -- the model ---------------------------------------------------------------------------------------------


def test_the_model_can_do_the_tasks_and_hardly_ever_does(example: Any) -> None:
    model = Qwen3ForCausalLM.from_pretrained(QUICKSTART / "tiny", dtype=torch.float32)
    student = example.warmstart.Student(model, AutoTokenizer.from_pretrained(QUICKSTART / "tiny"))
    _, held_out = example.tasks.works("tiny")
    torch.manual_seed(0)
    assert example.warmstart.is_in_band(student, held_out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_run_files_say_what_can_be_run(kind: str) -> None:
    settings = load_run(QUICKSTART / f"{kind}.toml")
    assert settings.tasks[0].folder == str(QUICKSTART / "out" / kind / "train")
    assert settings.evaluation.tasks[0].folder == str(QUICKSTART / "out" / kind / "held-out")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_agents_find_the_model_as_it_was_made(example: Any, tmp_path: Path) -> None:
    example.tasks.save("tiny", tmp_path / "tasks")
    agent = [sys.executable, "-S", str(QUICKSTART / "agent_tiny.py"), "{model}", "{instruction}"]
    with engine_process("--model", str(QUICKSTART / "tiny"), "--threads", "1") as (url, _):
        where = ["--upstream", url, "--logs", str(tmp_path / "logs"), "--runs", str(tmp_path / "runs")]
        tasks = ["--tasks", str(tmp_path / "tasks" / "held-out"), "--n", "1"]
        command = [sys.executable, "-m", "gyre.cli.main", "run", *tasks, *where, "--", *agent]
        subprocess.run(command, check=True)
    build_trees(tmp_path / "logs", tmp_path / "trees")
    executions = list(read_trees(tmp_path / "trees").executions())
    assert len(executions) >= 120
    assert 0.10 <= sum(one.score == 1.0 for one in executions) / len(executions) <= 0.40
    # What an agent sends back is what was sampled, so an execution is one path.
    assert {cause for one in executions for cause in one.causes} == {"start", "continuation"}
    assert {one.trajectories for one in executions} == {1}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_warm_start_from_nothing_ends_where_it_should(tmp_path: Path) -> None:
    command = [sys.executable, str(QUICKSTART / "warmstart.py"), str(tmp_path / "made")]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "made").iterdir()} == {
        path.name for path in (QUICKSTART / "tiny").iterdir()
    }
