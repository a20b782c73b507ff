"""A Claude Code run that hits its time limit, under a proxy that is killed and started again midway."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import Role
from gyre.treebuilder.verify import verify_trees
from tests.engines.agent_script import AgentScript, Step
from tests.engines.fake import FakeEngine
from tests.harnesses.programs import program
from tests.proxy.processes import ProxyProcess, end, wait_for

pytestmark = pytest.mark.harness

CHILDREN = tuple(f"SUB{letter}" for letter in "ABCDEF")
"""With their parent more contexts than trajectories are kept."""
LIMIT_S = 20
SCRIPT = {
    "MAINTASK": (
        Step(commands=("echo one >> work.txt",)),
        Step(delegates=[f"{name}: look around" for name in CHILDREN]),
        Step(commands=("echo two >> work.txt",), how={"delay": 1.5}),
        Step(commands=("echo three >> work.txt",)),
        Step(text="This never ends", how={"gap": 3, "piece": 2}),
    ),
    **{name: (Step(commands=("pwd",)), Step(text="nothing there")) for name in CHILDREN},
}


def gyre_run(folder: Path, proxy: str) -> subprocess.Popen[str]:
    options = {
        "--harness": "claude-code",
        "--harness-path": str(program("claude")),
        "--model": "fake-model",
        "--instruction": "MAINTASK",
        "--proxy": proxy,
        "--runs": str(folder / "runs"),
        "--execution": "e1",
        "--timeout": f"{LIMIT_S}s",
        "--score": "wc -l < work.txt",
        "--env": "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS=1",
    }
    words = [word for option in options.items() for word in option]
    command = [sys.executable, "-m", "gyre.cli.main", "run", "--json", *words]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run_with_a_kill(folder: Path, engine: FakeEngine, script: AgentScript) -> dict[str, Any]:
    """What `gyre run` says of the execution; the proxy dies while the third answer is under way."""
    with ProxyProcess(folder, engine.url) as first:
        run = gyre_run(folder, first.url)
        wait_for(lambda: script.tried["MAINTASK-3"] or run.poll() is not None, 60)
        end(first, signal.SIGKILL)
        with ProxyProcess(folder, engine.url, "--port", str(first.port)) as second:
            out, said = run.communicate(timeout=90)
            assert out, said
            end(second)
    document = json.loads(out)
    (execution,) = document["executions"]
    return dict(execution)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, FakeEngine, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("timed-out")
    script = AgentScript(SCRIPT)
    with FakeEngine(script=script, model="fake-model") as engine:
        execution = run_with_a_kill(folder, engine, script)
    return folder, engine, execution


Ended = tuple[Path, FakeEngine, dict[str, Any]]


def test_the_work_is_kept_and_scored(ended: Ended) -> None:
    _, _, execution = ended
    assert (execution["outcome"], execution["score"]) == ("timed_out", 3), execution
    assert LIMIT_S <= execution["seconds"] < LIMIT_S + 20
    assert (Path(execution["workspace"]) / "work.txt").read_text() == "one\ntwo\nthree\n"


def test_nothing_of_it_is_lost(ended: Ended) -> None:
    folder, engine, _ = ended
    log = read_log(folder / "logs")
    rows = [row for row in log.calls.to_pylist() if row["wire"] == "messages"]
    assert len(rows) == len(engine.calls)
    # Four of the parent, two of each child; the answer under way at the kill, and that at the limit.
    assert Counter(row["outcome"] for row in rows) == {"ok": 16, "interrupted": 1, "client_gone": 1}
    assert {row["capture_quality"] for row in rows if row["outcome"] == "ok"} == {"exact"}
    assert check(folder / "logs").ok


def test_it_is_a_tree_with_its_score_and_no_more_than_five_trajectories(ended: Ended) -> None:
    folder, _, execution = ended
    assert build_trees(folder / "logs", folder / "trees", strict=True).ok
    assert verify_trees(folder / "trees") == []
    trees = read_trees(folder / "trees")
    (summary,) = trees.executions()
    assert (summary.outcome, summary.score, summary.quarantined) == ("timed_out", 3, 0)
    assert summary.artifact == execution["workspace"]
    tree = trees.tree("e1")
    roles = {link.context_id: link.role for link in tree.links}
    assert Counter(roles.values()) == {Role.MAIN: 1, Role.SUB: 6}
    kept = [path for path in tree.trajectories if not path.stub]
    assert [path.role for path in kept] == [Role.MAIN] + [Role.SUB] * 4
    assert set(tree.left_out) == {"cap:sub"}
