"""Builds that were killed, met a full disk, or met each other."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gyre.proxy.errors import LogFormatError
from gyre.treebuilder import build_trees, read_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline.parts import Limits
from gyre.treebuilder.options import Options
from tests.log.builders import LogBuilder
from tests.trees.store.logs import build, damage, files_in, write_some

KILLED = """
import os, sys
from gyre.treebuilder import build_trees
from tests.trees.store.logs import SMALL
log, out, at = sys.argv[1:]
build_trees(log, out, limits=SMALL, progress=lambda done, *_: done == int(at) and os._exit(9))
"""


@pytest.mark.parametrize(("at", "left"), [(1, 6), (4, 4), (6, 2)])
def test_a_build_that_was_killed_is_taken_up_by_the_next(
    log: LogBuilder, out: Path, at: int, left: int
) -> None:
    write_some(log)
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED, str(log.root), str(out), str(at)], cwd=root)
    assert done.returncode == 9
    with pytest.raises(TreeError, match="did not finish") as refused:
        read_trees(out)
    assert "build` again" in refused.value.hint
    report = build(log, out)
    assert report.ok and report.rebuilt == left
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


TWO_PROCESSES = """
import os, sys
from multiprocessing import active_children
from gyre.treebuilder import build_trees
from tests.trees.store.logs import SMALL

def killed(*_):
    print(*(child.pid for child in active_children()))
    sys.stdout.flush()
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    build_trees(*sys.argv[1:], limits=SMALL, jobs=2, progress=killed)
"""


def test_processes_of_a_build_that_was_killed_end_too(log: LogBuilder, out: Path, tmp_path: Path) -> None:
    write_some(log)
    script = tmp_path / "killed.py"
    script.write_text(TWO_PROCESSES)
    command = [sys.executable, str(script), str(log.root), str(out)]
    # Its output ends when nobody holds it any more: the processes are gone by then.
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -9
    assert len(done.stdout.split()) == 2
    assert build(log, out).ok


@pytest.mark.parametrize("table", ["executions", "nodes", "links", "trajectories"])
def test_a_file_of_trees_that_is_gone_or_damaged_is_built_again(
    log: LogBuilder, out: Path, table: str
) -> None:
    write_some(log)
    build(log, out)
    before = files_in(out)
    (out / table / "part-00000.parquet").unlink()
    (out / table / "part-00001.parquet").write_bytes(b"PAR1 no more")
    assert build(log, out).ok
    assert files_in(out) == before


def test_what_cannot_be_copied_any_more_is_built_again(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    build(log, out, limits=Limits())
    damage(out / "nodes" / "part-00000.parquet", "token_ids.list.element")
    write_some(log, "c")
    assert build(log, out, limits=Limits()).rebuilt == 3
    build(log, out.with_name("at-once"), limits=Limits())
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_what_was_changed_is_not_copied(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    build(log, out, limits=Limits())
    path = out / "nodes" / "part-00000.parquet"
    path.write_bytes(path.read_bytes().replace(b"gyre_trees_schema", b"gyre_trees_schemb"))
    write_some(log, "c")
    assert build(log, out, limits=Limits()).rebuilt == 3
    build(log, out.with_name("at-once"), limits=Limits())
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_files_of_two_builds_are_never_taken_for_one(log: LogBuilder, out: Path) -> None:
    """As a kill between two renames leaves them."""
    write_some(log)
    build(log, out, options=Options(cap=1))
    old = (out / "nodes" / "part-00000.parquet").read_bytes()
    build(log, out)
    before = files_in(out)
    (out / "nodes" / "part-00000.parquet").write_bytes(old)
    with pytest.raises(TreeError, match="did not finish"):
        read_trees(out)
    assert build(log, out).rebuilt == 2
    assert files_in(out) == before


@contextmanager
def no_file_longer_than(count: int) -> Iterator[None]:
    """As a disk with so much room would: writing beyond it fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("count", [0, 100, 3000])
def test_a_full_disk_is_told_and_leaves_what_was_there(log: LogBuilder, out: Path, count: int) -> None:
    write_some(log, "abc")
    build(log, out)
    write_some(log, "def")
    with no_file_longer_than(count), pytest.raises(TreeError, match="cannot write") as told:
        build(log, out)
    assert str(out) in told.value.message
    assert not [name for name in files_in(out) if name.endswith(".tmp")]
    assert build(log, out).rebuilt == 3
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_what_is_no_log_makes_no_folder(tmp_path: Path, out: Path) -> None:
    with pytest.raises(LogFormatError):
        build_trees(tmp_path / "nothing", out)
    assert not out.exists()


def test_a_folder_with_other_files_is_not_built_into(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    out.mkdir()
    (out / ".gyre-trees.json.tmp").write_text("left by a kill")
    build(log, out)
    (out / "gyre-trees.json").unlink()
    (out / "thesis.tex").write_text("dear to me")
    with pytest.raises(TreeError, match="holds other files"):
        build(log, out)


def test_two_builds_at_a_time_are_refused(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    refused: list[str] = []

    def again(*_: object) -> None:
        with pytest.raises(TreeError) as problem:
            build(log, out)
        refused.append(problem.value.message)

    build(log, out, progress=again)
    assert refused == [f"another process builds into `{out}`"]
