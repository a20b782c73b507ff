"""completions on the wire: texts, ids, lists of either."""

from __future__ import annotations

import pytest

from tests.engine.server.rig import Json, Running

PATH = "/v1/completions"


def joined(chunks: list[Json], index: int = 0) -> Json:
    out: Json = {"text": "", "token_ids": [], "tokens": [], "text_offset": []}
    for choice in (one for chunk in chunks for one in chunk["choices"] if one["index"] == index):
        out["text"] += choice["text"]
        out["token_ids"] += choice.get("token_ids") or []
        for key in ("tokens", "text_offset"):
            out[key] += (choice["logprobs"] or {}).get(key) or []
        out |= {key: choice[key] for key in ("finish_reason", "prompt_token_ids", "seed") if key in choice}
    return out


def test_an_answer_has_openais_form(engine: Running) -> None:
    said = engine.complete(max_tokens=4)
    assert said["object"] == "text_completion" and said["id"].startswith("cmpl-")
    choice = said["choices"][0]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason", "stop_reason"}
    assert choice["finish_reason"] == "length" and choice["logprobs"] is None
    assert said["usage"]["completion_tokens"] == 4


def test_sixteen_tokens_unless_asked_otherwise(engine: Running) -> None:
    assert engine.complete(max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 16


def test_text_and_its_ids_are_the_same_prompt(engine: Running) -> None:
    text = engine.complete(prompt="Once upon", seed=1, return_token_ids=True)["choices"][0]
    ids = engine.complete(prompt=engine.ids("Once upon"), seed=1, return_token_ids=True)["choices"][0]
    assert text["prompt_token_ids"] == ids["prompt_token_ids"] == engine.ids("Once upon")
    assert text["token_ids"] == ids["token_ids"] and text["text"] == ids["text"]


def test_a_list_of_prompts_has_n_answers_for_each(engine: Running) -> None:
    texts = ["Once upon", "A time"]
    for prompt in (texts, [engine.ids(text) for text in texts]):
        said = engine.complete(prompt=prompt, n=2, seed=1, return_token_ids=True)
        choices = said["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
        assert [engine.text(choice["prompt_token_ids"]) for choice in choices] == [
            text for text in texts for _ in range(2)
        ]
        assert said["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in choices)
        assert said["usage"]["prompt_tokens"] == sum(len(engine.ids(text)) for text in texts)
        alone = engine.complete(prompt="A time", seed=1, return_token_ids=True)["choices"][0]
        assert choices[2]["token_ids"] == alone["token_ids"]


def test_a_stream_says_what_the_plain_answer_says(engine: Running) -> None:
    ask = {"prompt": ["Once upon", "A time"], "n": 2, "seed": 1, "return_token_ids": True, "logprobs": 1}
    plain = engine.complete(**ask)
    chunks = engine.stream(PATH, **ask)
    for index, choice in enumerate(plain["choices"]):
        stream = joined(chunks, index)
        assert stream["text"] == choice["text"]
        for key in ("token_ids", "finish_reason", "prompt_token_ids", "seed"):
            assert stream[key] == choice[key]
        for key in ("tokens", "text_offset"):
            assert stream[key] == choice["logprobs"][key]
    assert chunks[0]["metadata"] == plain["metadata"]


def test_log_probabilities_are_arrays(engine: Running) -> None:
    logprobs = engine.complete(logprobs=2, seed=1)["choices"][0]["logprobs"]
    assert {len(values) for values in logprobs.values()} == {8}
    assert logprobs.keys() == {
        *("tokens", "token_logprobs", "top_logprobs", "text_offset", "sampling_logprobs"),
    }
    for token, logprob, best in zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    ):
        assert best[token] == pytest.approx(logprob) and 2 <= len(best) <= 3
    only = engine.complete(logprobs=0, seed=1)["choices"][0]["logprobs"]
    assert all(
        list(best) == [token] for token, best in zip(only["tokens"], only["top_logprobs"], strict=True)
    )


def test_offsets_are_places_in_the_text(engine: Running) -> None:
    choice = engine.complete(logprobs=0, seed=1)["choices"][0]
    for token, at in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        if "\ufffd" not in token:
            assert choice["text"].startswith(token, at)


def test_special_tokens_are_hidden_unless_asked_for(engine: Running) -> None:
    ids = [*engine.ids("One <|im_start|>two"), *engine.ids("<|im_end|>")]
    ask = {"prompt": "x", "max_tokens": 99, "output_token_ids": ids}
    assert engine.complete(**ask)["choices"][0]["text"] == "One two"
    assert engine.complete(**ask, skip_special_tokens=False)["choices"][0]["text"] == "One <|im_start|>two"


def test_the_prompts_log_probabilities_stand_on_its_choices(engine: Running) -> None:
    choice = engine.complete(prompt_logprobs=0, return_token_ids=True)["choices"][0]
    read = choice["prompt_logprobs"]
    assert [list(entry) for entry in read[1:]] == [[str(one)] for one in choice["prompt_token_ids"][1:]]


def test_tags_are_plain_text_here(engine: Running) -> None:
    ids = [*engine.ids("<think>Hm.</think> <tool_call>"), *engine.ids("<|im_end|>")]
    said = engine.complete(prompt="x", max_tokens=99, output_token_ids=ids)["choices"][0]
    assert said["text"] == "<think>Hm.</think> <tool_call>"
