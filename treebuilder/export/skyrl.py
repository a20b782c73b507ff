"""`skyrl`: a step-wise `GeneratorOutput` of one step a line (read against SkyRL 0.4.0).

SkyRL's own `concatenate_generator_outputs(lines, step_wise=True)` makes one of them. Steps of a
trajectory, here the rows of an execution, are adjacent; the reward stands on the last token of the
last, from where SkyRL broadcasts the advantage.
"""

from __future__ import annotations

import numpy as np

from gyre.treebuilder.export.files import Record
from gyre.treebuilder.export.rows import Row


def record(row: Row) -> Record:
    start, place = row.start, row.place
    rewards = np.zeros(len(row.token_ids) - start)
    if row.last:
        rewards[-1] = place.reward
    return {
        "prompt_token_ids": [row.token_ids[:start]],
        "response_ids": [row.token_ids[start:]],
        "rewards": [rewards],
        "loss_masks": [row.target_mask[start:].astype(np.int8)],
        "stop_reasons": None,
        "rollout_metrics": None,
        "rollout_logprobs": [row.own_logprobs[start:]],
        "trajectory_ids": [{"instance_id": place.group_id, "repetition_id": place.repetition}],
        "rollout_expert_indices": None,
        "is_last_step": [row.last],
    }
