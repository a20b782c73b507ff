"""Reading a folder of trees. `read_trees` is the way in; nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey, advantages
from gyre.treebuilder.store.decode import executions_of, summary_of, tree_of
from gyre.treebuilder.store.encode import Tables
from gyre.treebuilder.store.folder import Manifest, TreesFolder, checksum, digest_in
from gyre.treebuilder.store.schema import SCHEMAS, TABLES
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree

_TREE = ("nodes", "links", "trajectories")
_WHO = ("execution_id", "execution_attempt")


def read_trees(path: str | Path) -> Trees:
    """The trees of a finished build.

    Raises:
        TreeError: no trees, of a newer format, or of a build that did not finish.
    """
    folder = TreesFolder(Path(path))
    manifest = folder.manifest()
    whole = all(
        digest_in(folder.part(table, part.name)) == part.digest for part in manifest.parts for table in TABLES
    )
    if not manifest.complete or not whole:
        hint = "unless one is under way, run `gyre-trees build` again: it goes on where that one stopped"
        raise TreeError(f"the last build of `{path}` did not finish", hint)
    return Trees(folder, manifest)


class Trees:
    """A folder of trees; of several executions one row group is in memory at a time."""

    def __init__(self, folder: TreesFolder, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._sums = {part.name: part.checksums for part in manifest.parts}
        self._whole: set[tuple[str, str]] = set()
        self._attempts: dict[str, set[AttemptKey]] = {}

    @property
    def path(self) -> Path:
        return self.folder.root

    @property
    def options(self) -> Options:
        return self.manifest.options

    @property
    def log(self) -> Path:
        """The log it was built from, as that was given."""
        return Path(self.manifest.log)

    def executions(self) -> list[ExecutionSummary]:
        """Every attempt of every execution, by first appearance in the log."""
        return [summary_of(row) for part in self.parts() for row in self._rows(part)]

    def tree(self, execution_id: str, attempt: int | None = None) -> ExecutionTree:
        """One tree; without `attempt` that of the last attempt.

        Raises:
            TreeError: no such execution, or one that could not be rebuilt.
        """
        found = [
            (row["execution_attempt"], part, row)
            for part in self.parts()
            for row in self._rows(part, execution_id)
            if attempt in (None, row["execution_attempt"])
        ]
        if not found:
            text = f"`{execution_id}`" if attempt is None else f"attempt {attempt} of `{execution_id}`"
            raise TreeError(f"no execution {text} in `{self.path}`")
        number, part, row = max(found, key=lambda each: each[0])
        if row["skipped"] is not None:
            raise TreeError(f"execution `{execution_id}` could not be rebuilt: {row['skipped']}")
        self._require_whole(part, _TREE)
        files = {table: self.folder.part(table, part) for table in _TREE}
        return tree_of(
            row, {table: _rows_of(path, table, (execution_id, number)) for table, path in files.items()}
        )

    def __iter__(self) -> Iterator[tuple[ExecutionSummary, ExecutionTree]]:
        """(summary, tree) of all that could be rebuilt, in stored order."""
        for part in self.parts():
            self._require_whole(part, TABLES)
            for row, tables in stored(self.folder, part):
                if row["skipped"] is None:
                    yield summary_of(row), tree_of(row, tables)

    def several(self, keys: Collection[AttemptKey]) -> Iterator[tuple[ExecutionSummary, ExecutionTree]]:
        """(summary, tree) of those attempts that could be rebuilt, in stored order; others are not read.

        Raises:
            TreeError: a file that has some of them is damaged. Others may still be asked for.
        """
        wanted = set(keys)
        for part in self.parts():
            names = {name for name, _ in wanted & self.attempts(part)}
            if not names:
                continue
            self._require_whole(part, TABLES)
            for row, tables in stored(self.folder, part, names):
                if (row["execution_id"], row["execution_attempt"]) in wanted and row["skipped"] is None:
                    yield summary_of(row), tree_of(row, tables)

    def attempts(self, part: str) -> set[AttemptKey]:
        """What a part holds."""
        if part not in self._attempts:
            rows = self._rows(part)
            self._attempts[part] = {(row["execution_id"], row["execution_attempt"]) for row in rows}
        return self._attempts[part]

    def advantages(self) -> dict[AttemptKey, float]:
        """By (execution_id, attempt); those that are left out of training are absent."""
        return advantages(self.executions())

    def parts(self) -> list[str]:
        return [part.name for part in self.manifest.parts]

    def _rows(self, part: str, name: str | None = None) -> list[dict[str, Any]]:
        self._require_whole(part, ("executions",))
        return execution_rows(self.folder, part, None if name is None else [name])

    def _require_whole(self, part: str, tables: Sequence[str]) -> None:
        """Each file is looked at once, before it is read: one that was changed may say anything."""
        new = [table for table in tables if (table, part) not in self._whole]
        require_whole(self.folder, part, {table: self._sums[part].get(table, "") for table in new})
        self._whole.update((table, part) for table in new)


def require_whole(folder: TreesFolder, part: str, sums: Mapping[str, str]) -> None:
    """Raises TreeError for a file that is not the one that was built; `sums` are by table."""
    for table, known in sums.items():
        path = folder.part(table, part)
        with _reading(path):
            if checksum(path) != known:
                text = f"`{path}` is damaged or was changed: it is not what the build wrote"
                raise TreeError(text, "remove it and build again")


def execution_rows(
    folder: TreesFolder, part: str, names: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """A part's executions; with `names` those of these names."""
    only = None if names is None else pc.field("execution_id").isin(list(names))
    path = folder.part("executions", part)
    with _reading(path):
        table = pq.read_table(path, filters=only, partitioning=None)
        return executions_of(_conform(table, SCHEMAS["executions"]))


def columns_in(path: Path) -> set[str]:
    """What a file has: an older gyre wrote fewer columns."""
    with _reading(path):
        return set(pq.read_schema(path).names)


def stored(
    folder: TreesFolder, part: str, names: Collection[str] | None = None
) -> Iterator[tuple[dict[str, Any], Tables]]:
    """A part's executions in stored order, each with its rows of the other tables; with `names` those of
    these names, and row groups that have none of them are not read."""
    runs = {table: _Runs(folder.part(table, part), table, names) for table in _TREE}
    for row in execution_rows(folder, part, names):
        key = (row["execution_id"], row["execution_attempt"])
        yield row, {table: run.take(key) for table, run in runs.items()}


class _Runs:
    """Rows of one file, execution by execution; asked for in the order in which they stand there."""

    def __init__(self, path: Path, table: str, names: Collection[str] | None) -> None:
        self._empty = SCHEMAS[table].empty_table()
        self._runs = _runs(path, table, names)
        self._next = next(self._runs, None)

    def take(self, key: AttemptKey) -> pa.Table:
        pieces = [self._empty]
        while self._next is not None and self._next[0] == key:
            pieces.append(self._next[1])
            self._next = next(self._runs, None)
        return pa.concat_tables(pieces)


def _runs(
    path: Path, table: str, names: Collection[str] | None = None
) -> Iterator[tuple[AttemptKey, pa.Table]]:
    wanted = None if names is None else pa.array(list(names), pa.string())
    with _reading(path), pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for group in range(parquet.num_row_groups):
            if wanted is not None and not _has_any(parquet, group, wanted):
                continue
            rows = _conform(parquet.read_row_group(group, use_threads=False), SCHEMAS[table])
            starts = _starts(rows)
            for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
                key = tuple(rows[column][start].as_py() for column in _WHO)
                if names is None or key[0] in names:
                    yield (key[0], key[1]), rows.slice(start, end - start)


def _has_any(parquet: pq.ParquetFile, group: int, names: pa.Array) -> bool:
    column = parquet.read_row_group(group, ["execution_id"])["execution_id"]
    return bool(pc.any(pc.is_in(column, value_set=names)).as_py())


def _starts(rows: pa.Table) -> list[int]:
    """Where the rows of another execution begin."""
    if not rows.num_rows:
        return []
    changes = np.zeros(rows.num_rows, np.bool_)
    changes[0] = True
    for column in _WHO:
        codes = rows[column].combine_chunks().dictionary_encode().indices.to_numpy()
        changes[1:] |= codes[1:] != codes[:-1]
    found: list[int] = np.flatnonzero(changes).tolist()
    return found


def _rows_of(path: Path, table: str, key: AttemptKey) -> pa.Table:
    pieces = [SCHEMAS[table].empty_table()]
    with _reading(path), pq.ParquetFile(path, page_checksum_verification=True) as parquet:
        for group in range(parquet.num_row_groups):
            who = parquet.read_row_group(group, list(_WHO))
            mask = pc.and_(pc.equal(who["execution_id"], key[0]), pc.equal(who["execution_attempt"], key[1]))
            if pc.any(mask).as_py():
                rows = _conform(parquet.read_row_group(group, use_threads=False), SCHEMAS[table])
                first = pc.index(mask, True).as_py()
                pieces.append(rows.slice(first, pc.sum(mask).as_py()))
    return pa.concat_tables(pieces)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Says which file is damaged."""
    try:
        yield
    except (OSError, pa.ArrowException) as problem:
        text = " ".join(str(problem).split())[:200]
        raise TreeError(f"`{path}` cannot be read: {text}", "remove it and build again") from problem


def _conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns we know, with nulls for those that the file is too old to have."""
    columns: Sequence[Any] = [
        table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def pieces_of(folder: TreesFolder, part: str, sums: Mapping[str, str]) -> dict[AttemptKey, Tables]:
    """A whole part, cut up by execution; `sums` are checksums of its files, where they are known.

    Raises:
        TreeError: a file of it is damaged.
    """
    require_whole(folder, part, sums)
    pieces: dict[AttemptKey, Tables] = {}
    for table in TABLES:
        for key, rows in _runs(folder.part(table, part), table):
            piece = pieces.setdefault(key, {name: schema.empty_table() for name, schema in SCHEMAS.items()})
            piece[table] = pa.concat_tables([piece[table], rows])
    return pieces
