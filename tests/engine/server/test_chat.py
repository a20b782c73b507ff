"""chat/completions on the wire: plain and streamed say the same, of text and of tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.server.rig import USER, Json, Running

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "the sky"}}\n</tool_call>'


def joined(chunks: list[Json], index: int = 0) -> Json:
    """A stream of chat chunks as the plain form would have it."""
    out: Json = {"content": "", "reasoning": "", "tool_calls": [], "token_ids": [], "content_logprobs": []}
    for choice in (one for chunk in chunks for one in chunk["choices"] if one["index"] == index):
        delta = choice["delta"]
        out["content"] += delta.get("content") or ""
        out["reasoning"] += delta.get("reasoning") or ""
        out["tool_calls"] += delta.get("tool_calls") or []
        out["token_ids"] += choice.get("token_ids") or []
        out["content_logprobs"] += (choice["logprobs"] or {}).get("content") or []
        out |= {key: choice[key] for key in ("finish_reason", "stop_reason", "kv_versions") if key in choice}
    return out


def test_an_answer_has_openais_form(engine: Running) -> None:
    said = engine.chat(model="tiny", max_tokens=5)
    assert said["object"] == "chat.completion" and said["model"] == "tiny"
    assert said["id"].startswith("chatcmpl-") and said["created"] > 1_700_000_000
    choice = said["choices"][0]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant"
    assert (
        choice["finish_reason"] == "length" and choice["logprobs"] is None and choice["stop_reason"] is None
    )
    assert said["usage"]["completion_tokens"] == 5
    assert said["usage"]["total_tokens"] == said["usage"]["prompt_tokens"] + 5
    assert "prompt_token_ids" not in said and "metadata" not in said
    assert choice.keys().isdisjoint({"token_ids", "weight_versions", "kv_versions", "seed"})


def test_token_ids_and_versions_are_told_when_asked(engine: Running) -> None:
    said = engine.chat(return_token_ids=True, seed=3, temperature=0.5, top_k=50, max_tokens=6)
    choice = said["choices"][0]
    assert engine.text(said["prompt_token_ids"]).startswith("<|im_start|>user\nHello, who are you?<|im_end|>")
    assert len(choice["token_ids"]) == 6
    assert choice["message"]["content"] == engine.text(choice["token_ids"])
    assert choice["weight_versions"] == [{"version": "7", "start": 0, "end": 6}]
    # The last token was sampled and never computed.
    held = len(said["prompt_token_ids"]) + 5
    assert choice["kv_versions"] == [{"version": "7", "start": 0, "end": held}]
    assert choice["seed"] == 3
    assert said["metadata"] == {
        "weight_version": "7",
        "weight_digests": {"7": "d7"},
        "sampling": {"temperature": 0.5, "top_p": 1.0, "top_k": 50, "min_p": 0.0, "seed": 3},
        "spliced_tokens": 0,
    }


def test_a_stream_says_what_the_plain_answer_says(engine: Running) -> None:
    ask: Json = {"return_token_ids": True, "logprobs": True, "top_logprobs": 2, "seed": 5, "max_tokens": 12}
    plain = engine.chat(**ask)
    chunks = engine.stream(**ask)
    choice, stream = plain["choices"][0], joined(chunks)
    assert stream["content"] == choice["message"]["content"]
    assert stream["token_ids"] == choice["token_ids"]
    assert [one["token"] for one in stream["content_logprobs"]] == [
        one["token"] for one in choice["logprobs"]["content"]
    ]
    assert (stream["finish_reason"], stream["kv_versions"]) == ("length", choice["kv_versions"])
    first, rest = chunks[0], chunks[1:]
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["choices"][0]["seed"] == 5
    assert first["prompt_token_ids"] == plain["prompt_token_ids"]
    assert first["metadata"] == plain["metadata"]
    assert all(chunk.keys().isdisjoint({"prompt_token_ids", "metadata"}) for chunk in rest)
    spans = [span for chunk in rest for span in chunk["choices"][0]["weight_versions"]]
    assert [(span["start"], span["end"]) for span in spans] == [
        (at, at + len(chunk["choices"][0]["token_ids"]))
        for at, chunk in zip([span["start"] for span in spans], rest, strict=True)
    ]
    assert (spans[0]["start"], spans[-1]["end"]) == (0, 12)


def test_usage_ends_a_stream_when_asked(engine: Running) -> None:
    chunks = engine.stream(stream_options={"include_usage": True}, seed=5)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 8
    assert all("usage" not in chunk for chunk in engine.stream(seed=5))


def test_a_prompt_that_was_computed_before_is_counted_as_cached(engine: Running) -> None:
    long = [{"role": "user", "content": "Tell me of the sea. " * 40}]
    cold = engine.chat(messages=long)["usage"]
    warm = engine.chat(messages=long)["usage"]
    assert cold["prompt_tokens_details"]["cached_tokens"] < 64
    assert warm["prompt_tokens_details"]["cached_tokens"] > 0.9 * warm["prompt_tokens"]


def test_log_probabilities_name_tokens_with_their_bytes(engine: Running) -> None:
    said = engine.chat(script="Hi 😀", logprobs=True, top_logprobs=3, return_token_ids=True, max_tokens=20)
    choice = said["choices"][0]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"])
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "Hi 😀<|im_end|>"
    assert entries[-1]["token"] == "<|im_end|>"
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] < 0 for entry in entries)
    best = [[one["logprob"] for one in entry["top_logprobs"]] for entry in entries]
    assert all(one == sorted(one, reverse=True) for one in best)


def test_both_distributions_are_told(engine: Running) -> None:
    cool = engine.chat(temperature=0.3, logprobs=True, seed=1)["choices"][0]["logprobs"]["content"]
    greedy = engine.chat(temperature=0, logprobs=True)["choices"][0]["logprobs"]["content"]
    neutral = engine.chat(logprobs=True, seed=1)["choices"][0]["logprobs"]["content"]
    assert all(abs(one["sampling_logprob"] - one["logprob"]) > 1e-3 for one in cool)
    assert all(one["sampling_logprob"] == 0.0 > one["logprob"] for one in greedy)
    assert all(one["sampling_logprob"] == pytest.approx(one["logprob"], abs=1e-4) for one in neutral)


def test_n_choices_have_seeds_of_their_own_that_give_them_again(engine: Running) -> None:
    said = engine.chat(n=3, seed=9, return_token_ids=True)
    choices = said["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3
    assert said["usage"]["completion_tokens"] == 24
    for choice in choices:
        alone = engine.chat(seed=choice["seed"], return_token_ids=True)["choices"][0]
        assert alone["token_ids"] == choice["token_ids"]


def test_n_choices_stream_side_by_side(engine: Running) -> None:
    chunks = engine.stream(n=3, seed=9, return_token_ids=True)
    plain = engine.chat(n=3, seed=9, return_token_ids=True)["choices"]
    for index in range(3):
        assert joined(chunks, index)["token_ids"] == plain[index]["token_ids"]
        assert joined(chunks, index)["content"] == plain[index]["message"]["content"]
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1


def test_a_seed_is_drawn_and_told(engine: Running) -> None:
    one, other = (engine.chat(return_token_ids=True, seed=None) for _ in range(2))
    seed = one["metadata"]["sampling"]["seed"]
    assert seed != other["metadata"]["sampling"]["seed"]
    again = engine.chat(return_token_ids=True, seed=seed)
    assert again["choices"][0]["token_ids"] == one["choices"][0]["token_ids"]


@pytest.mark.parametrize("text", ["Grüße, 你好 😀👩‍👩‍👧 ok", "naïve café", "日本語の文章です。"])
def test_streams_never_split_a_character(engine: Running, text: str) -> None:
    chunks = engine.stream(script=text, max_tokens=100)
    deltas = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == text
    assert not any("\ufffd" in delta for delta in deltas)


def test_a_character_cut_by_the_limit_shows(engine: Running) -> None:
    count = len(engine.ids("Hi 😀")) - 1
    said = engine.chat(script="Hi 😀", max_tokens=count)["choices"][0]
    assert said["finish_reason"] == "length"
    assert said["message"]["content"].startswith("Hi") and said["message"]["content"].endswith("\ufffd")
    assert joined(engine.stream(script="Hi 😀", max_tokens=count))["content"] == said["message"]["content"]


@pytest.mark.parametrize("stop", ["bc de", ["zz", "bc de"]])
def test_a_stop_string_across_tokens_cuts_the_text_and_keeps_the_ids(engine: Running, stop: Any) -> None:
    ask: Json = {"script": "a bc def ghi", "max_tokens": 50, "return_token_ids": True, "stop": stop}
    said = engine.chat(**ask)["choices"][0]
    assert said["message"]["content"] == "a "
    assert (said["finish_reason"], said["stop_reason"]) == ("stop", "bc de")
    whole = engine.text(said["token_ids"])
    assert whole.startswith("a bc de") and "ghi" not in whole
    stream = joined(engine.stream(**ask))
    assert (stream["content"], stream["stop_reason"]) == ("a ", "bc de")
    assert stream["token_ids"] == said["token_ids"]


def test_a_stop_string_may_stay_in_the_text(engine: Running) -> None:
    ask: Json = {"script": "a bc def", "max_tokens": 50, "stop": ["bc"], "include_stop_str_in_output": True}
    assert engine.chat(**ask)["choices"][0]["message"]["content"] == "a bc"


def test_a_stop_string_that_only_begins_is_said_at_the_end(engine: Running) -> None:
    ask: Json = {"script": "all is well", "max_tokens": 50, "stop": "well, well"}
    assert joined(engine.stream(**ask))["content"] == "all is well"
    assert engine.chat(**ask)["choices"][0]["message"]["content"] == "all is well"


def test_a_stop_id_is_told_and_not_shown(engine: Running) -> None:
    ids = engine.ids("One two three")
    ask: Json = {
        "script": "One two three",
        "max_tokens": 50,
        "stop_token_ids": ids[-1:],
        "return_token_ids": True,
    }
    said = engine.chat(**ask)["choices"][0]
    assert (said["finish_reason"], said["stop_reason"]) == ("stop", ids[-1])
    assert said["token_ids"] == ids
    assert said["message"]["content"] == engine.text(ids[:-1])


def test_the_models_own_end_is_no_stop_reason(engine: Running) -> None:
    said = engine.chat(script="Hello", max_tokens=50, return_token_ids=True)["choices"][0]
    assert (said["finish_reason"], said["stop_reason"]) == ("stop", None)
    assert engine.text(said["token_ids"]) == "Hello<|im_end|>"
    assert said["message"]["content"] == "Hello"


def test_ends_can_be_ignored(engine: Running) -> None:
    said = engine.chat(script="Hello", max_tokens=12, ignore_eos=True, return_token_ids=True)["choices"][0]
    assert len(said["token_ids"]) == 12 and said["finish_reason"] == "length"
    assert said["message"]["content"].startswith("Hello")


def test_tool_calls_are_taken_out_of_the_text(engine: Running) -> None:
    ask: Json = {"script": f"Let me look.\n{CALL}", "max_tokens": 200, "tools": [TOOL]}
    said = engine.chat(**ask)["choices"][0]
    assert said["finish_reason"] == "tool_calls"
    assert said["message"]["content"] == "Let me look."
    call = said["message"]["tool_calls"][0]
    assert call["type"] == "function" and call["function"]["name"] == "look"
    assert json.loads(call["function"]["arguments"]) == {"at": "the sky"}
    stream = joined(engine.stream(**ask))
    assert stream["content"] == "Let me look." and stream["finish_reason"] == "tool_calls"
    assert stream["tool_calls"][0]["function"] == call["function"]
    assert stream["tool_calls"][0]["index"] == 0


def test_tool_calls_stay_text_where_none_are_wanted(engine: Running) -> None:
    for ask in ({"tools": [TOOL], "tool_choice": "none"}, {}):
        said = engine.chat(script=CALL, max_tokens=200, **ask)["choices"][0]
        assert said["finish_reason"] == "stop"
        assert said["message"]["content"] == CALL and "tool_calls" not in said["message"]


def test_of_parallel_calls_one_can_be_enough(engine: Running) -> None:
    ask: Json = {"script": f"{CALL}\n{CALL}", "max_tokens": 200, "tools": [TOOL]}
    assert len(engine.chat(**ask)["choices"][0]["message"]["tool_calls"]) == 2
    assert len(engine.chat(**ask, parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]) == 1


def test_reasoning_is_told_apart(engine: Running) -> None:
    ask: Json = {"script": "<think>\nHm.\n</think>\n\nYes.", "max_tokens": 200}
    said = engine.chat(**ask)["choices"][0]["message"]
    assert (said["reasoning"], said["content"]) == ("Hm.", "Yes.")
    stream = joined(engine.stream(**ask))
    assert (stream["reasoning"], stream["content"]) == ("Hm.", "Yes.")


def test_a_prompt_can_be_given_as_ids(engine: Running) -> None:
    rendered = engine.chat(return_token_ids=True, seed=4)
    ids = rendered["prompt_token_ids"]
    for body in ({"messages": USER, "prompt_token_ids": ids}, {"prompt_token_ids": ids}):
        answer = engine.post(
            "/v1/chat/completions", body | {"seed": 4, "max_tokens": 8, "return_token_ids": True}
        )
        assert answer.json()["choices"][0]["token_ids"] == rendered["choices"][0]["token_ids"]
        assert answer.json()["prompt_token_ids"] == ids


def test_a_message_can_be_continued(engine: Running) -> None:
    messages = [*USER, {"role": "assistant", "content": "I am a"}]
    said = engine.chat(messages=messages, continue_final_message=True, return_token_ids=True)
    assert engine.text(said["prompt_token_ids"]).endswith("I am a")
    bare = engine.chat(add_generation_prompt=False, return_token_ids=True)
    assert engine.text(bare["prompt_token_ids"]).rstrip().endswith("<|im_end|>")


def test_the_prompts_log_probabilities_are_told(engine: Running) -> None:
    said = engine.chat(prompt_logprobs=2, return_token_ids=True)
    ids, read = said["prompt_token_ids"], said["prompt_logprobs"]
    assert len(read) == len(ids) and read[0] is None
    for token, entry in zip(ids[1:], read[1:], strict=True):
        assert {"logprob", "rank", "decoded_token"} == entry[str(token)].keys()
        assert 2 <= len(entry) <= 3
        assert {1, 2} <= {one["rank"] for one in entry.values()} | {entry[str(token)]["rank"]}


def test_a_request_is_called_as_its_client_wants(engine: Running) -> None:
    assert engine.chat(request_id="mine")["id"] == "mine"


def test_without_a_limit_the_answer_may_fill_the_context(engine: Running) -> None:
    said = engine.chat(script="Short.", max_tokens=None)
    assert said["choices"][0]["finish_reason"] == "stop"
    assert engine.chat(max_tokens=None, max_completion_tokens=3)["usage"]["completion_tokens"] == 3
