"""What is drawn fits the distribution, is reported with its probability, and repeats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.elastic.engine.compute.sampling import Row, draw, most_probable, prompt_logprobs, threshold
from gyre.elastic.engine.request import SamplingParams
from tests.engine.core import oracle
from tests.engine.core.build import (
    VOCAB,
    add_choices,
    answer,
    answers,
    ask,
    core_of,
    network,
    plain_logits,
    prompt_of,
    run,
    seeded,
)
from tests.engine.core.oracle import shaped

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.02},
]
IDS = [" ".join(f"{key}={value}" for key, value in how.items()) or "neutral" for how in SETTINGS]


def chi_square_limit(freedom: int) -> float:
    """The value exceeded with a probability of about 1e-6 (Wilson and Hilferty)."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4.75 * math.sqrt(spread)) ** 3


def require_fit(counts: np.ndarray[Any, Any], chances: np.ndarray[Any, Any]) -> None:
    """Rare ids are taken together, so that at least five of each bin are expected."""
    total = counts.sum()
    assert not counts[chances == 0].any(), "an id was drawn that is cut off"
    rare = chances * total < 5
    seen = [*counts[~rare], counts[rare].sum()]
    due = [*(chances[~rare] * total), chances[rare].sum() * total]
    pairs = [(have, want) for have, want in zip(seen, due, strict=True) if want > 0]
    value = sum((have - want) ** 2 / want for have, want in pairs)
    assert len(pairs) == 1 or value < chi_square_limit(len(pairs) - 1)


# -- through the core ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SETTINGS, ids=IDS)
def test_log_probabilities_of_the_shaped_distribution_are_reported(how: dict[str, Any]) -> None:
    requests = [ask(prompt_of(9 + n, n), 12, sampling=seeded(n, **how)) for n in range(6)]
    judged = 0
    for request, heard in zip(requests, answers(core_of(), requests), strict=True):
        prompt = list(request.prompt_ids)
        rows = plain_logits(network(), [*prompt, *heard.ids])[len(prompt) - 1 : -1]
        for token, row in zip(heard.tokens, rows, strict=True):
            raw = float(torch.log_softmax(row, -1)[token.id])
            assert token.logprob == pytest.approx(raw, abs=1e-4)
            chances, sure = shaped(row, request.sampling)
            if sure:
                judged += 1
                assert token.sampling_logprob == pytest.approx(float(chances[token.id].log()), abs=1e-4)
    assert judged > 60


@pytest.mark.parametrize("how", SETTINGS, ids=IDS)
def test_seeded_sampling_repeats_alone_and_in_a_batch(how: dict[str, Any]) -> None:
    requests = [ask(prompt_of(5 + 3 * n, n), 15, sampling=seeded(n, **how)) for n in range(1, 9)]
    first = answers(core_of(), requests)
    again = answers(core_of(slots=3, step_tokens=4), requests)
    alone = [answer(core_of(), request) for request in requests]
    assert [one.ids for one in first] == [one.ids for one in again] == [one.ids for one in alone]
    others = [ask(one.prompt_ids, 15, sampling=seeded(99, **how)) for one in requests]
    if how.get("top_k") != 1:
        assert [one.ids for one in answers(core_of(), others)] != [one.ids for one in first]


@pytest.mark.parametrize("how", [SETTINGS[0], SETTINGS[-1]], ids=[IDS[0], IDS[-1]])
def test_what_the_core_draws_fits_the_models_distribution(how: dict[str, Any]) -> None:
    core, prompt, counts = core_of(slots=256, queue=1000), prompt_of(20), np.zeros(VOCAB)
    # As choices of one call: seeds differ, the position is the same.
    heard = add_choices(core, *[ask(prompt, 1, sampling=seeded(seed, **how)) for seed in range(1000)])
    run(core)
    np.add.at(counts, [one.ids[0] for one in heard], 1)
    chances, _ = shaped(plain_logits(network(), prompt)[-1], seeded(0, **how))
    require_fit(counts, chances.numpy())


# -- one row of logits -----------------------------------------------------------------------------


def _rows(count: int, **how: Any) -> list[Row]:
    """Half of them one seed at many positions, half many seeds at one position."""
    params = seeded(1234, **how)
    return [
        *(Row(params, position) for position in range(count // 2)),
        *(Row(seeded(seed, **how), 77) for seed in range(count // 2)),
    ]


@pytest.mark.parametrize("how", SETTINGS, ids=IDS)
@pytest.mark.parametrize("vocab", [7, 200])
def test_frequencies_fit_the_distribution(how: dict[str, Any], vocab: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(vocab).normal(0, 2, vocab).astype(np.float32))
    rows = _rows(2000, **how)
    if rows[0].params.top_k > vocab:
        return
    counts = np.zeros(vocab)
    np.add.at(counts, [one.id for one in draw(logits.expand(len(rows), -1), rows)], 1)
    chances, _ = shaped(logits, rows[0].params)
    require_fit(counts, chances.numpy())


LOGITS = st.lists(
    st.sampled_from([-math.inf, -50.0, -3.0, 0.0, 0.0, 0.5, 2.0, 2.0, 9.0]) | st.floats(-8, 8, width=32),
    min_size=1,
    max_size=150,
).filter(lambda logits: max(logits) > -math.inf)
PARAMS = st.builds(
    SamplingParams,
    seed=st.integers(-(2**70), 2**70),
    temperature=st.sampled_from([0.0, 1e-300, 1e-6, 0.3, 1.0, 1.0, 1.7, 1e300]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 1e-9, 0.999999]),
    top_k=st.sampled_from([0, 0, 1, 2, 10, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
)


@settings(max_examples=300, deadline=None)
@given(LOGITS, PARAMS, st.integers(0, 10**6))
def test_no_id_that_is_cut_off_is_ever_drawn(logits: list[float], params: SamplingParams, at: int) -> None:
    row = torch.tensor(logits)
    (drawn,) = draw(row[None], [Row(params, at)])
    assert row[drawn.id] > -math.inf
    assert drawn.logprob == pytest.approx(float(torch.log_softmax(row.double(), -1)[drawn.id]), abs=1e-5)
    if params.temperature == 0:
        assert drawn.id == logits.index(max(logits))
        assert drawn.sampling_logprob == 0
    elif 1e-4 < params.temperature < 1e4:
        chances, sure = shaped(row, params)
        if sure:
            assert chances[drawn.id] > 0
            assert drawn.sampling_logprob == pytest.approx(float(chances[drawn.id].log()), abs=1e-4)
    assert -math.inf < drawn.sampling_logprob <= 1e-5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(LOGITS, PARAMS, st.integers(0, 99)), min_size=1, max_size=6), st.integers(0, 5))
def test_a_row_is_drawn_whatever_stands_beside_it(
    rows: list[tuple[list[float], SamplingParams, int]], sick: int
) -> None:
    logits = torch.full((len(rows), 150), -math.inf)
    for index, (one, _, _) in enumerate(rows):
        logits[index, : len(one)] = torch.tensor(one)
    logits[sick % len(rows), 3] = math.nan
    asked = [Row(params, position) for _, params, position in rows]
    together = draw(logits, asked)
    for index, drawn in enumerate(together):
        if index == sick % len(rows):
            assert math.isnan(drawn.logprob)
        else:
            (alone,) = draw(logits[index : index + 1], asked[index : index + 1])
            assert drawn.id == alone.id
            assert drawn.logprob == pytest.approx(alone.logprob, abs=1e-6)


@pytest.mark.parametrize("vocab", [1, 5, 64, 65, 200, 4096, 5000, 49152])
@pytest.mark.parametrize("how", [{}, {"temperature": 0.7, "top_p": 0.95}], ids=["neutral", "shaped"])
def test_the_law_of_a_draw_is_for_good(vocab: int, how: dict[str, Any]) -> None:
    """Another engine, or a later one, must continue with the same ids."""
    logits = torch.from_numpy(np.random.default_rng(vocab).normal(0, 2, vocab).astype(np.float32))
    rows = [Row(seeded(seed, **how), 11 * seed) for seed in range(20)]
    chances, _ = shaped(logits, rows[0].params)
    judged = 0
    for row, one in zip(rows, draw(logits.expand(20, -1), rows), strict=True):
        expected, nearest = oracle.drawn(chances, row.params.seed, row.position)
        if nearest > oracle.NEAR:
            judged += 1
            assert one.id == expected
    assert judged > 15


def test_rounding_hardly_ever_decides_what_is_drawn() -> None:
    """As of a batch against the same text alone. One number for all ids: 5 of these 1,000 are others."""
    noise = np.random.default_rng(0)
    logits = torch.from_numpy(noise.normal(0, 2, 49152).astype(np.float32))
    near = logits + torch.from_numpy(noise.normal(0, 1e-5, 49152).astype(np.float32))
    rows = [Row(seeded(seed), seed) for seed in range(1000)]
    pairs = [
        zip(draw(logits.expand(100, -1), part), draw(near.expand(100, -1), part), strict=True)
        for part in (rows[at : at + 100] for at in range(0, 1000, 100))
    ]
    assert sum(one.id != other.id for pair in pairs for one, other in pair) <= 1


@pytest.mark.parametrize("how", [{}, {"temperature": 0.0}, {"top_k": 2}, {"temperature": 3.0}])
def test_a_forced_id_has_the_probability_that_drawing_it_would_have(how: dict[str, Any]) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    params = seeded(0, **how)
    for forced in range(4):
        (drawn,) = draw(logits, [Row(params, 5, forced)])
        assert drawn.id == forced
        assert drawn.logprob == pytest.approx(float(torch.log_softmax(logits[0], -1)[forced]), abs=1e-6)
        if params.temperature == 0:
            assert drawn.sampling_logprob == 0
        else:
            chance = float(shaped(logits[0], params)[0][forced])
            expected = math.log(chance) if chance else -math.inf
            assert drawn.sampling_logprob == pytest.approx(expected, abs=1e-5)


# -- the cuts --------------------------------------------------------------------------------------

WEIGHTS = st.lists(
    st.sampled_from([0.0, 0.25, 0.5, 0.5]) | st.floats(0, 1, width=32), min_size=1, max_size=60
)


@settings(max_examples=400, deadline=None)
@given(WEIGHTS, PARAMS)
def test_the_cuts_are_those_of_a_sort(weights: list[float], params: SamplingParams) -> None:
    exact = [*(float(np.float32(weight)) for weight in weights), 1.0]
    floor = threshold(torch.tensor(exact), params)
    kept = sorted((weight for weight in exact if weight >= np.float32(floor)), reverse=True)
    wanted, near = _cut(exact, params)
    assert kept == wanted or near


def _cut(weights: list[float], params: SamplingParams) -> tuple[list[float], bool]:
    """What is left, largest first, by plain arithmetic; and whether rounding may decide otherwise."""
    left = sorted((one for one in weights if one >= np.float32(params.min_p)), reverse=True)
    if params.top_k:
        left = [one for one in left if one >= left[min(params.top_k, len(left)) - 1]]
    if params.top_p == 1:
        return left, False
    wanted, total, near = params.top_p * math.fsum(left), 0.0, False
    for one in left:
        total += one
        near |= abs(total - wanted) < 1e-9
        if total >= wanted:
            return [other for other in left if other >= one], near
    return left, True


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.99])
def test_a_flat_distribution_is_cut_beyond_the_few_that_are_sorted_first(top_p: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(0).normal(0, 0.1, 5000).astype(np.float32))
    params = seeded(0, top_p=top_p)
    chances, _ = shaped(logits, params)
    rows = [Row(seeded(seed, top_p=top_p), 3) for seed in range(40)]
    for drawn in draw(logits.expand(40, -1), rows):
        assert chances[drawn.id] > 0
        assert drawn.sampling_logprob == pytest.approx(float(chances[drawn.id].log()), abs=1e-3)


# -- what is reported beside -----------------------------------------------------------------------


def test_the_most_probable_ids_come_in_their_order() -> None:
    logits = torch.tensor([0.5, 3.0, -1.0, 2.0])
    top = most_probable(logits, 10)
    assert [one.id for one in top] == [1, 3, 0, 2]
    expected = torch.log_softmax(logits, -1)[[1, 3, 0, 2]].tolist()
    assert [one.logprob for one in top] == pytest.approx(expected, abs=1e-6)
    assert len(most_probable(logits, 2)) == 2


def test_prompt_tokens_are_told_with_rank_and_alternatives() -> None:
    logits = torch.tensor([[0.5, 3.0, -1.0, 2.0], [1.0, 1.0, 0.0, 4.0]])
    first, second = prompt_logprobs(logits, [0, 3], 2)
    assert (first.id, first.rank, [one.id for one in first.top]) == (0, 3, [1, 3])
    assert (second.id, second.rank) == (3, 1)
    assert first.logprob == pytest.approx(float(torch.log_softmax(logits[0], -1)[0]), abs=1e-6)
    assert prompt_logprobs(logits, [0, 3], 0)[0].top == ()


def test_half_precision_logits_are_drawn_as_their_values_in_fp32() -> None:
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(1)).bfloat16()
    rows = [Row(seeded(n), n) for n in range(4)]
    assert draw(logits, rows) == draw(logits.float(), rows)


def test_greedy_is_the_first_of_equals_as_it_is_for_generate() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 2.0]])
    assert draw(logits, [Row(seeded(0, temperature=0), 0)])[0].id == 1
    assert oracle.TIE > 0
