"""Paths in rows against the truth, computed path by path with whole logits."""

from __future__ import annotations

import pytest
import torch

from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.paths import paths
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.policy import Policy
from tests.trainer.builders import context, random_trees, targets, tree
from tests.trainer.models import KINDS, Kind, tiny_model
from tests.trainer.oracle import gradients, logprobs
from tests.trainer.passes.compare import batch, difference, loss_part, trained


@pytest.mark.parametrize("rows_tokens", [0, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_truth(kind: Kind, rows_tokens: int) -> None:
    model = tiny_model(kind)
    trees = random_trees(5)
    packed, temperature_K = batch(5)
    target_K = torch.from_numpy(packed.forest.target_K)
    logprobs_K = logprobs(model, trees)[target_K]
    loss = loss_part(logprobs_K, torch.arange(len(logprobs_K)))
    torch.autograd.backward(loss)
    wanted = gradients(model)

    tree_pass = FlatPass(Policy(model), rows_tokens=rows_tokens)
    output, given = trained(model, tree_pass, packed, temperature_K)

    assert torch.allclose(output.logprobs_K.double(), logprobs_K, atol=1e-4)
    assert output.loss == pytest.approx(loss.item(), rel=1e-5)
    assert difference(given, wanted) < 1e-5


def test_rows_are_filled_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths 8, 8, 7, 3: with 24 tokens the first three go together, the short one does not."""
    trees = [
        tree(name, [context(-1, *range(start, start + 2)), targets(0, *range(20, 20 + count))])
        for name, start, count in (("a", 0, 7), ("b", 3, 7), ("c", 6, 6), ("d", 9, 2))
    ]
    packed = merge(trees)
    assert sorted(len(path) for path in paths(packed.forest)) == [3, 7, 8, 8]
    shapes: list[tuple[int, ...]] = []
    stock = Policy.hidden

    def seen(self: Policy, input_ids_BS: torch.Tensor, *rest: torch.Tensor | None) -> torch.Tensor:
        shapes.append(tuple(input_ids_BS.shape))
        return stock(self, input_ids_BS, *rest)

    monkeypatch.setattr(Policy, "hidden", seen)
    temperature_K = torch.ones(len(packed.targets))
    policy = Policy(tiny_model())
    shapes.clear()
    for rows_tokens in (24, 16, 0):
        FlatPass(policy, rows_tokens=rows_tokens)(packed.forest, temperature_K)
    assert shapes == [(3, 8), (1, 3), (2, 8), (1, 7), (1, 3), (1, 8), (1, 8), (1, 7), (1, 3)]


def test_without_a_loss_nothing_is_trained() -> None:
    model = tiny_model()
    packed, temperature_K = batch(1)
    output = FlatPass(Policy(model))(packed.forest, temperature_K)
    assert output.loss == 0
    assert not gradients(model)
    assert bool((output.entropy_K > 0).all())


@pytest.mark.parametrize("kind", ["hybrid", "mixed"])
def test_padding_does_not_leak(kind: Kind) -> None:
    """Recurrent layers go by chunks of 64 tokens: rows of 130 and 100, alone and beside each other."""
    nodes = [context(-1, *range(30)), targets(0, *range(90, 20, -1)), targets(0, *range(60), *range(40))]
    packed = merge([tree("a", nodes)])
    temperature_K = torch.ones(len(packed.targets))
    model = tiny_model(kind)
    policy = Policy(model)
    alone, wanted = trained(model, FlatPass(policy), packed, temperature_K)
    beside, found = trained(model, FlatPass(policy, rows_tokens=1000), packed, temperature_K)
    assert torch.allclose(alone.logprobs_K, beside.logprobs_K, atol=1e-4)
    assert difference(found, wanted) < 1e-5
