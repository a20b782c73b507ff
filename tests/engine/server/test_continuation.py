"""A generation goes on from ids alone, and says what the undisturbed one would have said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.server.rig import USER, Json, Running, run_engine
from tests.engine.server.test_chat import TOOL, joined

CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\nHm 😀!\n</think>\n\nÜ 你. Yes.\n{CALL}"
ASK: Json = {
    "script": TEXT,
    # Never complete, and long enough to hold text back all the time.
    "stop": [" Yes, of course", "}\n</tool_call>\nand"],
    "return_token_ids": True,
    "max_tokens": 120,
    "tools": [TOOL],
    "logprobs": True,
    "top_logprobs": 1,
    "seed": 11,
}


def shape(message: Json) -> Json:
    """A message without the ids of its calls, which are drawn."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return {
        "content": message.get("content") or "",
        "reasoning": message.get("reasoning") or "",
        "calls": calls,
    }


def earlier(choice: Json, count: int) -> Json:
    """What a client of a broken answer knows of it."""
    entries = choice["logprobs"]["content"][:count]
    return {
        "output_token_ids": choice["token_ids"][:count],
        "output_logprobs": [entry["logprob"] for entry in entries],
        "output_sampling_logprobs": [entry["sampling_logprob"] for entry in entries],
        "output_weight_versions": [{"version": "7", "start": 0, "end": count}],
    }


@pytest.fixture(scope="module")
def whole(engine: Running) -> Json:
    """The undisturbed answer, plain."""
    return engine.chat(**ASK)


@pytest.fixture(scope="module")
def chunks(engine: Running) -> list[Json]:
    """The same as a stream."""
    return engine.stream(**ASK)


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0, 1))
def test_any_cut_of_a_reply_goes_on_to_the_same_message(engine: Running, whole: Json, share: float) -> None:
    choice = whole["choices"][0]
    cut = 1 + round(share * (len(choice["token_ids"]) - 1))
    prompt = {"prompt_token_ids": whole["prompt_token_ids"]}
    again = engine.chat(**ASK, **prompt, **earlier(choice, cut))["choices"][0]
    assert shape(again["message"]) == shape(choice["message"])
    for key in ("finish_reason", "stop_reason", "token_ids", "weight_versions"):
        assert again[key] == choice[key], key
    one, other = again["logprobs"]["content"], choice["logprobs"]["content"]
    assert [entry["token"] for entry in one] == [entry["token"] for entry in other]
    known = [entry["logprob"] for entry in other]
    assert [entry["logprob"] for entry in one] == pytest.approx(known, abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(share=st.floats(0, 1))
def test_a_stream_and_its_continuation_join_to_the_whole(
    engine: Running, chunks: list[Json], share: float
) -> None:
    """Up to any event: what was held back is said by the continuation, what was said is not repeated."""
    entire = joined(chunks)
    begun = joined(chunks[: 2 + round(share * (len(chunks) - 3))])
    prompt = {"prompt_token_ids": chunks[0]["prompt_token_ids"]}
    rest = joined(engine.stream(**ASK, **prompt, output_token_ids=begun["token_ids"]))
    for key in ("content", "reasoning", "token_ids"):
        assert begun[key] + rest[key] == entire[key], key
    assert [call["function"] for call in begun["tool_calls"] + rest["tool_calls"]] == [
        call["function"] for call in entire["tool_calls"]
    ]
    assert rest["finish_reason"] == entire["finish_reason"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampled_replies_go_on_as_they_would_have(engine: Running, temperature: float) -> None:
    ask: Json = {
        "return_token_ids": True,
        "max_tokens": 40,
        "ignore_eos": True,
        "temperature": temperature,
        "seed": 3,
    }
    undisturbed = engine.chat(**ask)
    ids = undisturbed["choices"][0]["token_ids"]
    for cut in (1, 20, 39):
        again = engine.chat(**ask, output_token_ids=ids[:cut])
        assert again["choices"][0]["token_ids"] == ids
        assert again["choices"][0]["message"] == undisturbed["choices"][0]["message"]
        assert again["usage"]["completion_tokens"] == 40


def test_completions_go_on_as_well(engine: Running) -> None:
    ask: Json = {"return_token_ids": True, "max_tokens": 30, "ignore_eos": True, "seed": 3, "logprobs": 0}
    undisturbed = engine.complete(**ask)["choices"][0]
    again = engine.complete(**ask, output_token_ids=undisturbed["token_ids"][:10])["choices"][0]
    for key in ("text", "token_ids", "prompt_token_ids"):
        assert again[key] == undisturbed[key]
    assert again["logprobs"]["text_offset"] == undisturbed["logprobs"]["text_offset"]


def test_what_is_not_known_of_earlier_tokens_is_null(engine: Running) -> None:
    ask: Json = {"return_token_ids": True, "max_tokens": 6, "ignore_eos": True, "seed": 3, "logprobs": True}
    ids = engine.chat(**ask)["choices"][0]["token_ids"]
    choice = engine.chat(**ask, output_token_ids=ids[:4])["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [entry["logprob"] is None for entry in entries] == [True] * 4 + [False] * 2
    assert [entry["sampling_logprob"] is None for entry in entries] == [True] * 4 + [False] * 2
    assert choice["weight_versions"] == [{"version": "7", "start": 4, "end": 6}]


def test_versions_of_before_are_kept_apart(engine: Running) -> None:
    ask: Json = {"return_token_ids": True, "max_tokens": 6, "ignore_eos": True, "seed": 3}
    ids = engine.chat(**ask)["choices"][0]["token_ids"]
    spans = [{"version": "5", "start": 0, "end": 1}, {"version": "6", "start": 1, "end": 3}]
    said = engine.chat(**ask, output_token_ids=ids[:3], output_weight_versions=spans)
    assert said["choices"][0]["weight_versions"] == [*spans, {"version": "7", "start": 3, "end": 6}]
    assert said["metadata"]["weight_digests"] == {"7": "d7"}


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_complete_is_not_sampled_on(engine: Running, stream: bool) -> None:
    """The engine may die between the last token and the answer's end."""
    generated = engine.engine.stats.generated_tokens
    end = engine.ids("<|im_end|>")
    cases: list[tuple[Json, list[int], str, str | None]] = [
        ({}, engine.ids("All said.") + end, "All said.", None),
        ({"stop": "said"}, engine.ids("All said"), "All ", "said"),
        ({"max_tokens": 2}, engine.ids("All said")[:2], "", None),
    ]
    for fields, ids, text, reason in cases:
        ask: Json = {"max_tokens": 50, **fields, "output_token_ids": ids, "return_token_ids": True}
        if stream:
            last = engine.stream(**ask)[-1]["choices"][0]
            assert not last["token_ids"]
        else:
            last = engine.chat(**ask)["choices"][0]
            assert last["token_ids"] == ids and last["message"]["content"].startswith(text)
        assert last["finish_reason"] == ("length" if "max_tokens" in fields else "stop")
        assert last["stop_reason"] == reason
    assert engine.engine.stats.generated_tokens == generated


@pytest.mark.parametrize(
    ("fields", "blamed"),
    [
        ({"n": 2}, "output_token_ids"),
        ({"output_token_ids": [5] * 60}, "output_token_ids"),
        ({"output_token_ids": [5, 2043, 5]}, "output_token_ids"),
        ({"output_logprobs": [0.1]}, "output_logprobs"),
        ({"output_sampling_logprobs": [0.1, 0.2, 0.3]}, "output_sampling_logprobs"),
        ({"output_weight_versions": [{"version": "1", "start": 0, "end": 9}]}, "output_weight_versions"),
        ({"output_weight_versions": [{"version": 1, "start": 0, "end": 1}]}, "output_weight_versions"),
    ],
)
def test_continuations_that_make_no_sense_are_refused(engine: Running, fields: Json, blamed: str) -> None:
    body = {"messages": USER, "max_tokens": 50, "output_token_ids": [5, 6], **fields}
    status, error = engine.error("/v1/chat/completions", body)
    assert (status, error["param"]) == (400, blamed), error


def test_imported_memory_that_is_not_there_is_a_conflict(engine: Running) -> None:
    status, error = engine.error(
        "/v1/chat/completions", {"messages": USER, "max_tokens": 5, "kv_id": "nothing"}
    )
    assert (status, error["code"]) == (409, "kv_unknown")


def test_held_back_text_is_not_said_by_an_engine_that_gives_the_request_away() -> None:
    """Else the engine that goes on would say it twice."""
    script = "Yes 😀 stop here"
    with run_engine() as engine:
        ids = engine.ids(script)
        held = next(n for n in range(len(ids)) if "\ufffd" in engine.text(ids[:n]))
        ask: Json = {"script": script, "max_tokens": 50, "return_token_ids": True, "request_id": "mine"}
        whole = joined(engine.stream(**ask))

        seen: list[Json] = []
        with engine.client.stream(
            "POST", "/v1/chat/completions", json={"messages": USER, "stream": True, **ask}
        ) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    seen.append(json.loads(line.removeprefix("data: ")))
                if len(joined(seen)["token_ids"]) == held:
                    engine.engine.abort(["mine"])
        begun = joined(seen)
        rest = joined(
            engine.stream(
                **ask | {"request_id": "other"},
                prompt_token_ids=seen[0]["prompt_token_ids"],
                output_token_ids=begun["token_ids"],
            )
        )
        assert begun["content"] + rest["content"] == whole["content"] == script
