"""Policies as a trainer would publish them: `tiny`, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors.torch
import torch

from gyre.elastic.engine.models.tiny import make_tiny
from tests.engine.weights.replay import Replay, Weights, weights_of

CHANGE = 0.02
"""Of each weight from one version to the next: log-probabilities differ by 0.1 and more."""


@dataclass(frozen=True)
class Versions:
    weights: Mapping[str, Weights]

    def write(self, folder: Path, version: str) -> Path:
        """A new folder at each call, as it must be."""
        path = folder / f"v{version}"
        path.mkdir(parents=True)
        safetensors.torch.save_file(dict(self.weights[version]), path / "model.safetensors")
        return path

    def replay(self) -> Replay:
        return Replay(make_tiny().model.requires_grad_(False), self.weights)


@cache
def versions(count: int = 10) -> Versions:
    """Version `0` is what `gyre engine --model tiny` starts with; `1` to `count` follow."""
    network = make_tiny().model
    generator = torch.Generator().manual_seed(5)
    made = {"0": weights_of(network)}
    for version in range(1, count + 1):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter += CHANGE * torch.randn(parameter.shape, generator=generator)
        made[str(version)] = weights_of(network)
    return Versions(made)
