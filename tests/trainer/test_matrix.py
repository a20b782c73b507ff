"""Every pass on every kind of model says what each trajectory alone says: loss and all gradients.

Truth: `oracle.py`, which shares nothing with what is tested.
"""

from __future__ import annotations

import pytest
import torch

from gyre.trainer.pack.split import split
from gyre.trainer.passes.policy import Policy
from tests.trainer.builders import Shape
from tests.trainer.compare import assert_true, update
from tests.trainer.models import KINDS, Kind
from tests.trainer.scenes import Scene, scene
from tests.trainer.ways import WAYS, Make

EXACT = [(way, kind) for way in WAYS for kind in KINDS if not (way.startswith("packed") and kind == "hybrid")]


def check(made: Make, given: Scene, pieces: int) -> None:
    forest = given.packed.forest
    parts = [forest] if pieces == 1 else split(forest, max(1, len(forest) // pieces))
    found = update(
        made(Policy(given.model)),
        given.model,
        given.packed,
        parts,
        given.settings,
        given.old_T,
        given.reference_T,
    )
    assert_true(found, given.truth, f"{len(parts)} pieces")
    torch.testing.assert_close(found.logprobs_T.double(), given.truth.logprobs_T, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("way", "kind"), EXACT)
def test_a_pass_is_exact(way: str, kind: Kind) -> None:
    for seed in range(4):
        check(WAYS[way], scene(kind, seed), pieces=1 + seed % 2 * 2)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "kind"), EXACT)
def test_a_pass_is_exact_on_many_trees(way: str, kind: Kind) -> None:
    for seed in range(100, 130):
        check(WAYS[way], scene(kind, seed), pieces=1 + seed % 4)
    large = Shape(executions=8, groups=3, nodes=16, longest=30)
    for seed in range(200, 204):
        check(WAYS[way], scene(kind, seed, large), pieces=1 + seed % 3)


def test_scenes_lie_on_both_sides_of_the_clip() -> None:
    """What the seeds above are worth: clipped and not, and weights above the cap."""
    truths = [scene("qwen3", seed).truth for seed in range(4)]
    clipped = [any(truth.value.clipped_T) for truth in truths]
    free = [not all(truth.value.clipped_T) for truth in truths]
    assert sum(clipped) >= 3 and all(free)
    assert any(ratio > 1.004 for truth in truths for ratio in truth.value.ratios)
    assert any(ratio < 0.997 for truth in truths for ratio in truth.value.ratios)
