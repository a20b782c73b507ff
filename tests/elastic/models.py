"""Folders of tiny models, made once: `seed` tells their weights apart."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch

from gyre.elastic.engine.models.tiny import make_tiny, save_tiny

os.environ.setdefault("OMP_NUM_THREADS", "1")


@cache
def folder(seed: int) -> Path:
    torch.set_num_threads(1)
    place = Path(mkdtemp(prefix="gyre-tiny-")) / f"tiny-{seed}"
    save_tiny(place, seed=seed)
    return place


def logprobs(seed: int, prompt: list[int]) -> list[float]:
    """Of `prompt[1:]`, by the model itself."""
    with torch.no_grad():
        logits = make_tiny(seed).model(torch.tensor([prompt])).logits[0]
    told = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(prompt[1:])[:, None])
    return [float(value) for value in told[:, 0]]
