"""Every pass on every kind of model says what each trajectory alone says: loss and all gradients.

Truth: `oracle.py`, which shares nothing with what is tested.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from gyre.trainer.errors import RefusedError
from gyre.trainer.pack.split import split
from gyre.trainer.passes.choose import choose
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import PassName
from tests.trainer.builders import Shape
from tests.trainer.compare import TOLERANCE, assert_true, update, wrong_by
from tests.trainer.models import KINDS, Kind
from tests.trainer.scenes import Scene
from tests.trainer.scenes import scene as made
from tests.trainer.ways import WAYS, Make

EXACT = [(way, kind) for way in WAYS for kind in KINDS if not (way.startswith("packed") and kind == "hybrid")]


def check(make: Make, scene: Scene, pieces: int, tolerance: float = TOLERANCE) -> None:
    forest = scene.packed.forest
    parts = [forest] if pieces == 1 else split(forest, max(1, len(forest) // pieces))
    found = update(
        make(Policy(scene.model)),
        scene.model,
        scene.packed,
        parts,
        scene.settings,
        scene.old_T,
        scene.reference_T,
    )
    assert_true(found, scene.truth, f"{len(parts)} pieces", tolerance)
    torch.testing.assert_close(found.logprobs_T.double(), scene.truth.logprobs_T, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("way", "kind"), EXACT)
def test_a_pass_is_exact(way: str, kind: Kind) -> None:
    for seed in range(4):
        check(WAYS[way], made(kind, seed), pieces=1 + seed % 2 * 2)


LARGER = Shape(executions=6, groups=3, nodes=16, longest=40)
SHAPES = st.builds(
    Shape,
    executions=st.integers(1, 6),
    groups=st.integers(1, 3),
    nodes=st.integers(2, 12),
    longest=st.integers(1, 9),
    roots=st.integers(1, 3),
    no_variance=st.sampled_from([0.0, 0.5]),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("way", "kind"), EXACT)
def test_a_pass_is_exact_on_any_trees(way: str, kind: Kind) -> None:
    """Of any size: where all paths have a token or two, rounding is most of some gradients, and the hybrid
    as it came is up to 1e-5 off from itself in fp64. Hence three times the tolerance."""

    @settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(shape=SHAPES, seed=st.integers(0, 10_000), pieces=st.integers(1, 5))
    def check_any(shape: Shape, seed: int, pieces: int) -> None:
        check(WAYS[way], made(kind, seed, shape), pieces, 3 * TOLERANCE)

    check_any()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("way", "kind"), EXACT)
def test_a_pass_is_exact_on_larger_trees(way: str, kind: Kind) -> None:
    """Paths longer than a window or a recurrent layer's chunk of 64 tokens, some hundreds of tokens."""
    for seed in range(200, 204):
        check(WAYS[way], made(kind, seed, LARGER), pieces=1 + seed % 4)


@pytest.mark.parametrize("kind", KINDS)
def test_what_auto_takes_is_exact(kind: Kind) -> None:
    check(lambda policy: choose(policy, PassName.AUTO, budget=16), made(kind, 2), pieces=1)
    check(lambda policy: choose(policy, PassName.AUTO, budget=1 << 16), made(kind, 2), pieces=1)


def test_a_mask_on_recurrent_layers_is_refused() -> None:
    """It would run without an error and be wrong: the state runs on from one branch into the next."""
    scene = made("hybrid", 0)
    forest = scene.packed.forest
    by = PackedPass(Policy(scene.model))

    found = update(by, scene.model, scene.packed, [forest], scene.settings, scene.old_T, scene.reference_T)

    assert wrong_by(found, scene.truth) > 0.1
    with pytest.raises(RefusedError, match="recurrent"):
        choose(Policy(scene.model), PassName.PACKED, budget=1 << 16)


def test_scenes_lie_on_both_sides_of_the_clip() -> None:
    """What the seeds above are worth: clipped and not, and weights above the cap."""
    truths = [made("qwen3", seed).truth for seed in range(4)]
    clipped = [any(truth.value.clipped_T) for truth in truths]
    free = [not all(truth.value.clipped_T) for truth in truths]
    assert sum(clipped) >= 3 and all(free)
    assert any(ratio > 1.004 for truth in truths for ratio in truth.value.ratios)
    assert any(ratio < 0.997 for truth in truths for ratio in truth.value.ratios)
