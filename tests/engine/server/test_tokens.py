"""Between text and ids: what `/tokenize` says is what a request would be computed from."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.rendering import apply_template_body, tokenize_body
from tests.engine.server.rig import USER, Json, Running
from tests.engine.server.test_chat import TOOL


def tokens(engine: Running, **body: object) -> list[int]:
    said = engine.post("/tokenize", body).json()
    assert said["count"] == len(said["tokens"]) and said["max_model_len"] == 4096
    return list(said["tokens"])


def test_a_chat_request_has_the_prompt_that_is_told(engine: Running) -> None:
    bodies: list[Json] = [
        {"messages": USER},
        {"messages": USER, "tools": [TOOL]},
        {"messages": [*USER, {"role": "assistant", "content": "I am"}], "continue_final_message": True},
        {"messages": USER, "add_generation_prompt": False},
        {"messages": USER, "reasoning_effort": "none"},
        {"messages": USER, "chat_template_kwargs": {"enable_thinking": False}},
    ]
    for body in bodies:
        said = engine.chat(**body, return_token_ids=True)
        assert tokens(engine, **tokenize_body({"model": "tiny", **body})) == said["prompt_token_ids"]
        text = engine.post("/apply-template", apply_template_body(body)).json()["prompt"]
        if "reasoning_effort" not in body:
            assert text == engine.text(said["prompt_token_ids"])


def test_a_completion_has_the_prompt_that_is_told(engine: Running) -> None:
    said = engine.complete(prompt="Once <|im_end|> upon", return_token_ids=True)
    assert tokens(engine, prompt="Once <|im_end|> upon") == said["choices"][0]["prompt_token_ids"]


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_text_survives_both_ways_in_both_forms(engine: Running, text: str) -> None:
    ids = tokens(engine, prompt=text, add_special_tokens=False)
    assert tokens(engine, content=text, add_special=False, parse_special=True) == ids
    assert engine.post("/detokenize", {"tokens": ids, "model": "tiny"}).json()["prompt"] == text


def test_special_ids_are_shown(engine: Running) -> None:
    assert engine.post("/detokenize", {"tokens": engine.ids("a<|im_end|>")}).json() == {
        "prompt": "a<|im_end|>"
    }


def test_what_cannot_be_tokenized_is_refused(engine: Running) -> None:
    cases: list[tuple[str, Json, str]] = [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"content": "x", "parse_special": False}, "parse_special"),
        ("/tokenize", {"messages": "hello"}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [99_999]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/apply-template", {}, "messages"),
    ]
    for path, body, field in cases:
        status, error = engine.error(path, body)
        assert (status, error["param"]) == (400, field), error


def test_a_text_longer_than_the_context_can_be_counted(engine: Running) -> None:
    """Harnesses count before they compact."""
    assert len(tokens(engine, prompt="one two three " * 2000)) > 4096
