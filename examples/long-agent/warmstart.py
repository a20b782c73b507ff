"""Makes the small model of this example: it knows how the work is done, and has a habit that it can unlearn.

    python warmstart.py FOLDER [--seed N]

Three steps. It learns from an expert's conversations until it copies words; then the same with the manual
before each of them, which changes what there is to look at; then from an expert that half of the time
writes any word. What comes out can do the work and often does not: what training is for.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import torch
from agent import MANUAL
from expert import conversations
from lessons import NOTHING, Batch, Lessons
from small import make_model, make_tokenizer
from transformers import DynamicCache, Qwen3ForCausalLM

ENOUGH = 0.985
"""Of the tokens of a batch, as the expert would have them."""
HABIT = 0.5
"""Of the words, given rightly by the second expert."""
SHORT = 3
"""Files of the first lists."""
MOST = 1200
"""Steps until it copies."""
WITH_MANUAL, SPOILING = 150, 60


class Pupil:
    def __init__(self, model: Qwen3ForCausalLM, manual: list[int]) -> None:
        self.model = model
        self._manual = torch.tensor([manual])
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0)

    def learn(self, batch: Batch, lr: float, *, manual: bool) -> tuple[float, float]:
        """One step; (loss, share of the tokens that it would have said itself)."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        logits = self._logits(batch.ids, manual)[:, :-1]
        labels = batch.labels[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOTHING)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        learned = labels != NOTHING
        right = (logits.argmax(-1) == labels)[learned].float().mean()
        return loss.item(), right.item()

    def _logits(self, ids: torch.Tensor, manual: bool) -> torch.Tensor:
        """The manual is computed once for all rows."""
        if not manual:
            return self.model(ids).logits
        cache = DynamicCache()
        self.model.model(self._manual, past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(ids))
        return self.model(ids, past_key_values=cache, use_cache=True).logits


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    random = Random(seed)
    texts = [m["content"] for _ in range(200) for one in conversations(random) for m in one[1:]]
    tokenizer = make_tokenizer([*texts, *[MANUAL] * 20])
    lessons = Lessons(tokenizer, seed)
    pupil = Pupil(make_model(tokenizer, seed), lessons.manual)
    print(f"{len(lessons.manual)} tokens of manual, {len(tokenizer)} in all", flush=True)
    mean = 0.0
    for step in range(MOST):
        loss, right = pupil.learn(lessons.batch(files=SHORT), 2e-3, manual=False)
        mean = 0.9 * mean + 0.1 * right
        report("copying", step, loss, mean)
        if mean >= ENOUGH:
            break
    for step in range(WITH_MANUAL):
        report("with the manual", step, *pupil.learn(lessons.batch(), 1e-3, manual=True))
    for step in range(SPOILING):
        report("the habit", step, *pupil.learn(lessons.batch(HABIT), 1e-3, manual=True))
    pupil.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def report(what: str, step: int, loss: float, right: float) -> None:
    if step % 10 == 0:
        print(f"{what}, step {step}: loss {loss:.3f}, {right:.1%} right", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    main(given.folder, given.seed)
