"""Which passes are taken for which models, and what is said about the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from gyre.trainer.errors import RefusedError
from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes import tiled
from gyre.trainer.passes.choose import AutoPass, choose
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.kinds import LayerKinds
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import PassName
from tests.trainer.builders import context, targets, tree
from tests.trainer.models import KINDS, SIZES, VOCAB, Kind, tiny_model
from tests.trainer.passes.compare import batch, difference, trained


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exact_is_taken(kind: Kind) -> None:
    policy = Policy(tiny_model(kind))
    for name in (PassName.FLAT, PassName.DFS) + ((PassName.PACKED,) if kind != "hybrid" else ()):
        choose(policy, name, budget=1000)


def test_a_mask_does_not_reach_recurrent_layers() -> None:
    policy = Policy(tiny_model("hybrid"))
    with pytest.raises(RefusedError, match=r"`qwen3_5_text` models: they have recurrent layers") as caught:
        choose(policy, PassName.PACKED, budget=1000)
    assert "auto" in caught.value.hint


def bloom() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))


def gemma2() -> PreTrainedModel:
    return Gemma2ForCausalLM(Gemma2Config(**SIZES, final_logit_softcapping=None))


def gpt_oss() -> PreTrainedModel:
    return GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1))


def wide(model: PreTrainedModel) -> PreTrainedModel:
    """With weights that make attention matter."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    return model.eval()


@pytest.mark.parametrize("name", [PassName.PACKED, PassName.DFS])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (gemma2, r"capped attention scores"),
        (gpt_oss, r"attention sinks"),
        (bloom, r"others than path by path"),  # no word of ALiBi in its configuration
    ],
)
def test_what_would_be_wrong_is_refused(
    name: PassName, make: Callable[[], PreTrainedModel], reason: str
) -> None:
    policy = Policy(wide(make()))
    with pytest.raises(RefusedError, match=reason):
        choose(policy, name, budget=1000)
    choose(policy, PassName.FLAT, budget=1000)
    auto = AutoPass(policy, budget=1000)
    assert auto.pick(batch(1)[0].forest) is PassName.FLAT
    assert auto.refused.keys() == {PassName.PACKED, PassName.DFS}


def test_numbers_tell_what_names_do_not() -> None:
    policy = Policy(tiny_model("hybrid"))
    policy.kinds = LayerKinds(recurrent=False, other=())
    with pytest.raises(RefusedError, match="others than path by path"):
        choose(policy, PassName.PACKED, budget=1000)


@pytest.mark.parametrize("kind", ["sliding", "mixed"])
def test_a_window_longer_than_the_probe_is_seen(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of real models have thousands of tokens; without them layers would see everything."""
    model = tiny_model(kind, sliding_window=4096)
    choose(Policy(model), PassName.PACKED, budget=1000)
    stock = tiled.Tiled.attend

    def everything(self: tiled.Tiled, *args: Any, window: int | None, **kwargs: Any) -> torch.Tensor:
        return stock(self, *args, window=None, **kwargs)

    monkeypatch.setattr(tiled.Tiled, "attend", everything)
    with pytest.raises(RefusedError, match="others than path by path"):
        choose(Policy(model), PassName.PACKED, budget=1000)


def test_what_was_found_is_remembered_when_numbers_cannot_be_compared_any_more() -> None:
    """As when the weights are spread over processes, and the budget is halved."""
    policy = Policy(tiny_model("hybrid"))
    policy.kinds = LayerKinds(recurrent=False, other=())
    auto = choose(policy, PassName.AUTO, budget=1000)
    policy.body = None
    again = choose(policy, PassName.AUTO, budget=500)
    assert isinstance(auto, AutoPass)
    assert isinstance(again, AutoPass)
    assert again.refused == auto.refused != {}


def test_a_model_that_looks_ahead_is_refused() -> None:
    config = LlamaConfig(**SIZES, is_causal=False)
    with pytest.raises(RefusedError, match="look ahead"):
        choose(Policy(wide(LlamaForCausalLM(config))), PassName.AUTO, budget=1000)


def piece(*lengths: int) -> Piece:
    """A prompt of the first length, and a branch of each other."""
    nodes = [context(-1, *range(lengths[0]))]
    nodes += [targets(0, *(which for _ in range(count))) for which, count in enumerate(lengths[1:])]
    return merge([tree("a", nodes)]).forest


def test_auto_goes_by_the_piece() -> None:
    auto = choose(Policy(tiny_model()), PassName.AUTO, budget=4000)
    assert isinstance(auto, AutoPass)
    assert auto.pick(piece(50, 40, 30)) is PassName.PACKED
    assert auto.pick(piece(600, 700, 650)) is PassName.DFS  # long visits: as fast, and less memory
    assert auto.pick(piece(600, *[300] * 8)) is PassName.PACKED
    assert auto.pick(piece(50, *[40] * 10, 4200)) is PassName.DFS  # only by computing it twice
    again = AutoPass(Policy(tiny_model()), budget=4000, recompute=True)
    assert again.pick(piece(50, 40, 30)) is PassName.DFS


def test_auto_on_recurrent_layers_is_dfs() -> None:
    auto = AutoPass(Policy(tiny_model("hybrid")), budget=1000)
    assert auto.pick(batch(1)[0].forest) is PassName.DFS
    assert "recurrent" in auto.refused[PassName.PACKED]


def test_auto_trains_like_flat() -> None:
    model = tiny_model("mixed")
    policy = Policy(model)
    packed, temperature_K = batch(5)
    _, wanted = trained(model, FlatPass(policy), packed, temperature_K)
    _, found = trained(model, AutoPass(policy, budget=1000), packed, temperature_K)
    assert difference(found, wanted) < 1e-5
