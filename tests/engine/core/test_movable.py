"""A conversation's keys and values leave one core and are used by another."""

from __future__ import annotations

import pytest

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.moving.carry import export_ids, export_request, import_conversation
from gyre.elastic.engine.moving.conversation import decode, encode
from gyre.elastic.engine.request import GenerationRequest, Span
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


def _move(source: Core, request: GenerationRequest, target: Core) -> str:
    """As between two processes."""
    blob = encode(export_request(source, request.request_id))
    return import_conversation(target, decode(blob, 1 << 30))


def _rest(request: GenerationRequest, heard: Heard, kv_id: str | None = None) -> GenerationRequest:
    return ask(
        request.prompt_ids, request.max_tokens, sampling=request.sampling, output_ids=heard.ids, kv_id=kv_id
    )


@pytest.mark.parametrize("by", ["name", "ids"])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("at", [1, 2, 9])
def test_a_moved_request_goes_on_as_if_undisturbed(by: str, temperature: float, at: int) -> None:
    request = ask(prompt_of(50), 20, sampling=seeded(3, temperature=temperature))
    whole = answer(core_of(), request)
    source, target = core_of(), core_of()
    (heard,) = add(source, request)
    steps(source, at)
    kv_id = _move(source, request, target)
    assert heard.reason == "moved"
    require_idle(source)
    rest = answer(target, _rest(request, heard, kv_id if by == "name" else None))
    assert heard.ids + rest.ids == whole.ids
    assert heard.logprobs + rest.logprobs == pytest.approx(whole.logprobs, abs=1e-4)
    assert target.stats.computed_tokens == 20 - at
    assert rest.finish is not None and rest.finish.cached_tokens == 50
    require_idle(target)


def test_a_request_in_the_middle_of_its_prompt_moves_with_what_is_computed() -> None:
    request = ask(prompt_of(200), 5)
    source, target = core_of(step_tokens=30), core_of()
    (heard,) = add(source, request)
    steps(source, 2)
    kv_id = _move(source, request, target)
    assert heard.ids == [] and heard.starts == 0
    rest = answer(target, _rest(request, heard, kv_id))
    assert rest.ids == answer(core_of(), request).ids
    assert target.stats.computed_tokens == 200 - 120 + 4


def test_memory_of_mixed_weights_is_used_by_name_only() -> None:
    request = ask(prompt_of(50), 20, sampling=seeded(3))
    source, target, other = core_of(), core_of(seed=1, version="2"), core_of(seed=1, version="2")
    (heard,) = add(source, request)
    steps(source, 5)
    source.publish(staged(1), version="2", in_flight="keep")
    steps(source, 5)
    conversation = export_request(source, request.request_id)
    assert conversation.spans == (Span("1", 0, 54), Span("2", 54, 59))
    kv_id = import_conversation(target, conversation)
    import_conversation(other, conversation)
    rest = answer(target, _rest(request, heard, kv_id))
    assert rest.finish is not None
    assert rest.finish.kv_spans == (Span("1", 0, 54), Span("2", 54, 69))
    replay = Replay(fresh(), {"1": weights_of(network()), "2": weights_of(network(seed=1))})
    ids = [*request.prompt_ids, *heard.ids, *rest.ids]
    told = [*heard.logprobs, *rest.logprobs]
    assert told == pytest.approx(replay.kept(ids, rest.finish.kv_spans)[49:], abs=1e-4)
    plain = answer(other, _rest(request, heard))
    assert plain.finish is not None and plain.finish.cached_tokens == 0


def test_the_same_weights_may_have_another_name_here() -> None:
    source, target = core_of(), core_of(version="seven")
    request = ask(prompt_of(40), 9)
    (heard,) = add(source, request)
    steps(source, 3)
    rest = answer(target, _rest(request, heard, _move(source, request, target)))
    assert rest.finish is not None
    assert rest.finish.kv_spans == (Span("seven", 0, 48),)


def test_a_name_that_is_taken_here_by_other_weights_is_told_apart() -> None:
    source, target = core_of(), core_of(seed=2)  # to both their own weights are "1"
    request = ask(prompt_of(40), 9)
    (heard,) = add(source, request)
    steps(source, 3)
    source.publish(staged(1), version="2", in_flight="keep")
    steps(source, 2)
    target.publish(staged(1), version="2", in_flight="keep")
    rest = answer(target, _rest(request, heard, _move(source, request, target)))
    assert rest.finish is not None
    first, second = rest.finish.kv_spans
    assert target.digests[first.version] == "digest 0"
    assert target.digests["1"] == "digest 2"
    assert second.version == "2"


def test_memory_of_other_weights_is_refused() -> None:
    request = ask(prompt_of(40), 9)
    source = core_of()
    add(source, request)
    steps(source, 3)
    conversation = export_request(source, request.request_id)
    target = core_of(seed=1)
    with pytest.raises(RequestError) as refused:
        import_conversation(target, conversation)
    assert refused.value.status == 409
    assert target.stats.kv_bytes == 0


def test_what_is_not_there_is_not_exported() -> None:
    core = core_of(slots=1)
    running, waiting = ask(prompt_of(40), 9), ask(prompt_of(50), 9)
    heard = add(core, running, waiting)
    core.step()
    for name, status in (("unknown", 404), (waiting.request_id, 409)):
        with pytest.raises(RequestError) as refused:
            export_request(core, name)
        assert refused.value.status == status
    with pytest.raises(RequestError) as refused:
        export_ids(core, prompt_of(77))
    assert refused.value.status == 404
    run(core)
    assert [one.reason for one in heard] == ["length"] * 2


def test_kept_memory_is_exported_by_its_ids_and_stays() -> None:
    source, target = core_of(), core_of()
    prompt = prompt_of(64)
    heard = answer(source, ask(prompt, 6))
    conversation = export_ids(source, [*prompt, *heard.ids, 1, 2])
    assert conversation.n_tokens == 69
    import_conversation(target, conversation)
    for core in (source, target):
        again = answer(core, ask([*prompt, *heard.ids, 1], 4))
        assert again.finish is not None and again.finish.cached_tokens == 69
        assert again.ids == answer(core_of(), ask([*prompt, *heard.ids, 1], 4)).ids


def test_a_name_is_good_for_one_request_and_for_its_tokens() -> None:
    source, target = core_of(), core_of()
    prompt = prompt_of(64)
    answer(source, ask(prompt, 6))
    kv_id = import_conversation(target, export_ids(source, prompt))
    with pytest.raises(RequestError) as refused:
        add(target, ask(prompt_of(64, 1), 3, kv_id=kv_id))
    assert refused.value.status == 409
    first = answer(target, ask(prompt, 6, kv_id=kv_id))
    with pytest.raises(RequestError) as refused:
        add(target, ask(prompt, 3, kv_id=kv_id))
    assert (refused.value.status, refused.value.code) == (409, "kv_unknown")
    assert first.ids == answer(core_of(), ask(prompt, 6)).ids


def test_two_that_wait_with_one_name_both_answer() -> None:
    source, target = core_of(), core_of(slots=1)
    prompt = prompt_of(64)
    answer(source, ask(prompt, 6))
    kv_id = import_conversation(target, export_ids(source, prompt))
    heard = add(target, *[ask(prompt, 6, kv_id=kv_id) for _ in range(2)])
    run(target)
    require_idle(target)
    assert heard[0].ids == heard[1].ids == answer(core_of(), ask(prompt, 6)).ids


def test_imports_have_their_place_in_the_bound_and_give_way() -> None:
    source, target = core_of(), core_of(kv_tokens=512)
    names = []
    for n in range(12):
        prompt = prompt_of(100, n)
        answer(source, ask(prompt, 2))
        names.append(import_conversation(target, export_ids(source, prompt)))
        assert target.stats.kv_bytes <= target.limits.kv_bytes
    assert target.stats.kept <= 4
    first = answer(target, ask(prompt_of(100), 2, kv_id=names[0]))
    assert first.finish is not None and first.finish.cached_tokens == 0  # computed anew
    last = answer(target, ask(prompt_of(100, 11), 2, kv_id=names[-1]))
    assert last.finish is not None and last.finish.cached_tokens == 99
    # One that needs all of it gets it.
    assert answer(target, ask(prompt_of(400, 5), 30)).reason == "length"
    require_idle(target)
    answer(source, ask(prompt_of(600), 2))
    with pytest.raises(RequestError) as refused:
        import_conversation(target, export_ids(source, prompt_of(600)))
    assert refused.value.status == 413


def test_an_import_that_is_found_by_its_tokens_is_held_once() -> None:
    source, target = core_of(), core_of()
    prompt = prompt_of(200)
    answer(source, ask(prompt, 2))
    import_conversation(target, export_ids(source, prompt))
    alone = core_of()
    for core in (target, alone):
        answer(core, ask([*prompt, 5, 6], 3))
    assert target.stats.kv_bytes == alone.stats.kv_bytes


def test_a_publication_takes_imports_back() -> None:
    source, target = core_of(), core_of()
    prompt = prompt_of(64)
    answer(source, ask(prompt, 6))
    kv_id = import_conversation(target, export_ids(source, prompt))
    target.publish(staged(1), version="2")
    assert target.stats.kv_bytes == target.stats.kept == 0
    with pytest.raises(RequestError, match="is not here"):
        add(target, ask(prompt, 3, kv_id=kv_id))


def test_who_waits_with_a_name_that_is_taken_back_computes_anew() -> None:
    source, target = core_of(), core_of(slots=1)
    prompt = prompt_of(64)
    answer(source, ask(prompt, 6))
    kv_id = import_conversation(target, export_ids(source, prompt))
    _, heard = add(target, ask(prompt_of(9), 5), ask(prompt, 6, kv_id=kv_id))
    target.step()
    target.publish(staged(1), version="2", in_flight="keep")
    run(target)
    require_idle(target)
    assert heard.ids == answer(core_of(seed=1), ask(prompt, 6)).ids


def test_a_choice_that_moves_leaves_the_others() -> None:
    core = core_of(step_tokens=20)
    requests = [ask(prompt_of(90), 6, sampling=seeded(n)) for n in range(3)]
    heard = add_choices(core, *requests)
    core.step()
    export_request(core, requests[0].request_id)
    run(core)
    require_idle(core)
    assert [one.reason for one in heard] == ["moved", "length", "length"]
    for request, one in zip(requests[1:], heard[1:], strict=True):
        assert one.ids == answer(core_of(), request).ids


def test_an_exported_copy_is_of_its_own() -> None:
    core = core_of()
    prompt = prompt_of(64)
    answer(core, ask(prompt, 6))
    conversation = export_ids(core, prompt)
    before = conversation.kv.clone()
    answer(core, ask([*prompt, 1, 2, 3], 6))
    core.publish(staged(1), version="2")
    answer(core, ask(prompt, 6))
    assert conversation.kv.equal(before)
