"""The sealed Parquet files of a log: which there are, what each stands for, and reading them.

A calls file is the commit point of its seal: its metadata names the journal segments it replaces.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gyre.proxy.log.findings import Finding, error, note
from gyre.proxy.log.folder import FORMAT_VERSION, Folder
from gyre.proxy.log.schema import SCHEMAS

META_FORMAT = b"gyre_format"
META_SEGMENTS = b"gyre_segments"


@dataclass(frozen=True, slots=True)
class SealedFile:
    path: Path
    segments: tuple[str, ...]
    """Names of the journal segments whose rows it holds."""


@dataclass(slots=True)
class Sealed:
    """Every sealed file that can be read; a damaged one is a problem, and the rest still counts."""

    calls: list[SealedFile]
    messages: list[SealedFile]
    executions: list[SealedFile]
    leftover: list[SealedFile]
    """Executions files of a killed seal: their rows are still in the journal."""
    problems: list[Finding]

    @property
    def segments(self) -> set[str]:
        """Segments that are sealed: their rows are here, whether or not they are still in the journal."""
        return {name for file in self.calls for name in file.segments}


def list_sealed(folder: Folder) -> Sealed:
    problems: list[Finding] = []
    found = {
        name: [file for path in folder.sealed(name) if (file := open_sealed(path, problems))]
        for name in SCHEMAS
    }
    sealed = Sealed(**found, leftover=[], problems=problems)
    unsealed = {path.name for path in folder.segments()} - sealed.segments
    sealed.leftover = [file for file in sealed.executions if unsealed.intersection(file.segments)]
    sealed.executions = [file for file in sealed.executions if file not in sealed.leftover]
    return sealed


def read_sealed(
    table: str,
    files: Sequence[SealedFile],
    problems: list[Finding],
    columns: Sequence[str] | None = None,
    only: tuple[str, Collection[str]] | None = None,
    since: int = 0,
) -> pa.Table:
    """Rows of a table in file order; `only` = (column, values) keeps the rows that have one of them.

    `since` lets row groups out whose rows were all committed before that order.
    """
    schema = projected(table, columns)
    tables = [schema.empty_table()]
    for file in files:
        try:
            tables += list(row_groups(file, schema, only, since))
        except (OSError, pa.ArrowException) as problem:
            problems.append(corrupt(file.path, problem))
    return pa.concat_tables(tables)


def row_groups(
    file: SealedFile, schema: pa.Schema, only: tuple[str, Collection[str]] | None = None, since: int = 0
) -> Iterator[pa.Table]:
    """A file's row groups, one in memory at a time; groups whose rows are all before `since` are skipped."""
    values = pa.array(list(only[1]), pa.string()) if only else None
    with pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
        columns = [name for name in schema.names if name in parquet.schema_arrow.names]
        for i in range(parquet.num_row_groups):
            if since and _last_order(parquet, i) < since:
                continue
            if only is None:
                yield conform(parquet.read_row_group(i, columns), schema)
                continue
            mask = pc.is_in(parquet.read_row_group(i, [only[0]]).column(0), value_set=values)
            if pc.any(mask).as_py():
                yield conform(parquet.read_row_group(i, columns).filter(mask), schema)


def projected(table: str, columns: Sequence[str] | None) -> pa.Schema:
    schema = SCHEMAS[table]
    return schema if columns is None else pa.schema([schema.field(name) for name in columns])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns we know, with nulls for those the file is too old to have."""
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def corrupt(path: Path, problem: Exception) -> Finding:
    return error("corrupt_file", str(path), f"cannot be read: {' '.join(str(problem).split())[:200]}")


def _last_order(parquet: pq.ParquetFile, group: int) -> int:
    index = parquet.schema_arrow.names.index("order")
    for leaf in range(index, parquet.metadata.num_columns):
        column = parquet.metadata.row_group(group).column(leaf)
        if column.path_in_schema == "order":
            known = column.statistics is not None and column.statistics.has_min_max
            return int(column.statistics.max) if known else 2**63 - 1
    return 2**63 - 1


def open_sealed(path: Path, problems: list[Finding]) -> SealedFile | None:
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except FileNotFoundError:
        return None
    except (OSError, pa.ArrowException) as problem:
        problems.append(corrupt(path, problem))
        return None
    if META_FORMAT not in metadata:
        problems.append(note("foreign_file", str(path), "not written by gyre; ignored"))
        return None
    if int(metadata[META_FORMAT]) > FORMAT_VERSION:
        problems.append(error("newer_format", str(path), "written by a newer gyre; not read"))
        return None
    return SealedFile(path, tuple(json.loads(metadata[META_SEGMENTS])))
