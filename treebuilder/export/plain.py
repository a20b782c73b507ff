"""`jsonl` and `parquet`: the common denominator, for own loops and for looking at."""

from __future__ import annotations

import pyarrow as pa

from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row

_SPAN = pa.struct([("version", pa.string()), ("start", pa.int32()), ("end", pa.int32())])
SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),
        ("execution_id", pa.string()),
        ("execution_attempt", pa.int32()),
        ("trajectory_id", pa.int32()),
        ("slot", pa.int32()),
        ("stub", pa.bool_()),
        ("role", pa.string()),
        ("context_id", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("target_mask", pa.list_(pa.bool_())),
        ("full_mask", pa.list_(pa.bool_())),
        ("behaviour_logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(_SPAN)),
        ("temperature", pa.float64()),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("n_unique_targets", pa.int64()),
        ("weight", pa.float64()),
    ]
)


def record(row: Row) -> Record:
    return row.names | {
        "group_id": row.place.group_id,
        "slot": row.slot,
        "context_id": row.context_id,
        "token_ids": row.token_ids,
        "target_mask": row.target_mask,
        "full_mask": row.full_mask,
        "behaviour_logprobs": row.logprobs,
        "versions": [{"version": v, "start": start, "end": end} for v, start, end in row.versions],
        "temperature": row.temperature,
        "reward": row.place.reward,
        "n_unique_targets": row.n_unique_targets,
    }


def line(row: Row) -> Record:
    """Columns in the order of the schema."""
    values = record(row)
    return {name: values[name] for name in SCHEMA.names}
