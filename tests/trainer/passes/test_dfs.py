"""Visit by visit against a row for every path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gyre.trainer.pack.merge import Packed, merge
from gyre.trainer.passes import path
from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import Dtype
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.compare import TOLERANCE, distance
from tests.trainer.models import KINDS, Kind, tiny_model
from tests.trainer.oracle import gradients
from tests.trainer.passes.compare import batch, loss_part, trained

WAYS: dict[str, dict[str, Any]] = {
    "as it is": {"budget": 1000},
    "one by one": {"budget": 1000, "together": 0},
    "again": {"budget": 1000, "together": 4, "recompute": True},
    "again, three at most": {"budget": 3, "together": 0, "recompute": True},
    "again, token by token": {"budget": 1, "recompute": True},
    "where it is long": {"budget": 9, "together": 5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_equals_flat(kind: Kind) -> None:
    policy = Policy(tiny_model(kind))
    packed, temperature_K = batch(11, nodes=8, longest=6)
    flat, wanted = trained(policy.model, FlatPass(policy), packed, temperature_K)
    for name, way in WAYS.items():
        output, given = trained(policy.model, DfsPass(policy, **way), packed, temperature_K)
        assert torch.allclose(output.logprobs_K, flat.logprobs_K, atol=5e-5), name
        assert torch.allclose(output.entropy_K, flat.entropy_K, atol=5e-5), name
        assert output.loss == pytest.approx(flat.loss, abs=1e-5), name  # of a sum of terms about 1
        assert distance(given, wanted)[0] < TOLERANCE, (name, distance(given, wanted))


@pytest.mark.parametrize("kind", ["mixed", "hybrid"])
def test_without_a_loss_it_is_the_same_and_nothing_is_trained(kind: Kind) -> None:
    policy = Policy(tiny_model(kind))
    packed, temperature_K = batch(3)
    flat = FlatPass(policy)(packed.forest, temperature_K)
    for way in WAYS.values():
        output = DfsPass(policy, **way)(packed.forest, temperature_K)
        assert output.loss == 0
        assert torch.allclose(output.logprobs_K, flat.logprobs_K, atol=5e-5)
    assert not gradients(policy.model)


def long_trees() -> Packed:
    """A prompt longer than a block of queries, branches that are, and a window that reaches across both."""
    rng = np.random.default_rng(0)
    ids = [[int(one) for one in rng.integers(0, 97, count)] for count in (30, 25, 14, 2, 40)]
    nodes = [context(-1, *ids[0]), targets(0, *ids[1]), targets(0, *ids[2]), targets(2, *ids[3])]
    return merge([tree("a", [*nodes, targets(2, *ids[4])])])


@pytest.mark.parametrize("window", [7, 20, 50, None])
def test_blocks_of_queries_and_windows_that_reach_into_ancestors(
    window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(path, "ROWS", 8)
    model = tiny_model("llama") if window is None else tiny_model("mixed", sliding_window=window)
    policy = Policy(model)
    packed = long_trees()
    temperature_K = torch.ones(len(packed.targets))
    _, wanted = trained(model, FlatPass(policy), packed, temperature_K)
    runs = [DfsPass(policy, budget=500, together=together) for together in (0, 80)]
    for run in (*runs, DfsPass(policy, budget=11, together=0, recompute=True)):
        _, given = trained(model, run, packed, temperature_K)
        assert distance(given, wanted)[0] < TOLERANCE


def test_gradients_are_added_to_what_is_there() -> None:
    policy = Policy(tiny_model())
    packed, temperature_K = batch(4)
    run = DfsPass(policy, budget=100)
    _, once = trained(policy.model, run, packed, temperature_K)
    for _ in range(2):
        run(packed.forest, temperature_K, loss_part)
    twice = gradients(policy.model)
    assert distance(twice, {name: 2 * one for name, one in once.items()})[0] < TOLERANCE


@pytest.mark.parametrize("trained_names", [["lm_head"], ["layers.1.self_attn.q_proj"], ["layers.0.mlp"]])
@pytest.mark.parametrize("recompute", [False, True])
def test_frozen_parameters_get_nothing(trained_names: list[str], recompute: bool) -> None:
    model = tiny_model("llama")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(one in name for one in trained_names))
    policy = Policy(model)
    packed, temperature_K = batch(6)
    _, wanted = trained(model, FlatPass(policy), packed, temperature_K)
    run = DfsPass(policy, budget=8, recompute=recompute, together=0)
    _, given = trained(model, run, packed, temperature_K)
    assert given.keys() == wanted.keys() != set()
    assert distance(given, wanted)[0] < TOLERANCE


def test_bfloat16_differs_by_rounding_only() -> None:
    policy = Policy(tiny_model(), dtype=Dtype.BF16)
    packed, temperature_K = batch(7)
    flat, wanted = trained(policy.model, FlatPass(policy), packed, temperature_K)
    output, given = trained(policy.model, DfsPass(policy, budget=100, together=0), packed, temperature_K)
    assert all(one.dtype == torch.float32 for one in given.values())
    assert torch.allclose(output.logprobs_K, flat.logprobs_K, atol=0.3)
    assert distance(given, wanted)[0] < 0.1


class Rows:
    """Notes how many tokens each forward pass has, and whether it keeps a graph."""

    def __init__(self, policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, bool]] = []
        stock = policy.hidden

        def hidden(ids_BS: torch.Tensor, *rest: torch.Tensor, **kwargs: Any) -> torch.Tensor:
            self.seen.append((ids_BS.shape[1], torch.is_grad_enabled()))
            return stock(ids_BS, *rest, **kwargs)

        monkeypatch.setattr(policy, "hidden", hidden)


def test_no_visit_has_more_tokens_than_may_be_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(tiny_model())
    rows = Rows(policy, monkeypatch)
    packed = long_trees()
    temperature_K = torch.ones(len(packed.targets))
    longest = int(packed.forest.position_ids_N.max()) + 1

    DfsPass(policy, budget=longest, together=0)(packed.forest, temperature_K, loss_part)
    assert all(graph for _, graph in rows.seen)
    assert sum(count for count, _ in rows.seen) == len(packed.forest)

    rows.seen.clear()
    DfsPass(policy, budget=longest - 1, together=0)(packed.forest, temperature_K, loss_part)
    assert max(count for count, _ in rows.seen) <= longest - 1
    assert sum(count for count, graph in rows.seen if graph) == len(packed.forest)
    assert sum(count for count, graph in rows.seen if not graph) == 30 + 14  # what others hang on

    rows.seen.clear()
    DfsPass(policy, budget=10)(packed.forest, temperature_K, loss_part)
    assert max(count for count, _ in rows.seen) <= 10


def test_an_empty_piece_is_nothing() -> None:
    empty = merge([]).forest
    output = DfsPass(Policy(tiny_model()), budget=10)(empty, torch.ones(0), loss_part)
    assert (len(output.logprobs_K), output.loss) == (0, 0)


def test_a_tree_deeper_than_the_interpreter_recurses() -> None:
    nodes, at = [context(-1, 1)], 0
    for _ in range(1100):
        nodes += [context(at, 2), targets(at, 3)]
        at = len(nodes) - 2
    packed = merge([tree("deep", [*nodes, targets(at, 4)])])
    model = tiny_model(num_hidden_layers=1, hidden_size=8, max_position_embeddings=2000)
    output = DfsPass(Policy(model), budget=10_000, together=0)(packed.forest, torch.ones(len(packed.targets)))
    assert bool(torch.isfinite(output.logprobs_K).all())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_equals_flat_on_many_trees(kind: Kind) -> None:
    policy = Policy(tiny_model(kind))
    for seed in range(100, 116):
        shape = Shape(nodes=10, longest=(1, 2, 5, 9)[seed % 4], roots=3)
        packed = merge(random_trees(seed, shape))
        temperature_K = torch.from_numpy(packed.targets.temperature_T[packed.forest.target_K])
        _, wanted = trained(policy.model, FlatPass(policy), packed, temperature_K)
        for name, way in WAYS.items():
            _, given = trained(policy.model, DfsPass(policy, **way), packed, temperature_K)
            assert distance(given, wanted)[0] < TOLERANCE, (name, seed)
