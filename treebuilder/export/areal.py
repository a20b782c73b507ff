"""`areal`: the tensor dict of AReaL's `InteractionWithTokenLogpReward` (read against AReaL 1.0.4).

Its six fields come first, without the batch dimension; the others say where a row comes from.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row

SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("attention_mask", pa.list_(pa.bool_())),
        ("rewards", pa.float32()),
        ("group_id", pa.string()),
        ("execution_id", pa.string()),
        ("execution_attempt", pa.int32()),
        ("trajectory_id", pa.int32()),
        ("stub", pa.bool_()),
        ("role", pa.string()),
        ("advantage", pa.float64()),
        ("weight", pa.float64()),
    ]
)


def record(row: Row) -> Record:
    return row.names | {
        "input_ids": row.token_ids,
        "loss_mask": row.target_mask.astype(np.int32),
        "logprobs": row.own_logprobs,
        "versions": _versions(row),
        "attention_mask": np.ones(len(row.token_ids), np.bool_),
        "rewards": row.place.reward,
        "group_id": row.place.group_id,
    }


def _versions(row: Row) -> npt.NDArray[np.int32]:
    """One a token; AReaL's -1 for those this row does not train, and where a version is no number."""
    versions = np.full(len(row.token_ids), -1, np.int32)
    for version, start, end in row.versions:
        if version.isdecimal():
            versions[start:end] = int(version)
    return np.where(row.target_mask, versions, np.int32(-1))
