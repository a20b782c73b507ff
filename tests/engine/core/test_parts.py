"""The parts without a model: noise, the plan of a step, the door, one sequence's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.elastic.engine.compute.kv import GRAIN, KVShape, SequenceKV, rounded
from gyre.elastic.engine.compute.noise import seed_of_choice, uniforms
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.request import Span, spans_of
from gyre.elastic.engine.schedule.door import require_sound
from gyre.elastic.engine.schedule.plan import plan_step
from gyre.proxy.errors import RequestError
from tests.engine.core.build import VOCAB, Heard, ask, core_of, loaded, network, require_idle, seeded

# -- noise -----------------------------------------------------------------------------------------


def _streams(count: int) -> dict[str, list[float]]:
    return {
        "positions": [uniforms(7, position)[0] for position in range(count)],
        "seeds": [uniforms(seed, 7)[1] for seed in range(count)],
        "neighbours": [uniforms(n, n)[2] for n in range(count)],
        "choices": [uniforms(seed_of_choice(5, choice), 100)[3] for choice in range(count)],
        "all": [number for position in range(count // 4) for number in uniforms(3, position)],
    }


@pytest.mark.parametrize("name", ["positions", "seeds", "neighbours", "choices", "all"])
def test_noise_is_uniform_and_no_number_tells_of_the_next(name: str) -> None:
    numbers = np.array(_streams(20_000)[name])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, 100, (0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 170  # of 99 degrees of freedom
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert len(set(numbers.tolist())) == 20_000


def test_noise_is_the_same_in_every_engine() -> None:
    """A continuation elsewhere needs it: these numbers may never change."""
    assert [number.hex() for number in uniforms(123456789, 4095)] == [
        "0x1.459af4ab68baap-1",
        "0x1.ec001aab7a850p-1",
        "0x1.52a67f5f60884p-1",
        "0x1.ee8c170675be9p-1",
    ]
    assert uniforms(-1, 5) == uniforms(2**64 - 1, 5)
    assert uniforms(3, 5) != uniforms(5, 3)


def test_the_first_choice_has_the_calls_seed() -> None:
    assert seed_of_choice(42, 0) == 42
    seeds = [seed_of_choice(42, choice) for choice in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)


# -- the plan --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 300), max_size=12), st.integers(1, 200))
def test_a_step_serves_every_answer_and_shares_the_rest(pending: list[int], budget: int) -> None:
    counts = plan_step(pending, budget=budget)
    assert len(counts) == len(pending)
    assert all(0 <= count <= tokens for count, tokens in zip(counts, pending, strict=True))
    assert all(count == 1 for count, tokens in zip(counts, pending, strict=True) if tokens == 1)
    prompts = [(count, tokens) for count, tokens in zip(counts, pending, strict=True) if tokens > 1]
    # Nothing is left over that somebody could use, and nothing is spent twice.
    assert sum(count for count, _ in prompts) == min(budget, sum(tokens for _, tokens in prompts))
    if prompts:
        count, tokens = prompts[0]
        assert count >= min(tokens, budget // 2)


# -- the door --------------------------------------------------------------------------------------

MODEL = loaded(network())
LIMITS = EngineLimits(ctx=100, kv_bytes=1 << 20)
SHAPE = KVShape(layers=2, heads=2, head_dim=8, dtype=torch.float32, device=torch.device("cpu"))


def _refusal(limits: EngineLimits = LIMITS, **request: Any) -> RequestError:
    with pytest.raises(RequestError) as refused:
        require_sound([ask(**{"prompt": [1, 2, 3], "max_tokens": 5, **request})], MODEL, limits, SHAPE)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"prompt": []}, "prompt is empty"),
        ({"prompt": [1, VOCAB]}, f"`prompt` has the id {VOCAB}"),
        ({"prompt": [-1]}, "`prompt` has the id -1"),
        ({"output_ids": [3, 500]}, "`output_token_ids` has the id 500"),
        ({"forced_ids": [500]}, "`forced_ids` has the id 500"),
        ({"max_tokens": 0}, "`max_tokens` is 0"),
        ({"max_tokens": -3}, "`max_tokens` is -3"),
        ({"output_ids": [1] * 5}, "`output_token_ids` has 5 of `max_tokens` 5"),
        ({"sampling": seeded(0, temperature=-0.1)}, "`temperature`"),
        ({"sampling": seeded(0, temperature=float("nan"))}, "`temperature`"),
        ({"sampling": seeded(0, temperature=float("inf"))}, "`temperature`"),
        ({"sampling": seeded(0, top_p=0)}, "`top_p`"),
        ({"sampling": seeded(0, top_p=1.01)}, "`top_p`"),
        ({"sampling": seeded(0, top_p=float("nan"))}, "`top_p`"),
        ({"sampling": seeded(0, min_p=-0.1)}, "`min_p`"),
        ({"sampling": seeded(0, min_p=float("nan"))}, "`min_p`"),
        ({"sampling": seeded(0, top_k=-1)}, "`top_k`"),
        ({"top_logprobs": -1}, "`logprobs`"),
        ({"prompt_logprobs": -1}, "`prompt_logprobs`"),
        ({"prompt_logprobs": 0, "kv_id": "kv-1"}, "`kv_id`"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(request_: dict[str, Any], words: str) -> None:
    assert words in str(_refusal(**request_))


def test_what_is_too_long_is_refused_with_the_lengths() -> None:
    refusal = _refusal(prompt=[1] * 60, max_tokens=41)
    assert refusal.code == "context_length_exceeded"
    assert all(number in str(refusal) for number in ("100", "60", "41", "101"))
    require_sound([ask([1] * 60, 40)], MODEL, LIMITS, SHAPE)


def test_a_refused_call_leaves_nothing_behind() -> None:
    core = core_of()
    good, bad = ask([1, 2], 3), ask([1, 2], 0)
    for calls in ([good, bad], [good, ask([1, 3], 3)], [good, ask([1, 2], 3, output_ids=[4])], [good, good]):
        with pytest.raises(RequestError):
            core.add([(request, Heard()) for request in calls])
        require_idle(core)


# -- one sequence's memory -------------------------------------------------------------------------

ONE = KVShape(layers=1, heads=1, head_dim=1, dtype=torch.float32, device=torch.device("cpu"))


def write(kv: SequenceKV, values: list[int], version: str) -> None:
    """As a forward pass does."""
    kv.reserve(kv.length + len(values))
    rows = torch.tensor(values, dtype=torch.float32)[None, None, :, None]
    kv.layers[0][:, :, kv.length : kv.length + len(values)] = rows
    kv.advance(len(values), version)


def read(kv: SequenceKV) -> list[int]:
    return [int(value) for value in kv.data[0, 0, 0, : kv.length, 0].tolist()]


DEEDS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 90), st.sampled_from("abc")),
    st.tuples(st.just("truncate"), st.integers(0, 200), st.just("")),
    st.tuples(st.just("copy"), st.integers(0, 200), st.just("")),
    st.tuples(st.just("trim"), st.just(0), st.just("")),
    st.tuples(st.just("reserve"), st.integers(0, 400), st.just("")),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(DEEDS, max_size=15))
def test_memory_is_what_was_written_whatever_happens_to_it(deeds: list[tuple[str, int, str]]) -> None:
    kv, values, versions = SequenceKV(ONE), list[int](), list[str]()
    for index, (deed, number, version) in enumerate(deeds):
        if deed == "write":
            new = list(range(1000 * index, 1000 * index + number))
            write(kv, new, version)
            values, versions = values + new, versions + [version] * number
        elif deed == "truncate":
            kv.truncate(number)
            values, versions = values[:number], versions[:number]
        elif deed == "copy":
            kept, before = kv, read(kv)
            kv = kv.copy(min(number, kv.length), number)
            values, versions = values[:number], versions[:number]
            write(kept, [7] * 5, "z")
            assert read(kept) == [*before, *[7] * 5]
        elif deed == "trim":
            kv.trim()
            assert kv.capacity <= rounded(kv.length) + max(2 * GRAIN, kv.length // 4)
        else:
            kv.reserve(number)
            assert kv.capacity >= number
        assert read(kv) == values
        assert kv.spans() == spans_of(versions)
        assert kv.spans(10) == spans_of(versions[:10])
        assert kv.only("a") == (set(versions) <= {"a"})
        assert kv.capacity % GRAIN == 0
        assert kv.nbytes == kv.data.nbytes == kv.capacity * ONE.token_bytes


def test_neighbours_of_one_version_are_one_span() -> None:
    assert spans_of("aabba") == (Span("a", 0, 2), Span("b", 2, 4), Span("a", 4, 5))
    assert spans_of("") == ()
