"""Runs where verl is: what it makes of an export, as its agent loop and its trainer do.

AgentLoopOutput -> TensorDict of nested tensors -> DataProto -> advantages over sessions of several rows.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from code_of_the_docs import sessions
from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

TENSORS = ("prompts", "responses", "response_mask", "rollout_log_probs", "rm_scores")


def main(path: str) -> None:
    found = sessions(path)
    keys = [f"{session}_{index}" for session, outputs in found.items() for index in range(len(outputs))]
    rows = [output.as_dict() for outputs in found.values() for output in outputs]
    data = DataProto(batch=list_of_dict_to_tensordict(rows).select(*TENSORS).to_padded_tensor())
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)
    done = compute_advantage_for_multi_trajectories(data, keys, AdvantageEstimator.GRPO).batch
    mask = done["response_mask"].bool()
    told = {
        "keys": keys,
        "trained": done["responses"][mask].tolist(),
        "logprobs": done["rollout_log_probs"][mask].tolist(),
        "advantages": [row[own][0].item() for row, own in zip(done["advantages"], mask, strict=True)],
        "rewards": done["rm_scores"].sum(1).tolist(),
        "steps": [row["extra_fields"]["min_global_steps"] for row in rows],
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
