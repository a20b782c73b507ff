"""Chunked scores against the plain formula on whole logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes import head
from gyre.trainer.passes.head import Scores
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import PassOutput
from tests.trainer.models import VOCAB, tiny_model

SOURCES = [0, 0, 2, 2, 2, 5, 0, 4]
LABELS = [3, 96, 0, 0, 7, 11, 3, 50]
TEMPERATURES = [1.0, 0.7, 1.3, 1.3, 1.0, 0.5, 1.0, 1.0]


def piece() -> Piece:
    """One path; only its targets are looked at here."""
    count = max(SOURCES) + 1
    return Piece(
        input_ids_N=np.arange(count),
        position_ids_N=np.arange(count),
        parent_N=np.arange(count) - 1,
        tout_N=np.full(count, count),
        source_K=np.array(SOURCES),
        label_K=np.array(LABELS),
        target_K=np.arange(len(SOURCES)),
    )


def weigh(logprobs_k: torch.Tensor, which_k: torch.Tensor) -> torch.Tensor:
    """A loss whose terms differ by target and are not linear."""
    return ((which_k + 1) * logprobs_k.exp() - logprobs_k * 0.3).sum()


def plain(policy: Policy, hidden_MD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    logits_KV = policy.head(hidden_MD)[torch.tensor(SOURCES)] / torch.tensor(TEMPERATURES)[:, None]
    logs_KV = logits_KV.log_softmax(-1)
    return logs_KV[torch.arange(len(LABELS)), torch.tensor(LABELS)], -(logs_KV.exp() * logs_KV).sum(-1)


def scored(policy: Policy, hidden_MD: torch.Tensor) -> tuple[PassOutput, torch.Tensor | None]:
    scores = Scores(policy, piece(), torch.tensor(TEMPERATURES), weigh)
    return scores_of(scores, hidden_MD)


def scores_of(scores: Scores, hidden_MD: torch.Tensor) -> tuple[PassOutput, torch.Tensor | None]:
    gradient_MD = scores.add(hidden_MD, np.array(SOURCES), np.arange(len(SOURCES)))
    return scores.output(), gradient_MD


def policy_and_hidden() -> tuple[Policy, torch.Tensor]:
    policy = Policy(tiny_model("llama"))
    torch.manual_seed(3)
    return policy, torch.randn(6, 32)


@pytest.mark.parametrize("chunk_rows", [1, 3, 100])
def test_equals_the_whole_formula(chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, hidden_MD = policy_and_hidden()
    monkeypatch.setattr(Policy, "head_rows", lambda self, budget: chunk_rows)
    hidden_MD.requires_grad_()
    logprobs_K, entropy_K = plain(policy, hidden_MD)
    loss = weigh(logprobs_K, torch.arange(len(LABELS)))
    loss.backward()
    weight = policy.model.get_output_embeddings().weight
    wanted = weight.grad
    weight.grad = None

    out, gradient_MD = scored(policy, hidden_MD)

    assert torch.allclose(out.logprobs_K, logprobs_K, atol=2e-6)
    assert torch.allclose(out.entropy_K, entropy_K, atol=2e-6)
    assert out.loss == pytest.approx(float(loss.detach()), rel=1e-6)
    assert gradient_MD is not None and hidden_MD.grad is not None
    assert (gradient_MD - hidden_MD.grad).norm() < 1e-6 * hidden_MD.grad.norm()
    assert (weight.grad - wanted).norm() < 1e-6 * wanted.norm()


def test_without_a_loss_there_is_no_gradient() -> None:
    policy, hidden_MD = policy_and_hidden()
    scores = Scores(policy, piece(), torch.tensor(TEMPERATURES))
    out, gradient_MD = scores_of(scores, hidden_MD.requires_grad_())
    assert gradient_MD is None
    assert out.loss == 0
    assert torch.allclose(out.logprobs_K, plain(policy, hidden_MD)[0], atol=2e-6)
    assert policy.model.get_output_embeddings().weight.grad is None


def test_parts_make_up_the_whole() -> None:
    policy, hidden_MD = policy_and_hidden()
    whole, gradient_MD = scored(policy, hidden_MD)
    scores = Scores(policy, piece(), torch.tensor(TEMPERATURES), weigh)
    rows, which = np.array(SOURCES), np.arange(len(SOURCES))
    sum_MD = torch.zeros_like(hidden_MD)
    for part in (which[5:], which[:2], which[2:2], which[2:5]):
        added_MD = scores.add(hidden_MD, rows[part], part)
        assert added_MD is not None
        sum_MD += added_MD
    out = scores.output()
    assert torch.allclose(out.logprobs_K, whole.logprobs_K, atol=2e-6)
    assert out.loss == pytest.approx(whole.loss, rel=1e-6)
    assert gradient_MD is not None and torch.allclose(sum_MD, gradient_MD, atol=1e-6)


def test_a_frozen_head_passes_gradients_through() -> None:
    policy, hidden_MD = policy_and_hidden()
    wanted = scored(policy, hidden_MD)[1]
    policy.model.get_output_embeddings().weight.requires_grad_(False)
    given = scored(policy, hidden_MD)[1]
    assert wanted is not None and given is not None and torch.equal(wanted, given)


def test_no_more_logits_than_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, hidden_MD = policy_and_hidden()
    rows: list[int] = []
    stock = Policy.head

    def counted(self: Policy, hidden_MD: torch.Tensor) -> torch.Tensor:
        rows.append(len(hidden_MD))
        return stock(self, hidden_MD)

    monkeypatch.setattr(Policy, "head", counted)
    monkeypatch.setattr(head, "CHUNK_BYTES", 0)
    assert policy.head_rows(64 << 20) == (64 << 20) // (4 * VOCAB)
    scored(policy, hidden_MD.repeat(30, 1))
    many = np.arange(100)
    scores = Scores(policy, piece(), torch.ones(8))
    scores.add(hidden_MD.repeat(30, 1), many, many % 8)
    assert rows == [6, 32, 32, 32, 4]  # six pairs of source and temperature; then as wide as the model
