"""Makes the small model of this example: it knows how the work is done, and has a habit that it can unlearn.

    python warmstart.py FOLDER [--seed N]

It learns from the conversations of an expert who gives a wrong word now and then: short ones until it copies
words, then long ones with the manual before them, which changes what there is to look at. The wrong words are
there to be told from the right one; only in the last few steps they are learned as well. What comes out can
do the work and often does not: what training is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean

import torch
from agent import MANUAL
from expert import ALL_WORDS, told
from lessons import NOTHING, Batch, Lessons
from small import make_model, make_tokenizer
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3ForCausalLM
from trial import mean_score

HABIT = 0.6
"""Of the words, given rightly by the expert that is met last."""
ENOUGH = 0.97
"""Of the words, given rightly by the pupil."""
MOST, MOST_HABIT, LOOK_EVERY = 1000, 120, 15
"""Steps."""
BAND = (0.10, 0.40)
"""Of its mean score on lists that are held out, in the end. The habit is learned up to the middle."""
LISTS, LIMIT = 8, 1250


class Pupil:
    def __init__(self, tokenizer: PreTrainedTokenizerFast, manual: list[int], seed: int) -> None:
        self.model: Qwen3ForCausalLM = make_model(tokenizer, seed)
        self._manual = torch.tensor([manual])
        self._words = torch.tensor([tokenizer.encode(f" {word}")[0] for word in ALL_WORDS.split()])
        self._optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)

    def learn(self, batch: Batch, lr: float, *, manual: bool = True) -> tuple[float, float]:
        """One step: its loss, and the share of words that it would have given rightly."""
        self._optimizer.param_groups[0]["lr"] = lr
        logits, labels = self._logits(batch.ids, manual)[:, :-1], batch.labels[:, 1:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOTHING)
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        right = (logits.argmax(-1) == labels)[torch.isin(labels, self._words)]
        return loss.item(), right.float().mean().item()

    def _logits(self, ids: torch.Tensor, manual: bool) -> torch.Tensor:
        """The manual is computed once for all rows."""
        cache = DynamicCache()
        if manual:
            self.model.model(self._manual, cache=cache)
            cache.batch_repeat_interleave(len(ids))
        logits: torch.Tensor = self.model(ids, cache=cache).logits
        return logits


def main(folder: Path, seed: int) -> None:
    torch.set_num_threads(1)
    random = Random(seed)
    texts = [m["content"] for _ in range(200) for one in told(random).heard for m in one[1:]]
    tokenizer = make_tokenizer([*texts, *[MANUAL] * 20, "system\nuser\nassistant\n" * 100])
    lessons = Lessons(tokenizer, seed)
    pupil = Pupil(tokenizer, lessons.manual, seed)
    print(f"a manual of {len(lessons.manual)} tokens, {len(tokenizer)} in all", flush=True)
    until_it_copies("short", lambda: pupil.learn(lessons.short(), 2e-3, manual=False))
    until_it_copies("with the manual", lambda: pupil.learn(lessons.long(), 1e-3))
    score = spoiled(pupil, tokenizer, lessons)
    if not BAND[0] <= score <= BAND[1]:
        raise SystemExit(f"it is to be from {BAND[0]} to {BAND[1]}; another seed may do better")
    pupil.model.to(torch.bfloat16).save_pretrained(folder)  # half the size; whoever loads it computes in fp32
    tokenizer.save_pretrained(folder)


def until_it_copies(what: str, learn: Callable[[], tuple[float, float]]) -> None:
    copies = 0.0
    for step in range(MOST):
        loss, right = learn()
        copies += 0.1 * (right - copies)
        report(what, step, loss, copies)
        if copies >= ENOUGH:
            return
    raise SystemExit(f"it does not copy after {MOST} steps; another seed may do better")


def spoiled(pupil: Pupil, tokenizer: PreTrainedTokenizerFast, lessons: Lessons) -> float:
    """What it is worth then."""
    score = 1.0
    for step in range(MOST_HABIT):
        report("the habit", step, *pupil.learn(lessons.habit(HABIT), 5e-4))
        if step % LOOK_EVERY == LOOK_EVERY - 1:
            score = mean_score(pupil.model, tokenizer, LISTS, LIMIT)
            print(f"a mean score of {score:.2f} on {LISTS} lists that are held out", flush=True)
        if score <= fmean(BAND):
            break
    return score


def report(what: str, step: int, loss: float, right: float) -> None:
    if step % 10 == 0:
        print(f"{what}, step {step}: loss {loss:.3f}, {right:.0%} of the words", flush=True)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("folder", type=Path)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    main(given.folder, given.seed)
