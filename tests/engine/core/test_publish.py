"""New weights under running requests: who is told which version, and whose memory may be used."""

from __future__ import annotations

import pytest
import torch

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.request import GenerationRequest, Span, spans_of
from gyre.proxy.errors import RequestError
from tests.engine.core.build import (
    Heard,
    add,
    add_choices,
    answer,
    ask,
    core_of,
    fresh,
    network,
    prompt_of,
    require_idle,
    run,
    seeded,
    staged,
    steps,
)
from tests.engine.weights.replay import Replay, weights_of

SEEDS = {"1": 0, "2": 1, "3": 2}
"""Version -> seed of its weights."""


def _replay() -> Replay:
    return Replay(fresh(), {version: weights_of(network(seed=seed)) for version, seed in SEEDS.items()})


def _publish(core: Core, version: str, in_flight: str) -> None:
    core.publish(staged(SEEDS[version]), version=version, in_flight=in_flight)


def _two_publications(in_flight: str) -> tuple[list[GenerationRequest], list[Heard], Core]:
    core = core_of(slots=4, step_tokens=30)
    requests = [ask(prompt_of(50, n), 20, sampling=seeded(n)) for n in range(6)]
    heard = add(core, *requests)
    for version in ("2", "3"):
        steps(core, 9)
        _publish(core, version, in_flight)
    run(core)
    require_idle(core)
    return requests, heard, core


def test_kept_memory_gives_what_a_replay_gives_that_swaps_at_the_recorded_places() -> None:
    requests, heard, core = _two_publications("keep")
    replay = _replay()
    seen = set()
    for request, one in zip(requests, heard, strict=True):
        assert one.finish is not None
        spans = one.finish.kv_spans
        assert spans[0].start == 0 and spans[-1].end == 50 + 19
        ids = [*request.prompt_ids, *one.ids]
        expected = replay.kept(ids, spans)[49:]
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
        by_position = {at: span.version for span in spans for at in range(span.start, span.end)}
        assert [token.version for token in one.tokens] == [by_position[49 + n] for n in range(20)]
        seen.add(spans_of(token.version for token in one.tokens))
    assert len(seen) > 2
    assert core.stats.publications == 2


def test_recomputed_memory_gives_what_a_fresh_pass_of_the_version_gives() -> None:
    requests, heard, _ = _two_publications("recompute")
    replay = _replay()
    for request, one in zip(requests, heard, strict=True):
        ids = [*request.prompt_ids, *one.ids]
        fresh_by_version = {version: replay.fresh(ids, version)[49:] for version in SEEDS}
        expected = [fresh_by_version[token.version][n] for n, token in enumerate(one.tokens)]
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
        assert one.finish is not None
        assert one.finish.kv_spans == (Span("3", 0, 69),)
    assert len({token.version for one in heard for token in one.tokens}) == 3


def test_abort_ends_whole_calls_that_run_and_none_that_wait() -> None:
    core = core_of(slots=3, step_tokens=20)
    choices = [ask(prompt_of(60), 9, sampling=seeded(n)) for n in range(3)]
    running = add_choices(core, *choices)
    (waiting,) = add(core, ask(prompt_of(20), 3))
    core.step()
    _publish(core, "2", "abort")
    assert [one.reason for one in running] == ["abort"] * 3
    run(core)
    require_idle(core)
    assert waiting.reason == "length"
    assert {token.version for token in waiting.tokens} == {"2"}
    alone = answer(core_of(seed=1), ask(prompt_of(20), 3))
    assert waiting.ids == alone.ids


@pytest.mark.parametrize("in_flight", ["keep", "recompute", "abort"])
def test_no_memory_of_older_weights_is_found(in_flight: str) -> None:
    core = core_of()
    prompt = prompt_of(64)
    answer(core, ask(prompt, 4))
    (crossed,) = add(core, ask(prompt_of(64, 1), 8))
    steps(core, 3)
    _publish(core, "2", in_flight)
    run(core)
    for again in (prompt, prompt_of(64, 1)):
        heard = answer(core, ask(again, 4))
        alone = answer(core_of(seed=1), ask(again, 4))
        assert heard.ids == alone.ids
        assert heard.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
        recomputed = in_flight == "recompute" and again != prompt
        assert heard.finish is not None
        assert heard.finish.cached_tokens == (63 if recomputed else 0)
    assert crossed.ends == 1


def test_a_prompt_that_is_being_read_is_read_anew_and_all_of_its_answer_is_of_one_version() -> None:
    """Whoever compares a version's tokens with its weights must find no others in their keys and values."""
    core = core_of(step_tokens=20)
    requests = [ask(prompt_of(90), 6, sampling=seeded(n)) for n in range(3)]
    heard = add_choices(core, *requests)
    core.step()
    _publish(core, "2", "keep")
    run(core)
    for request, one in zip(requests, heard, strict=True):
        assert one.finish is not None
        assert [span.version for span in one.finish.kv_spans] == ["2"]
        expected = _replay().fresh([*request.prompt_ids, *one.ids], "2")[89:]
        assert one.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("in_flight", ["keep", "recompute"])
def test_a_prompts_log_probabilities_are_of_the_version_they_are_told_with(in_flight: str) -> None:
    core = core_of(step_tokens=20)
    request = ask(prompt_of(90), 3, prompt_logprobs=0)
    (heard,) = add(core, request)
    core.step()
    _publish(core, "2", in_flight)
    run(core)
    assert heard.start is not None and heard.start.prompt_logprobs is not None
    assert (heard.start.version, heard.start.digest) == ("2", "digest 1")
    told = [row.logprob for row in heard.start.prompt_logprobs]
    assert told == pytest.approx(_replay().fresh(request.prompt_ids, "2"), abs=1e-4)


def test_a_paused_engine_takes_weights_and_goes_on() -> None:
    core = core_of()
    (heard,) = add(core, ask(prompt_of(20), 8))
    steps(core, 3)
    core.pause("keep")
    _publish(core, "2", "keep")
    core.resume()
    run(core)
    assert [token.version for token in heard.tokens] == ["1"] * 3 + ["2"] * 5


def test_parameters_stay_where_they_are() -> None:
    core = core_of()
    before = {name: tensor.data_ptr() for name, tensor in core.model.model.named_parameters()}
    _publish(core, "2", "keep")
    assert {name: tensor.data_ptr() for name, tensor in core.model.model.named_parameters()} == before
    assert (core.version, core.digest) == ("2", "digest 1")
    parameters = dict(network(seed=1).named_parameters())
    for name, tensor in core.model.model.named_parameters():
        assert torch.equal(tensor, parameters[name])


def test_a_version_has_one_set_of_weights_for_good() -> None:
    core = core_of()
    (heard,) = add(core, ask(prompt_of(20), 8))
    steps(core, 3)
    _publish(core, "2", "keep")
    for taken in ("1", "2"):
        with pytest.raises(RequestError, match=f"`{taken}`") as refused:
            core.publish(staged(2), version=taken, in_flight="abort")
        assert refused.value.status == 409
    with pytest.raises(RequestError, match="`1`"):
        core.rename("1")
    assert core.version == "2" and heard.ends == 0
    _publish(core, "1", "keep")  # the same weights again
    run(core)
    assert [token.version for token in heard.tokens] == ["1"] * 3 + ["1"] * 5
    core.rename("1b")
    assert (core.version, core.digest) == ("1b", "digest 0")


def test_weights_that_do_not_fit_change_nothing() -> None:
    core = core_of()
    (heard,) = add(core, ask(prompt_of(20), 8))
    steps(core, 3)
    with pytest.raises(ValueError, match="another model"):
        core.publish(staged(0, "qwen3 moe"), version="2", in_flight="abort")
    assert core.version == "1"
    run(core)
    assert heard.reason == "length"
    assert heard.ids == answer(core_of(), ask(prompt_of(20), 8)).ids
