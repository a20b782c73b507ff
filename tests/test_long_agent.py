"""The agent of examples/long-agent: it delegates and compacts, and its trees say so."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from gyre.proxy.log.score import write_scores
from gyre.proxy.scores import Scored
from gyre.trainer.rollout.task import find_tasks, load_task
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import ExecutionTree
from gyre.treebuilder.verify import verify_trees
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.running import RunningProxy

EXAMPLE = Path(__file__).parents[1] / "examples" / "long-agent"
MODULES = ("agent", "expert", "table", "tasks", "words")
LIMIT = 4900
"""Bytes, which are the fake engine's tokens: the manual and eight files or so."""


OPTIONS = {
    ("--cap", "1"): Options(cap=1),
    ("--cap", "5"): Options(cap=5),
    ("--select", "all"): Options(rule=Rule.ALL),
}


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    """The example's modules, which are no part of the installed project."""
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:  # others of these names, of another example
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(**{name: import_module(name) for name in MODULES})
        for name in MODULES:
            sys.modules.pop(name)


@pytest.fixture(scope="module")
def task(example: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first list that is trained on."""
    folder = tmp_path_factory.mktemp("tasks")
    example.tasks.save(folder)
    return folder / "train" / "list-00"


def begin(task: Path, folder: Path) -> None:
    folder.mkdir()
    for given in (task / "environment").iterdir():
        (folder / given.name).write_bytes(given.read_bytes())


def run(task: Path, workspace: Path, url: str) -> subprocess.CompletedProcess[str]:
    begin(task, workspace)
    instruction = (task / "instruction.md").read_text().strip()
    command = [sys.executable, str(EXAMPLE / "agent.py"), "fake", instruction, "--limit", f"{LIMIT}"]
    env = {"PATH": os.environ["PATH"], "OPENAI_BASE_URL": url}
    return subprocess.run(command, cwd=workspace, env=env, capture_output=True, text=True, timeout=60)


def score(task: Path, workspace: Path, rewards: Path) -> float:
    rewards.mkdir()
    env = {"PATH": os.environ["PATH"], "GYRE_REWARD_DIR": str(rewards)}
    subprocess.run(["sh", str(task / "tests" / "test.sh")], cwd=workspace, env=env, check=True)
    return float((rewards / "reward.txt").read_text())


def expert(example: Any, **how: Any) -> Any:
    """The expert as a script of the fake engine."""
    knows = example.expert.Expert(Random(0), **how)
    return lambda request: Answer(text=knows.ask(request.json["messages"]).text)


@pytest.fixture(scope="module")
def recorded(example: Any, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one execution of somebody who knows the work."""
    folder = tmp_path_factory.mktemp("recorded")
    with FakeEngine(script=expert(example)) as engine, RunningProxy(folder / "logs", engine) as proxy:
        done = run(task, folder / "work", proxy.base("long-1"))
    assert done.returncode == 0, done.stderr
    assert score(task, folder / "work", folder / "rewards") == 1.0
    return folder / "logs"


def built(logs: Path, folder: Path, **options: Any) -> ExecutionTree:
    assert build_trees(logs, folder, options=Options(**options)).ok
    assert verify_trees(folder) == []
    return read_trees(folder).tree("long-1")


def roots(tree: ExecutionTree) -> Counter[tuple[str, str | None, str]]:
    """How contexts began: cause, step, role."""
    first = {link.context_id: link for link in reversed(tree.links)}
    return Counter((str(link.cause), link.step, str(link.role)) for link in first.values())


def test_the_tree_tells_who_was_delegated_to_and_where_a_history_was_replaced(
    recorded: Path, tmp_path: Path
) -> None:
    tree = built(recorded, tmp_path / "trees")
    assert roots(tree) == {
        ("start", None, "main"): 1,
        ("delegation", "blocking", "sub"): 6,
        ("compaction", "summary", "main_summary"): 1,
        ("compaction", "restart", "main"): 1,
    }
    assert {str(link.cause) for link in tree.links} == {"start", "continuation", "delegation", "compaction"}
    assert {str(link.confidence) for link in tree.links} == {"proven", "inferred"}


def test_all_contexts_share_the_manual(recorded: Path, tmp_path: Path, example: Any) -> None:
    tree = built(recorded, tmp_path / "trees", rule=Rule.ALL)
    paths = [tree.path(kept.leaf_node) for kept in tree.trajectories]
    assert len(paths) == 9 and len({path[0].node_id for path in paths}) == 1
    assert len(paths[0][0].token_ids) > len(example.agent.MANUAL)
    flat = sum(len(node.token_ids) for path in paths for node in path)
    assert flat > 6 * sum(len(node.token_ids) for node in tree.nodes)


def test_a_cap_keeps_what_the_report_says(recorded: Path, tmp_path: Path) -> None:
    """Both main contexts before the summary, and that before helpers."""
    kept = {}
    for name, options in {"1": {"cap": 1}, "5": {"cap": 5}, "all": {"rule": Rule.ALL}}.items():
        tree = built(recorded, tmp_path / name, **options)
        report = json.loads((tmp_path / name / "report.json").read_text())
        targets = sum(one.targets for one in tree.trajectories)
        assert (report["kept_targets"], report["trajectories"]) == (targets, len(tree.trajectories))
        assert report["kept_targets"] + sum(report["left_out"].values()) == report["targets"]
        kept[name] = Counter(str(one.role) for one in tree.trajectories), report["kept_share"]
    assert kept["1"][0] == {"main": 1}
    assert kept["5"][0] == {"main": 2, "main_summary": 1, "sub": 2}
    assert kept["all"][0] == {"main": 2, "main_summary": 1, "sub": 6}
    assert kept["1"][1] < 0.5 < kept["5"][1] < 1.0 == kept["all"][1]


def test_the_same_answers_give_the_same_trees(
    example: Any, task: Path, recorded: Path, tmp_path: Path
) -> None:
    with FakeEngine(script=expert(example)) as engine, RunningProxy(tmp_path / "logs", engine) as proxy:
        run(task, tmp_path / "work", proxy.base("long-1"))
    once, again = built(recorded, tmp_path / "once"), built(tmp_path / "logs", tmp_path / "again")
    assert [ids(node) for node in once.nodes] == [ids(node) for node in again.nodes]
    assert [(link.cause, link.context_id) for link in once.links] == [
        (link.cause, link.context_id) for link in again.links
    ]


def ids(node: Any) -> tuple[Any, list[int], bool]:
    return node.parent_id, node.token_ids.tolist(), node.admitted


@pytest.mark.parametrize("said", ["", "lamp", "WRITE /etc/passwd lamp", "TASK go on", "READ ../key"])
def test_answers_that_are_no_commands_end_well_and_are_worth_nothing(
    task: Path, tmp_path: Path, said: str
) -> None:
    with FakeEngine(script=Answer(text=said)) as engine:
        done = run(task, tmp_path / "work", f"{engine.url}/v1")
    assert done.returncode == 0, done.stderr
    systems = {request.json["messages"][0]["content"] for request in engine.calls}
    assert len(systems) == 1, "a helper was started"
    assert score(task, tmp_path / "work", tmp_path / "rewards") == 0.0


def test_an_expert_with_a_habit_is_worth_less(example: Any, task: Path, tmp_path: Path) -> None:
    with FakeEngine(script=expert(example, right=0.5)) as engine:
        run(task, tmp_path / "work", f"{engine.url}/v1")
    assert 0.0 < score(task, tmp_path / "work", tmp_path / "rewards") < 0.8


def test_an_engine_that_refuses_is_told(task: Path, tmp_path: Path) -> None:
    with FakeEngine(script=Answer(status=500, text="out of order")) as engine:
        done = run(task, tmp_path / "work", f"{engine.url}/v1")
    assert done.returncode == 1 and "the model answers 500" in done.stderr
    assert "Traceback" not in done.stderr


def test_tasks_that_are_held_out_share_nothing_with_the_others(example: Any, task: Path) -> None:
    said = {kind: texts(task.parents[1] / kind) for kind in ("train", "held-out")}
    assert {kind: len(found) for kind, found in said.items()} == {"train": 48, "held-out": 32}
    words = {kind: set(re.findall(r"\w+", " ".join(found))) for kind, found in said.items()}
    common = {"Read", "and", "write", "its", "word", "to", "txt"}
    assert words["train"] & words["held-out"] == common
    assert all(load_task(folder).needs_container is None for folder in find_tasks(task.parent))


def texts(folder: Path) -> list[str]:
    """Instruction and given file of each task."""
    tasks = sorted(folder.iterdir())
    given = {task: next((task / "environment").iterdir()).read_text() for task in tasks}
    return [f"{(task / 'instruction.md').read_text()} {given[task]}" for task in tasks]


def test_the_table_says_what_a_build_and_a_run_were_like(
    example: Any, recorded: Path, tmp_path: Path
) -> None:
    computed = {"tokens/tree": 100, "tokens/flat": 900, "seconds/pass": 2.0}
    skipped = {"tokens/tree": 0, "tokens/flat": 0}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(computed)}\n{json.dumps(skipped)}\n")
    rows = []
    for way in example.table.WAYS[:4]:
        trees = tmp_path / way.name
        assert build_trees(recorded, trees, options=OPTIONS[way.build]).ok
        rows.append(example.table.row(way, trees, tmp_path, 0.25))
    assert [row.trajectories for row in rows] == [1, 5, 9, 1]
    assert [row.tokens for row in rows] == [100, 100, 100, 900]
    assert rows[2].kept == 1.0
    head, _, untrained, first, *_ = example.table.table(rows, 0.2).splitlines()
    assert head.startswith("| | targets kept |")
    assert untrained == "| untrained | | | | | | 0.20 |"
    assert first == f"| cap 1 | {rows[0].kept:.1%} | 1.0 | 100 | 2.0 | 100.0% | 0.25 |"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_table_of_a_recorded_group(example: Any, task: Path, tmp_path: Path) -> None:
    """Two executions of different worth, trained on in every way that the table has."""
    for number, right in enumerate((1.0, 0.3)):
        script, logs = expert(example, right=right), tmp_path / "logs"
        with FakeEngine(script=script) as engine, RunningProxy(logs, engine) as proxy:
            run(task, tmp_path / f"work-{number}", proxy.base(f"e{number}"))
        write_scores(tmp_path / "logs", [Scored(f"e{number}", score=right, group="list")])
    command = [sys.executable, str(EXAMPLE / "table.py"), str(tmp_path / "logs"), "--model", "tiny"]
    subprocess.run([*command, "--epochs", "1", "--out", str(tmp_path / "table")], check=True)
    rows = json.loads((tmp_path / "table" / "table.json").read_text())
    kept = {row["way"]: row["kept"] for row in rows}
    assert kept["cap 1"] < kept["cap 5"] < kept["no cap"] == 1.0
    tokens = {row["way"]: row["tokens"] for row in rows}
    assert all(tokens[way] < tokens[f"{way}, path by path"] / 2 for way in ("cap 5", "no cap"))
    assert all(row["seconds"] > 0 for row in rows)
