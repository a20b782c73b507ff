"""Arrow rows of one execution back to a tree; ids and log-probabilities stay views. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from gyre.proxy.log.reading.ragged import RaggedIds, values_of
from gyre.treebuilder.store.encode import Tables
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import (
    CallKey,
    Cause,
    Confidence,
    Disagreement,
    Evidence,
    ExecutionTree,
    Link,
    Node,
    Role,
    Trajectory,
)

Row = dict[str, Any]

_IDS = ("token_ids", "target", "logprobs", "break_before", "break_after")
_OF_TREE = ("sampled_tokens", "targets", "kept_targets", "left_out", "untrained", "problems")


def rows_of(table: pa.Table) -> list[Row]:
    """Rows as values, without the columns of arrays."""
    light = table.drop_columns([name for name in _IDS if name in table.column_names])
    rows: list[Row] = light.to_pylist()
    return rows


def executions_of(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def summary_of(row: Row) -> ExecutionSummary:
    told = row | {"disagreements": [_told(each) for each in row["disagreements"]]}
    return ExecutionSummary(**told)


def tree_of(row: Row, tables: Tables) -> ExecutionTree:
    """The tree of the attempt that `row` of the executions is about; `tables` have its rows only."""
    return ExecutionTree(
        row["execution_id"],
        row["execution_attempt"],
        row["exact"],
        _nodes(tables["nodes"]),
        _links(tables["links"]),
        _trajectories(tables["trajectories"]),
        disagreements=[_disagreement(each) for each in row["disagreements"]],
        **{name: row[name] for name in _OF_TREE},
    )


def _nodes(table: pa.Table) -> list[Node]:
    ids, logprobs = RaggedIds(table["token_ids"]), RaggedIds(table["logprobs"])
    target = values_of(table["target"].is_valid())
    nodes = []
    for i, row in enumerate(rows_of(table)):
        stored = ids[i]
        nodes.append(
            Node(
                node_id=row["node_id"],
                parent_id=row["parent_id"],
                depth=row["depth"],
                # Blocks of messages have no ids.
                token_ids=np.full(row["length"], -1, np.int32) if stored is None else stored,
                call=_key(row),
                context_id=row["context_id"],
                role=Role(row["role"]),
                cause=Cause(row["cause"]),
                sampled=row["sampled"],
                target=target[i],
                logprobs=logprobs[i],
                version_spans=[
                    (each["version"], each["start"], each["end"]) for each in row["version_spans"]
                ],
                admitted=row["admitted"],
            )
        )
    return nodes


def _links(table: pa.Table) -> list[Link]:
    before, after = RaggedIds(table["break_before"]), RaggedIds(table["break_after"])
    return [_link(row, before[i], after[i]) for i, row in enumerate(rows_of(table))]


def _link(row: Row, before: Any, after: Any) -> Link:
    return Link(
        call=_key(row),
        context_id=row["context_id"],
        cause=Cause(row["cause"]),
        confidence=Confidence(row["confidence"]),
        evidence=[Evidence(each["witness"], each["detail"]) for each in row["evidence"]],
        step=row["step"],
        family=row["family"],
        origin=None if row["origin_call_id"] is None else _key(row, "origin_"),
        origin_context_id=row["origin_context_id"],
        reason=row["reason"],
        header_cause=None if row["header_cause"] is None else Cause(row["header_cause"]),
        header_origin_context_id=row["header_origin_context_id"],
        agrees=row["agrees"],
        role=Role(row["role"]),
        shared_tokens=row["shared_tokens"],
        break_offset=row["break_offset"],
        break_before=before,
        break_after=after,
        prompt_tokens=row["prompt_tokens"],
        output_tokens=row["output_tokens"],
        temperature=row["temperature"],
        logprob_quality=row["logprob_quality"],
        sampling=row["sampling"],
        prompt_node=row["prompt_node"],
        output_node=row["output_node"],
        targets=row["targets"],
        untrained=row["untrained"],
    )


def _trajectories(table: pa.Table) -> list[Trajectory]:
    names = ("trajectory_id", "slot", "stub", "leaf_node", "context_id", "tokens", "targets")
    return [
        Trajectory(role=Role(row["role"]), **{name: row[name] for name in names}) for row in rows_of(table)
    ]


def _key(row: Row, prefix: str = "") -> CallKey:
    return CallKey(row[f"{prefix}call_id"], row[f"{prefix}attempt"], row[f"{prefix}choice"])


def _disagreement(row: Row) -> Disagreement:
    return Disagreement(_key(row), row["stated"], row["found"])


def _told(row: Row) -> str:
    return f"`{row['call_id']}`: headers say {row['stated']}, found is {row['found']}"
