"""Prompts that repeat the engine's own answers keep their ids, whatever their text would encode to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.server.rig import USER, Json, Running, run_engine
from tests.engine.server.test_chat import CALL, TOOL, joined

NEXT = {"role": "user", "content": "And then?"}
ASK: Json = {"return_token_ids": True, "max_tokens": 12, "ignore_eos": False}


@pytest.fixture(scope="module")
def own() -> Iterator[Running]:
    with run_engine() as running:
        yield running


def follow(engine: Running, message: Json, messages: list[Json] = USER, **fields: Any) -> Json:
    return engine.chat(messages=[*messages, message, NEXT], **ASK, **fields)


def random_answer(engine: Running, **fields: Any) -> Json:
    """Random ids often do not encode to themselves again: that is what splicing is for."""
    return engine.chat(**ASK | fields)


def content_of(answer: Json) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_the_next_prompt_begins_with_the_ids_that_were_sampled(own: Running) -> None:
    answers = (random_answer(own, seed=seed) for seed in range(20))
    first = next(one for one in answers if own.ids(content_of(one)) != one["choices"][0]["token_ids"])
    choice = first["choices"][0]
    ids = first["prompt_token_ids"] + choice["token_ids"]
    second = follow(own, choice["message"])
    assert second["prompt_token_ids"][: len(ids)] == ids
    assert second["metadata"]["spliced_tokens"] == len(ids)
    assert own.text(second["prompt_token_ids"]) == (
        own.text(ids) + "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"
    )
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > len(ids) - 20


def test_streams_and_each_of_n_are_remembered(own: Running) -> None:
    chunks = own.stream(**ASK, n=3, seed=5)
    prompt = chunks[0]["prompt_token_ids"]
    for index in range(3):
        said = joined(chunks, index)
        second = follow(own, {"role": "assistant", "content": said["content"]})
        ids = prompt + said["token_ids"]
        assert second["metadata"]["spliced_tokens"] == len(ids)
        assert second["prompt_token_ids"][: len(ids)] == ids


def test_calls_of_tools_are_remembered(own: Running) -> None:
    first = own.chat(**ASK | {"max_tokens": 200}, script=CALL, tools=[TOOL])
    choice = first["choices"][0]
    result = {"role": "tool", "tool_call_id": choice["message"]["tool_calls"][0]["id"], "content": "blue"}
    second = own.chat(messages=[*USER, choice["message"], result], **ASK, tools=[TOOL])
    ids = first["prompt_token_ids"] + choice["token_ids"]
    assert second["metadata"]["spliced_tokens"] == len(ids)
    assert second["prompt_token_ids"][: len(ids)] == ids


def test_tokenize_gives_the_prompt_that_would_be_computed(own: Running) -> None:
    message = random_answer(own, seed=8)["choices"][0]["message"]
    second = follow(own, message)
    assert second["metadata"]["spliced_tokens"] > 0
    said = own.post("/tokenize", messages=[*USER, message, NEXT]).json()
    assert said["tokens"] == second["prompt_token_ids"]


def test_a_continued_answer_is_remembered_as_a_whole(own: Running) -> None:
    """The conversation may have moved here: its next call finds its ids all the same."""
    first = random_answer(own, seed=14)
    with run_engine() as other:
        again = other.chat(
            **ASK,
            seed=14,
            prompt_token_ids=first["prompt_token_ids"],
            output_token_ids=first["choices"][0]["token_ids"][:5],
        )
        assert again["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
        second = follow(other, again["choices"][0]["message"])
        assert second["metadata"]["spliced_tokens"] == len(first["prompt_token_ids"]) + 12


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": "z", "script": "a z b"},
        {"stop_token_ids": [64], "script": "a` b"},
        {"ignore_eos": True, "script": "ab"},
        {"add_generation_prompt": False, "script": "ab"},
    ],
)
def test_answers_that_do_not_say_all_their_ids_are_not_remembered(own: Running, fields: Json) -> None:
    said = own.chat(**ASK | fields)["choices"][0]
    assert follow(own, said["message"])["metadata"]["spliced_tokens"] == 0


def test_what_another_model_said_is_not_remembered(own: Running) -> None:
    assert follow(own, {"role": "assistant", "content": "Never said."})["metadata"]["spliced_tokens"] == 0


def test_continuations_take_their_prompt_as_it_is_rendered(own: Running) -> None:
    """Splicing depends on what the engine remembers, and a continuation must not."""
    message = random_answer(own, seed=21)["choices"][0]["message"]
    assert follow(own, message)["metadata"]["spliced_tokens"] > 0
    assert follow(own, message, output_token_ids=[300])["metadata"]["spliced_tokens"] == 0


def test_splicing_can_be_turned_off() -> None:
    with run_engine(splice=False) as engine:
        message = random_answer(engine, seed=1)["choices"][0]["message"]
        second = follow(engine, message)
        assert second["metadata"]["spliced_tokens"] == 0
        rendered = engine.post("/apply-template", messages=[*USER, message, NEXT]).json()["prompt"]
        assert second["prompt_token_ids"] == engine.ids(rendered)


def test_given_ids_are_remembered_only_for_the_messages_that_they_say(own: Running) -> None:
    messages = [{"role": "user", "content": "What is given here?"}]
    right = own.chat(messages=messages, **ASK)["prompt_token_ids"]
    for given, kept in (([5, 6, 7, 8], False), (right, True)):
        answer = own.chat(messages=messages, prompt_token_ids=given, **ASK | {"seed": 99 + len(given)})
        second = follow(own, answer["choices"][0]["message"], messages)
        sampled = answer["choices"][0]["token_ids"]
        assert (second["metadata"]["spliced_tokens"] == len(given) + len(sampled)) is kept
