"""Trees and model belong together, or it is said before anything is trained."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.data.checks import MAX_GAP, check_against_model, check_gap
from gyre.trainer.data.read import TrainData, read_groups
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import TrainSettings
from tests.trainer.data.folders import PLAIN, one_call, pair, stored
from tests.trees.export.builders import TreeBuilder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainData:
    """Two short executions of a group and one that is long; one of another group has the largest id."""
    folder = pair("a", "b")
    built = TreeBuilder("long")
    leaf = built.call("l", None, range(10), [3, 4], **PLAIN)
    built.admit(leaf, 0)
    # Nothing of it is trained, and it is far longer.
    built.call("side", leaf, range(50), [999], **PLAIN)
    folder.add(built.tree(), group="g", score=0.5)
    folder.add(one_call("wide", output=[96, 4]), group="h", score=0.5)
    return read_groups(stored(tmp_path_factory.mktemp("data") / "trees", folder), TrainSettings())


@pytest.mark.parametrize("positions", [None, 11, 4096])
def test_a_model_that_is_large_enough_is_accepted(data: TrainData, positions: int | None) -> None:
    check_against_model(data, vocab_size=97, max_positions=positions)


def test_ids_that_the_model_does_not_know_are_of_another_vocabulary(data: TrainData) -> None:
    with pytest.raises(TrainError, match=r"another tokenizer .*: `wide` has token id 96, .* 96 ids"):
        check_against_model(data, vocab_size=96, max_positions=None)


def test_a_path_that_is_too_long_is_named(data: TrainData) -> None:
    # 10 of its prompt and the first of two that were sampled: the last is only predicted.
    with pytest.raises(TrainError, match="`long` has a path of 11 tokens, the model knows 10 positions"):
        check_against_model(data, vocab_size=97, max_positions=10)


def test_a_reference_model_is_called_one(data: TrainData) -> None:
    with pytest.raises(TrainError, match="the reference model's vocabulary is 96 ids") as caught:
        check_against_model(data, vocab_size=96, max_positions=None, reference=True)
    assert "`loss.reference`" in caught.value.hint
    with pytest.raises(TrainError, match="the reference model knows 10 positions"):
        check_against_model(data, vocab_size=97, max_positions=10, reference=True)


def logprobs(*values: float) -> npt.NDArray[np.float32]:
    return np.array(values, np.float32)


def test_the_gap_is_the_mean_of_what_differs() -> None:
    recorded, own = logprobs(-1.0, np.nan, -2.0, -0.5), logprobs(-1.5, -9.0, -1.75, -0.5)
    assert check_gap(recorded, own) == 0.25
    with pytest.raises(
        TrainError, match=r"another model .* policy long before .* by 0.25 nats a token"
    ) as caught:
        check_gap(recorded, own, limit=0.2)
    assert "record anew" in caught.value.hint


def test_where_nothing_is_known_there_is_no_gap() -> None:
    assert check_gap(logprobs(np.nan, np.nan), logprobs(-1, -2)) is None
    assert check_gap(logprobs(), logprobs()) is None


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_model_whose_log_probabilities_are_no_numbers_is_none(bad: float) -> None:
    with pytest.raises(TrainError, match="nats a token"):
        check_gap(logprobs(-1, -1), logprobs(-1, bad))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 32))
def test_ids_that_mean_something_else_are_noticed(seed: int) -> None:
    """Of a model that is sure of what it says, with the ids of the vocabulary in another order."""
    draw = np.random.default_rng(seed)
    logits = draw.normal(0, 4, (64, 50))
    table = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    sampled = np.array([draw.choice(50, p=np.exp(row)) for row in table])
    recorded = table[np.arange(64), sampled].astype(np.float32)
    noisy = recorded + draw.normal(0, 0.05, 64).astype(np.float32)
    assert (check_gap(recorded, noisy) or 0) < 0.1 * MAX_GAP
    with pytest.raises(TrainError):
        check_gap(recorded, table[np.arange(64), draw.permutation(50)[sampled]])
