"""`verl`: `AgentLoopOutput` and the key it has in the TransferQueue (read against verl 0.9.1).

Rows of one execution have keys `{uid}_{session_id}_{index}`. verl takes the advantage from the output
with the highest index and gives it to all outputs of the session, so the end of the main agent's work
is last; the reward stands on every row.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row, numbers

_EXTRA = pa.struct(
    [
        ("min_global_steps", pa.int64()),
        ("max_global_steps", pa.int64()),
        ("reward_extra_info", pa.struct([("score", pa.float64())])),
        ("execution_id", pa.string()),
        ("execution_attempt", pa.int32()),
        ("trajectory_id", pa.int32()),
        ("stub", pa.bool_()),
        ("role", pa.string()),
        ("advantage", pa.float64()),
        ("weight", pa.float64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("uid", pa.string()),
        ("session_id", pa.int64()),
        ("index", pa.int64()),
        ("prompt_ids", pa.list_(pa.int64())),
        ("response_ids", pa.list_(pa.int64())),
        ("response_mask", pa.list_(pa.int64())),
        ("response_logprobs", pa.list_(pa.float32())),
        ("reward_score", pa.float64()),
        ("num_turns", pa.int64()),
        ("extra_fields", _EXTRA),
    ]
)


def record(row: Row) -> Record:
    start, place, versions = row.start, row.place, numbers(row.own_versions)
    return {
        "key": f"{place.group_id}_{place.repetition}_{row.index}",
        "uid": place.group_id,
        "session_id": place.repetition,
        "index": row.index,
        "prompt_ids": row.token_ids[:start],
        "response_ids": row.token_ids[start:],
        "response_mask": row.target_mask[start:].astype(np.int64),
        "response_logprobs": row.own_logprobs[start:],
        "reward_score": place.reward,
        "num_turns": row.turns,
        "extra_fields": row.names
        | {
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
            "reward_extra_info": {"score": place.reward},
        },
    }
