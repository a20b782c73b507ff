"""Trees to Arrow tables, several executions at once; ids are copied once and never one by one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gyre.proxy.log.schema import IDS, LOGPROBS, SPANS
from gyre.treebuilder.store.schema import LINKS, NODES, SCHEMAS, TRAJECTORIES
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree, Link, Node, Trajectory

Tables = dict[str, pa.Table]
"""A row group of each table, by its name."""
_SUMMARY = {field.name for field in fields(ExecutionSummary)}


@dataclass(slots=True)
class Built:
    """One attempt of an execution, ready to be stored."""

    summary: ExecutionSummary
    tree: ExecutionTree | None
    """None where nothing could be built, or there was nothing to build."""
    text_tokens: list[int] | None = None
    """By node."""


def tables_of(built: Sequence[Built]) -> Tables:
    trees = [one for one in built if one.tree is not None]
    return {
        "executions": _executions(built),
        "nodes": _nodes(trees),
        "links": _links(trees),
        "trajectories": _trajectories(trees),
    }


def joined(pieces: Sequence[Tables]) -> Tables:
    """Pieces one after another, each column in one run of memory, so that the bytes on disk only depend on
    what is in them."""
    empty = {name: schema.empty_table() for name, schema in SCHEMAS.items()}
    return {
        name: pa.concat_tables([piece[name] for piece in pieces] or [empty[name]]).combine_chunks()
        for name in SCHEMAS
    }


def _executions(built: Sequence[Built]) -> pa.Table:
    rows = []
    for one in built:
        row = {name: getattr(one.summary, name) for name in _SUMMARY}
        for name in ("left_out", "untrained", "causes"):
            row[name] = sorted(row[name].items())
        told = one.tree.disagreements if one.tree is not None else []
        row["disagreements"] = [
            each.call._asdict() | {"stated": each.stated, "found": each.found} for each in told
        ]
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMAS["executions"])


def _nodes(built: Sequence[Built]) -> pa.Table:
    whose = [(one.tree, node) for one in built if one.tree for node in one.tree.nodes]
    nodes = [node for _, node in whose]
    exact = [tree.exact for tree, _ in whose]
    ids = [node.token_ids if is_exact else None for node, is_exact in zip(nodes, exact, strict=True)]
    targets = [np.ones(len(node.token_ids), np.bool_) if node.target else None for node in nodes]
    columns = _columns(NODES, nodes) | {
        "execution_id": [tree.execution_id for tree, _ in whose],
        "execution_attempt": [tree.execution_attempt for tree, _ in whose],
        "call_id": [node.call.call_id for node in nodes],
        "attempt": [node.call.attempt for node in nodes],
        "choice": [node.call.choice for node in nodes],
        "length": [len(node.token_ids) for node in nodes],
        "text_tokens": [count for one in built for count in _text_tokens(one)],
        "token_ids": _lists(ids, IDS, np.int32),
        "target": _lists(targets, SCHEMAS["nodes"].field("target").type, np.bool_),
        "logprobs": _lists([node.logprobs for node in nodes], LOGPROBS, np.float32),
        "version_spans": _spans([node.version_spans for node in nodes]),
    }
    return _table("nodes", columns)


def _text_tokens(one: Built) -> Iterable[int | None]:
    return one.text_tokens or [None] * len(one.tree.nodes if one.tree else ())


def _links(built: Sequence[Built]) -> pa.Table:
    whose = [(one.tree, link) for one in built if one.tree for link in one.tree.links]
    links = [link for _, link in whose]
    origins = [link.origin for link in links]
    columns = _columns(LINKS, links) | {
        "execution_id": [tree.execution_id for tree, _ in whose],
        "execution_attempt": [tree.execution_attempt for tree, _ in whose],
        "call_id": [link.call.call_id for link in links],
        "attempt": [link.call.attempt for link in links],
        "choice": [link.call.choice for link in links],
        "evidence": [[found._asdict() for found in link.evidence] for link in links],
        "origin_call_id": [origin and origin.call_id for origin in origins],
        "origin_attempt": [origin and origin.attempt for origin in origins],
        "origin_choice": [origin and origin.choice for origin in origins],
        "break_before": _lists([link.break_before for link in links], IDS, np.int32),
        "break_after": _lists([link.break_after for link in links], IDS, np.int32),
    }
    return _table("links", columns)


def _trajectories(built: Sequence[Built]) -> pa.Table:
    whose = [(one.tree, path) for one in built if one.tree for path in one.tree.trajectories]
    columns = _columns(TRAJECTORIES, [path for _, path in whose]) | {
        "execution_id": [tree.execution_id for tree, _ in whose],
        "execution_attempt": [tree.execution_attempt for tree, _ in whose],
    }
    return _table("trajectories", columns)


def _columns(
    schema: Sequence[Any], values: Sequence[Node] | Sequence[Link] | Sequence[Trajectory]
) -> dict[str, Any]:
    """Columns that are plain attributes; the others are filled in by the caller."""
    known = {field.name for field in fields(values[0])} if values else set()
    return {
        column.name: [getattr(value, column.name) for value in values]
        for column in schema
        if column.name in known
    }


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for field in schema
        for column in [columns.get(field.name, [])]
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _lists(rows: Sequence[npt.NDArray[Any] | None], kind: pa.ListType, items: Any) -> pa.ListArray:
    """A list column; its values are put together in one copy."""
    offsets = _offsets(rows)
    there = [row for row in rows if row is not None]
    values = np.concatenate(there) if there else np.zeros(0, items)
    mask = pa.array([row is None for row in rows], pa.bool_())
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values, kind.value_type), type=kind, mask=mask
    )


def _spans(rows: Sequence[list[tuple[str, int, int]]]) -> pa.ListArray:
    spans = [span for row in rows for span in row]
    parts = [pa.array([span[i] for span in spans], SPANS.value_type[i].type) for i in range(3)]
    values = pa.StructArray.from_arrays(parts, fields=list(SPANS.value_type))
    return pa.ListArray.from_arrays(pa.array(_offsets(rows)), values, type=SPANS)


def _offsets(rows: Sequence[Any]) -> npt.NDArray[np.int32]:
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([0 if row is None else len(row) for row in rows], out=offsets[1:])
    return offsets
