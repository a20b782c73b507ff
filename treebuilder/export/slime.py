"""`slime`: `Sample.to_dict()` of slime's rollouts, one a line (read against slime 0.3.2).

Rows of one execution share `rollout_id`, so that slime averages the loss over the execution and not
over its rows; they share `group_index` with the other executions of the group.
"""

from __future__ import annotations

import numpy as np

from gyre.proxy.executions import ExecutionOutcome
from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row


def record(row: Row) -> Record:
    start, place = row.start, row.place
    timed_out = place.summary.outcome == ExecutionOutcome.TIMED_OUT
    return {
        "group_index": place.group_index,
        "index": place.rollout_index,
        "rollout_id": place.rollout_index,
        "prompt": "",
        "tokens": row.token_ids,
        "response": "",
        "response_length": len(row.token_ids) - start,
        "label": None,
        "reward": place.reward,
        "loss_mask": row.target_mask[start:].astype(np.int8),
        "weight_versions": row.own_versions,
        "rollout_log_probs": row.own_logprobs[start:],
        "remove_sample": False,
        "status": "truncated" if timed_out else "completed",
        "metadata": row.names | {"group_id": place.group_id},
    }
