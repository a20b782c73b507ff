"""Logs for tests of the trees folder: a few executions that differ in what matters to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from gyre.treebuilder.build import BuildReport, build_trees
from gyre.treebuilder.offline.parts import Limits
from gyre.treebuilder.store.folder import MANIFEST, checksum
from tests.log.builders import Key, LogBuilder, growing_run, message
from tests.trees.world.emit import View, write_log
from tests.trees.world.story import Action, Story

SMALL = Limits(part_bytes=4000, part_executions=2, group_bytes=500)
"""So small that a few executions fill several parts."""
TOLD = Story((Action("blocking", pick=3), Action("work"), Action("compact"), Action("work"), Action("side")))


def write_some(log: LogBuilder, names: str = "abcdef") -> None:
    """Runs of different lengths, one worker each, with scores in two groups."""
    for number, name in enumerate(names):
        worker = log.worker(f"w{name}")
        growing_run(worker, 2 + number % 3, execution=name, seed=number)
        worker.event("scored", execution=name, score=float(number), group=f"g{number % 2}")
        worker.close()


def write_told(log: LogBuilder, name: str = "told", view: View | None = None) -> None:
    """One with a sub-agent, a compaction and a side call."""
    worker = log.worker(f"w-{name}")
    write_log(TOLD.act().rows, worker, name, view or View())
    worker.close()


def go_on(log: LogBuilder, name: str, calls: int = 1) -> None:
    """Further calls of a run that `write_some` began, in a segment of its own."""
    worker = log.worker(f"v{name}")
    last = [key for key in log.truth if key[0].startswith(f"{name}-")][-1]
    for number in range(calls):
        before = log.truth[last]
        assert before.prompt is not None and before.output is not None
        ids = [*before.prompt, *before.output, 7, 8, 9]
        key: Key = (f"{name}-more-{log.clock}-{number}", 0, 0)
        messages = [*before.messages, message(f"{name} goes on {number}")]
        worker.call(key[0], ids, [5, 6], messages, parent=last, execution=name)
        last = key
    worker.close()


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below a folder of trees, but the lock."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "build.lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def times_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}


def damage(path: Path, column: str) -> None:
    """Change a byte in the last page of a column, as a bad disk would."""
    group = pq.read_metadata(path).row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    [chunk] = [chunk for chunk in chunks if chunk.path_in_schema == column]
    content = bytearray(path.read_bytes())
    content[(chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size - 1] ^= (
        0xFF
    )
    path.write_bytes(content)


def forget(out: Path, table: str, *columns: str) -> None:
    """Make the files of a table what a gyre without these columns wrote."""
    manifest = json.loads((out / MANIFEST).read_text())
    for part in manifest["parts"]:
        path = out / table / f"{part['name']}.parquet"
        whole = pq.read_table(path, partitioning=None)
        pq.write_table(whole.drop_columns(list(columns)), path)
        part["checksums"][table] = checksum(path)
    (out / MANIFEST).write_text(json.dumps(manifest))


def build(log: LogBuilder, out: Path, **more: Any) -> BuildReport:
    """With small parts, unless told otherwise."""
    return build_trees(log.root, out, **({"limits": SMALL} | more))
