"""Which parameters are trained, and what AdamW does to them."""

from __future__ import annotations

import pytest
import torch

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import OptimizerSettings
from gyre.trainer.update.optimizer import (
    gradients,
    load_state,
    make_optimizer,
    select,
    state_of,
    trained_parameters,
)
from gyre.trainer.update.ranks import OneProcess
from tests.trainer.models import tiny_model

NAMES = ["embed.weight", "layers.0.q.weight", "layers.0.norm.weight", "layers.1.q.weight", "head.weight"]


def test_patterns_choose_and_freeze() -> None:
    assert select(NAMES, ["*"], []) == NAMES
    assert select(NAMES, ["layers.*"], ["*.norm.*"]) == ["layers.0.q.weight", "layers.1.q.weight"]
    assert select(NAMES, ["layers.1.*", "head*"], []) == ["layers.1.q.weight", "head.weight"]


@pytest.mark.parametrize(("train", "freeze", "key"), [(["*.qq.*"], [], "train"), (["*"], ["hed*"], "freeze")])
def test_a_pattern_that_matches_nothing_is_an_error_with_names_that_are_near(
    train: list[str], freeze: list[str], key: str
) -> None:
    with pytest.raises(TrainError, match=f"`train.{key}`: no parameter is called") as caught:
        select(NAMES, train, freeze)
    assert {"*.qq.*": "layers.0.q.weight", "hed*": "head.weight"}[(train + freeze)[-1]] in caught.value.hint


def test_to_freeze_everything_is_an_error() -> None:
    with pytest.raises(TrainError, match="no parameter is trained"):
        select(NAMES, ["head*"], ["*"])


def test_only_chosen_parameters_need_gradients() -> None:
    model = tiny_model()
    chosen = trained_parameters(model, ["*.layers.1.*"], [])
    needing = {name for name, own in model.named_parameters() if own.requires_grad}
    assert needing == set(chosen) and all(".layers.1." in name for name in needing)


def test_tied_weights_are_one_parameter_under_their_first_name() -> None:
    model = tiny_model("qwen3")
    assert "lm_head.weight" not in trained_parameters(model, ["*"], [])
    with pytest.raises(TrainError, match=r"`lm_head\*` is tied") as caught:
        trained_parameters(model, ["lm_head*"], [])
    assert "embed_tokens" in caught.value.hint
    assert list(trained_parameters(tiny_model("llama"), ["lm_head*"], [])) == ["lm_head.weight"]


def parameters() -> dict[str, torch.nn.Parameter]:
    return {"w": torch.nn.Parameter(torch.ones(2, 2)), "b": torch.nn.Parameter(torch.ones(2))}


def test_decay_is_for_matrices_only() -> None:
    own = parameters()
    optimizer = make_optimizer(own, OptimizerSettings(lr=0.1, weight_decay=0.5))
    for each in own.values():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    assert own["w"].flatten().tolist() == pytest.approx([0.95] * 4)
    assert own["b"].tolist() == [1, 1]


def test_a_model_without_vectors_or_without_matrices_can_be_trained() -> None:
    own = parameters()
    for name in own:
        assert len(make_optimizer({name: own[name]}, OptimizerSettings()).param_groups) == 1


def step(own: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for each in own.values():
        each.grad = torch.randn(each.shape, generator=draw)
    optimizer.step()


def test_state_goes_out_and_in_again_bit_by_bit() -> None:
    whole, first, second = parameters(), parameters(), parameters()
    settings, ranks = OptimizerSettings(lr=0.1), OneProcess()
    all_the_way = make_optimizer(whole, settings)
    before = make_optimizer(first, settings)
    for seed in range(3):
        step(whole, all_the_way, seed)
        step(first, before, seed)
    state = {name: tensor.clone() for name, tensor in state_of(before, first, ranks).items()}
    assert set(state) == {f"{what}.{name}" for what in ("step", "exp_avg", "exp_avg_sq") for name in "wb"}
    after = make_optimizer(second, settings)
    load_state(after, second, state, ranks)
    for name in second:
        second[name].data.copy_(first[name].data)
    step(whole, all_the_way, 3)
    step(second, after, 3)
    assert all(torch.equal(whole[name], second[name]) for name in whole)


def test_moments_of_what_no_token_reached_fade_like_all_others() -> None:
    own = parameters()
    optimizer = make_optimizer(own, OptimizerSettings(betas=(0.5, 0.5)))
    for reached in (("w", "b"), ("w",)):
        optimizer.zero_grad(set_to_none=True)
        for name in reached:
            own[name].grad = torch.ones_like(own[name])
        assert len(gradients(own.values())) == 2
        optimizer.step()
    state = state_of(optimizer, own, OneProcess())
    assert (state["step.b"], state["step.w"]) == (2, 2)
    assert state["exp_avg.b"].tolist() == [0.25, 0.25]


def test_a_parameter_that_never_had_a_gradient_has_no_state() -> None:
    own = parameters()
    optimizer = make_optimizer(own, OptimizerSettings())
    own["w"].grad = torch.ones(2, 2)
    optimizer.step()
    state = state_of(optimizer, own, OneProcess())
    assert {name.rpartition(".")[2] for name in state} == {"w"}
    load_state(make_optimizer(own, OptimizerSettings()), own, state, OneProcess())
