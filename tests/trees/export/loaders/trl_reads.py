"""Runs where TRL is: what its trainers make of an export. Arguments: the file; `code` is from the docs.

First the asynchronous trainer's own way from rollout queue to batch, then one step of GRPOTrainer with
a model of some hundred weights.
"""

from __future__ import annotations

import itertools
import json
import queue
import sys
from collections import defaultdict
from typing import Any

from code_of_the_docs import samples
from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.async_grpo.async_grpo_trainer import (
    DataCollatorForRollout,
    RolloutQueueDataset,
    TokenBudgetBatcher,
)

VOCABULARY = 64


def asynchronous(path: str) -> dict[str, Any]:
    """Every sample through queue, planner and collator, as one micro-batch."""
    found = samples(path)
    waiting: queue.Queue[Any] = queue.Queue()
    for sample in found:
        waiting.put(sample)
    dataset = RolloutQueueDataset(waiting, lambda: 4, lambda stale_s: None, 60.0, defaultdict(list))
    drained = list(itertools.islice(dataset, len(found)))
    # The planner closes a row when the next sample does not fit: one more, of the whole budget, closes it.
    budget = sum(len(sample["input_ids"]) for sample in drained)
    long = {name: drained[0][name].repeat(budget)[:budget] for name in ("input_ids", "completion_mask")}
    rows = next(iter(TokenBudgetBatcher([*drained, drained[0] | long], 1, budget, defaultdict(list))))
    batch = DataCollatorForRollout(pad_token_id=0)([rows])
    shifted = batch["shift_labels"][0].tolist()
    targets = zip(
        (shifted[place] for place in batch["token_index"][0].tolist()),
        batch["old_log_probs"][0].tolist(),
        batch["advantages"][0].tolist(),
        strict=True,
    )
    return {
        "samples": len(found),
        "row_tokens": budget,
        "tree_tokens": int(batch["global_n_forward_tokens"][0]),
        "targets": sorted(targets),
    }


class Watching(GRPOTrainer):
    """Keeps what the loss is computed from."""

    seen: dict[str, Any]

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.seen = inputs
        return super()._compute_loss(model, inputs)


def one_step(path: str) -> dict[str, Any]:
    rows = list(load_dataset("parquet", data_files=path, split="train"))
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    words = Tokenizer(models.WordLevel({f"t{n}": n for n in range(VOCABULARY)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="t0", eos_token="t1")
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    trainer = Watching(
        model=Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCABULARY, **tiny, **heads)),
        processing_class=tokenizer,
        reward_funcs=lambda completions, reward, **more: reward,
        args=GRPOConfig(
            output_dir="out",
            max_steps=1,
            per_device_train_batch_size=len(rows),
            num_generations=len(rows),
            report_to=[],
            save_strategy="no",
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["t2"] * len(rows)}),
        rollout_func=lambda prompts, trainer: {name: [row[name] for row in rows] for name in names},
    )
    trainer.train()
    trained = trainer.seen["completion_mask"] * trainer.seen["tool_mask"]
    return {
        "trained": trainer.seen["completion_ids"][trained.bool()].tolist(),
        "loss": trainer.state.log_history[-1]["train_loss"],
        "reward": trainer.state.log_history[0]["reward"],
    }


if __name__ == "__main__":
    print(json.dumps({"async": asynchronous(sys.argv[1]), "grpo": one_step(sys.argv[1])}))
