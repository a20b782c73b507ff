"""`trl`: what TRL's `rollout_func` returns, a row per path (read against trl 1.16).

The first four columns are `GRPOTrainer`'s; the others are forwarded to reward functions. The same
columns make the `RolloutSample` of TRL's `AsyncGRPOTrainer`, whose rows carry their own advantage.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row, numbers

SCHEMA = pa.schema(
    [
        ("prompt_ids", pa.list_(pa.int32())),
        ("completion_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("env_mask", pa.list_(pa.int8())),
        ("reward", pa.float64()),
        ("advantage", pa.float64()),
        ("weight", pa.float64()),
        ("group_id", pa.int64()),
        ("model_version", pa.int64()),
        ("execution_id", pa.string()),
        ("execution_attempt", pa.int32()),
        ("trajectory_id", pa.int32()),
        ("stub", pa.bool_()),
        ("role", pa.string()),
    ]
)


def record(row: Row) -> Record:
    start = row.start
    return row.names | {
        "prompt_ids": row.token_ids[:start],
        "completion_ids": row.token_ids[start:],
        "logprobs": row.own_logprobs[start:],
        "env_mask": row.target_mask[start:].astype(np.int8),
        "reward": row.place.reward,
        "group_id": row.place.group_index,
        "model_version": min(numbers(row.own_versions), default=None),
    }
