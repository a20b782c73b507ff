"""A seal killed before any of its file operations loses nothing and doubles nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.prune import prune
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, growing_run

PROGRAM = """
import os, sys
from pathlib import Path

root, step, action = sys.argv[1], int(sys.argv[2]), sys.argv[3]
left = step

def dying(function):
    def wrapper(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*args, **kwargs)
    return wrapper

from gyre.proxy.log.sealing.prune import prune
from gyre.proxy.log.sealing.seal import seal

os.replace, os.fsync, Path.unlink = dying(os.replace), dying(os.fsync), dying(Path.unlink)
if action == "seal":
    seal(root)
else:
    prune(root, executions=["e1"])
"""


def run_until(root: Path, step: int, action: str) -> bool:
    """Run, killed before file operation number `step`; False when it was done before that."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(root), str(step), action])
    assert done.returncode in (0, 9)
    return done.returncode == 9


def build(root: Path) -> LogBuilder:
    builder = LogBuilder(root)
    for name in ("w1", "w2"):
        worker = builder.worker(name)
        growing_run(worker, 3, execution="e1" if name == "w1" else "e2")
        worker.event("ended", execution=f"e{name[1]}")
        worker.intent(f"lost-{name}", execution=f"e{name[1]}")
        worker.die()
    return builder


def assert_whole(builder: LogBuilder, root: Path) -> None:
    log = read_log(root)
    assert sorted(log.calls["call_id"].to_pylist()) == sorted(
        [key[0] for key in builder.truth] + ["lost-w1", "lost-w2"]
    )
    assert log.executions["event"].to_pylist() == ["ended", "ended"]
    for key, truth in builder.truth.items():
        ids = log.prompt_ids(*key)
        assert ids is not None
        assert ids.tolist() == truth.prompt
        assert log.request_body(*key) == truth.body
    assert check(root).findings == []


@pytest.mark.parametrize("step", range(16))
def test_a_seal_killed_at_any_step(tmp_path: Path, step: int) -> None:
    builder = build(tmp_path)
    killed = run_until(tmp_path, step, "seal")
    assert killed == (step < 15)
    assert_whole(builder, tmp_path)
    seal(tmp_path)
    assert_whole(builder, tmp_path)
    assert builder.folder.segments() == []
    assert builder.folder.temporary() == []
    assert all(len(list((tmp_path / name).iterdir())) == 1 for name in ("calls", "messages", "executions"))


@pytest.mark.parametrize("step", [3, 6])
def test_a_seal_after_one_that_was_killed_twice(tmp_path: Path, step: int) -> None:
    builder = build(tmp_path)
    run_until(tmp_path, step, "seal")
    run_until(tmp_path, 9 - step, "seal")
    assert_whole(builder, tmp_path)
    seal(tmp_path)
    assert_whole(builder, tmp_path)


def test_new_segments_between_a_killed_seal_and_the_next(tmp_path: Path) -> None:
    builder = build(tmp_path)
    assert run_until(tmp_path, 7, "seal")
    worker = builder.worker("w3")
    worker.call("later", execution="e3")
    worker.die()
    assert_whole(builder, tmp_path)
    seal(tmp_path)
    assert_whole(builder, tmp_path)


@pytest.mark.parametrize("step", range(0, 9, 2))
def test_a_prune_killed_at_any_step_is_finished_by_the_next(tmp_path: Path, step: int) -> None:
    build(tmp_path)
    seal(tmp_path)
    run_until(tmp_path, step, "prune")
    assert set(read_log(tmp_path, executions=["e2"]).calls["call_id"].to_pylist()) == {
        "e2-00000",
        "e2-00001",
        "e2-00002",
        "lost-w2",
    }
    assert check(tmp_path).ok
    prune(tmp_path, executions=["e1"])
    log = read_log(tmp_path)
    assert set(log.calls["execution_id"].to_pylist()) == set(log.executions["execution_id"].to_pylist())
    assert log.messages.num_rows == 4
    assert check(tmp_path).findings == []
