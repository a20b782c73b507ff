"""Large prompts are parsed once and then only as far as they grew; the ids are always the same."""

from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.capture.prompts import PromptTexts
from gyre.proxy.capture.reply import parse_ids

prompts = st.lists(st.integers(0, 200_000), min_size=1, max_size=400)


def text_of(ids: list[int]) -> bytes:
    return json.dumps(ids, separators=(",", ":")).encode()


@given(st.lists(st.tuples(st.integers(0, 400), prompts), min_size=1, max_size=8))
def test_whatever_a_prompt_shares_with_the_last_one_its_ids_are_its_own(
    turns: list[tuple[int, list[int]]],
) -> None:
    texts, last = PromptTexts(), list[int]()
    for kept, new in turns:
        last = last[:kept] + new
        ids = texts.parse("e", text_of(last))
        assert ids is not None and ids.tolist() == last


def test_a_number_that_goes_on_is_not_the_number_that_was() -> None:
    texts = PromptTexts()
    known = text_of([7] * 600)
    texts.parse("e", known[:-1] + b",34]")
    for end in (b",345]", b",34]", b",34,5]", b"]"):
        text = known[:-1] + end
        ids = texts.parse("e", text)
        assert ids is not None and ids.tolist() == json.loads(text)


def test_what_follows_known_ids_must_be_ids_too() -> None:
    texts = PromptTexts()
    known = text_of([7] * 600)
    texts.parse("e", known)
    for end in (b',"x"]', b",]", b",3.5]"):
        text = known[:-1] + end
        assert texts.parse("e", text) is None
        assert parse_ids(text) is None


def test_the_oldest_prompts_are_forgotten_beyond_the_limit() -> None:
    texts = PromptTexts(most_bytes=10_000)
    for number in range(9):
        texts.parse(f"e{number}", text_of([number] * 625))
    assert list(texts._known) == ["e5", "e6", "e7", "e8"]
    assert np.array_equal(texts.parse("e8", text_of([8] * 626)), [8] * 626)
