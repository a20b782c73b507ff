"""What goes wrong with one request is its own: the others go on, and the engine lives."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, Qwen3ForCausalLM

from gyre.elastic.engine.compute.kv import KVShape
from gyre.elastic.engine.core import Core
from gyre.elastic.engine.request import GenerationRequest
from tests.engine.core.build import (
    Heard,
    add,
    add_choices,
    answer,
    ask,
    core_of,
    fresh,
    loaded,
    network,
    prompt_of,
    require_idle,
    run,
    seeded,
    steps,
    token_bytes,
)

BAD = 7
"""The id that these models cannot stand."""


class Fragile(Qwen3ForCausalLM):
    """Raises when it sees `BAD`, or more than `most` tokens at once."""

    error: type[Exception] = RuntimeError
    most: int | None = None

    def forward(self, input_ids: Any = None, **rest: Any) -> Any:
        if bool((input_ids == BAD).any()):
            raise self.error("it cannot stand 7\nmore of it")
        if self.most is not None and input_ids.shape[1] > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return super().forward(input_ids=input_ids, **rest)


def _fragile(error: type[Exception] = RuntimeError, most: int | None = None) -> Fragile:
    made: Any = Fragile
    model: Fragile = made(fresh().config)
    model.load_state_dict(network().state_dict())
    model.requires_grad_(False)
    model.train(False)
    model.error, model.most = error, most
    return model


def _not_numbers() -> PreTrainedModel:
    """The embedding of `BAD` is NaN."""
    model: Any = fresh()
    model.get_input_embeddings().weight[BAD] = torch.nan
    return loaded(model).model


@dataclass
class Machine:
    """Its memory ends where tensors of more than `most` tokens begin."""

    most: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scarce(KVShape):
    machine: Machine

    def empty(self, tokens: int) -> torch.Tensor:
        if tokens > self.machine.most:
            raise torch.OutOfMemoryError("the machine has no memory left")
        return KVShape.empty(self, tokens)


def _on(machine: Machine, **limits: Any) -> Core:
    core = core_of(**limits)
    fields = {field.name: getattr(core.memory.shape, field.name) for field in dataclasses.fields(KVShape)}
    core.memory.shape = Scarce(**fields, machine=machine)
    return core


def _good(seed: int, length: int = 40) -> list[int]:
    return [id_ for id_ in prompt_of(2 * length, seed) if id_ != BAD][:length]


def _bad(seed: int) -> list[int]:
    return [*_good(seed), BAD, *_good(seed + 1)]


MODELS = {
    "raises RuntimeError": lambda: _fragile(RuntimeError),
    "raises IndexError": lambda: _fragile(IndexError),
    "is out of memory": lambda: _fragile(torch.OutOfMemoryError),
    "is not a number": _not_numbers,
}


def _ask_good(seed: int, max_tokens: int = 12) -> GenerationRequest:
    """Its answer is given, as the model's own might have the id."""
    return ask(_good(seed), max_tokens, forced_ids=_good(seed + 100, max_tokens))


def _require_well(heard: Sequence[Heard], requests: Sequence[GenerationRequest]) -> None:
    for one, request in zip(heard, requests, strict=True):
        assert one.reason == "length"
        assert one.logprobs == pytest.approx(answer(core_of(), request).logprobs, abs=1e-4)


@pytest.mark.parametrize("kind", MODELS)
def test_a_request_that_cannot_be_computed_ends_alone(kind: str) -> None:
    requests = [_ask_good(n) for n in range(4)]
    core = core_of(model=MODELS[kind](), step_tokens=30)
    good = add(core, *requests[:2])
    steps(core, 4)
    bad = add(core, ask(_bad(50), 12), ask(_bad(60), 12, prompt_logprobs=0))
    good += add(core, *requests[2:])
    run(core)
    require_idle(core)
    _require_well(good, requests)
    assert [one.reason for one in bad] == ["error", "error"]
    assert all(one.ids == [] and one.starts == 0 for one in bad)
    for one in bad:
        assert one.finish is not None and one.finish.error is not None
        assert "\n" not in one.finish.error
    assert core.stats.failures == 2
    # And nothing of them is found by others.
    _require_well([answer(core, _ask_good(50))], [_ask_good(50)])


@pytest.mark.parametrize("kind", MODELS)
def test_a_request_that_fails_in_the_middle_keeps_what_it_told(kind: str) -> None:
    core = core_of(model=MODELS[kind]())
    forced = [*_good(3, 5), BAD, *_good(4, 5)]
    bad, good = add(core, ask(_good(1), 11, forced_ids=forced), _ask_good(2, 30))
    run(core)
    assert bad.ids == forced[:6]
    assert bad.reason == "error"
    assert good.reason == "length"
    require_idle(core)


def test_a_batch_too_large_for_the_machine_is_computed_one_by_one() -> None:
    core = core_of(model=_fragile(most=100))
    requests = [_ask_good(n, 5) for n in range(4)]
    heard = add(core, *requests)
    run(core)
    _require_well(heard, requests)


def test_choices_whose_prompt_cannot_be_computed_all_hear_of_it() -> None:
    core = core_of(model=_fragile(), step_tokens=20)
    heard = add_choices(core, *[ask(_bad(1), 5) for _ in range(3)])
    (good,) = add(core, _ask_good(8))
    run(core)
    require_idle(core)
    assert [one.reason for one in heard] == ["error"] * 3
    assert good.reason == "length"


def test_without_memory_to_start_with_only_that_request_ends() -> None:
    core = _on(Machine(most=100))
    small, large, small_too = add(core, ask(prompt_of(20), 5), ask(prompt_of(200), 5), ask(prompt_of(30), 5))
    run(core)
    require_idle(core)
    assert [one.reason for one in (small, large, small_too)] == ["length", "error", "length"]
    assert large.finish is not None
    assert large.finish.error is not None and "memory" in large.finish.error


def test_without_memory_to_grow_only_that_request_ends_and_the_next_one_begins() -> None:
    core = _on(Machine(most=600), slots=1)
    long, short = add(core, ask(prompt_of(60), 560), ask(prompt_of(30, 1), 6))
    run(core)
    require_idle(core)
    assert long.reason == "error"
    assert len(long.ids) == 576 - 60 + 1
    assert short.reason == "length"


def test_without_memory_for_copies_the_first_choice_goes_on_alone() -> None:
    machine = Machine()
    core = _on(machine, step_tokens=20)
    requests = [ask(prompt_of(100), 5, sampling=seeded(n)) for n in range(3)]
    heard = add_choices(core, *requests)
    core.step()
    machine.most = 50
    run(core)
    require_idle(core)
    assert [one.reason for one in heard] == ["length", "error", "error"]
    assert heard[0].ids == answer(core_of(), requests[0]).ids


def test_without_memory_to_keep_less_all_is_kept() -> None:
    machine = Machine()
    core = _on(machine)
    heard = Heard(stop_after=3)
    core.add([(ask(prompt_of(100), 300), heard)])
    core.step()
    machine.most = 0
    run(core)
    require_idle(core)
    assert heard.reason == "stop"
    assert core.stats.kept == 1
    assert core.stats.kv_bytes == 448 * token_bytes()


class Deaf(Heard):
    """Fails as the server's code might."""

    fails_at = "token"

    def started(self, started: Any) -> None:
        super().started(started)
        self._fail("started")

    def token(self, token: Any) -> bool:
        super().token(token)
        self._fail("token")
        return False

    def finished(self, finish: Any) -> None:
        super().finished(finish)
        self._fail("finished")

    def _fail(self, where: str) -> None:
        if where == self.fails_at:
            raise ValueError("the client is gone")


@pytest.mark.parametrize("where", ["started", "token", "finished"])
def test_a_listener_that_raises_harms_nobody(where: str, caplog: pytest.LogCaptureFixture) -> None:
    core = core_of()
    deaf = Deaf()
    deaf.fails_at = where
    request = ask(prompt_of(10), 5)
    core.add([(request, deaf)])
    (good,) = add(core, ask(prompt_of(11), 5))
    run(core)
    require_idle(core)
    assert good.reason == "length"
    assert deaf.ends == 1
    assert request.request_id in caplog.text


def test_an_error_is_forgotten_with_its_request() -> None:
    core = core_of(model=_fragile())
    request = ask(_bad(1), 5)
    assert answer(core, request).reason == "error"
    better = ask(_good(1), 5, request_id=request.request_id, forced_ids=_good(2, 5))
    assert answer(core, better).reason == "length"
