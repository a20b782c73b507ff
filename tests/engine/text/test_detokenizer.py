"""Streamed text is the text of the whole, for any ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from gyre.elastic.engine.text.detokenizer import Detokenizer, hidden_ids
from tests.engine.text.tokens import MARKERS, byte_fallback, byte_level, ids_of, text_of

ANY_IDS = st.lists(st.integers(0, 339), max_size=60)
HIGH_BYTES = st.lists(st.sampled_from([*range(97, 259)]), max_size=60)


def streamed(tokenizer: PreTrainedTokenizerFast, prompt: list[int], ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer, prompt)
    return [*(stream.add(id_) for id_ in ids), stream.flush()]


@given(prompt=ANY_IDS, ids=ANY_IDS | HIGH_BYTES)
def test_the_pieces_are_the_whole_text(prompt: list[int], ids: list[int]) -> None:
    tokenizer = byte_level()
    assert "".join(streamed(tokenizer, prompt, ids)) == text_of(tokenizer, ids)


@given(text=st.text(alphabet="aé你😀 \n", max_size=40), start=st.text(max_size=10))
def test_no_piece_splits_a_character(text: str, start: str) -> None:
    tokenizer = byte_level()
    pieces = streamed(tokenizer, ids_of(tokenizer, start), ids_of(tokenizer, text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_comes_with_its_last_byte() -> None:
    tokenizer = byte_level()
    ids = ids_of(tokenizer, "😂")
    assert len(ids) > 1
    assert streamed(tokenizer, [], ids) == [""] * (len(ids) - 1) + ["😂", ""]


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = byte_level()
    *ids, _ = ids_of(tokenizer, "ab😂")
    assert streamed(tokenizer, [], ids)[-1] == "\ufffd"


def test_a_prompt_that_ends_within_a_character_is_not_told() -> None:
    tokenizer = byte_level()
    first, *rest = ids_of(tokenizer, "😂")
    prompt = [*ids_of(tokenizer, "hello"), first]
    assert (
        "".join(streamed(tokenizer, prompt, [*rest, *ids_of(tokenizer, "x")])) == "\ufffd" * len(rest) + "x"
    )


def test_endless_garbage_is_told_as_it_comes() -> None:
    tokenizer = byte_level()
    *_, stray = ids_of(tokenizer, "😂")
    pieces = streamed(tokenizer, [], [stray] * 200)
    assert "".join(pieces) == text_of(tokenizer, [stray] * 200)
    assert all(len(piece) <= 7 for piece in pieces)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_characters_begun_again_and_again_are_counted_right(length: int) -> None:
    tokenizer = byte_level()
    ids = ids_of(tokenizer, "😂")
    assert "".join(streamed(tokenizer, [], ids[:length] * 40 + ids)) == "\ufffd" * 40 + "😂"


def test_hidden_ids_have_no_text_and_markers_may_be_kept() -> None:
    tokenizer = byte_level(special_markers=True)
    ids = ids_of(tokenizer, "a<tool_call>b</tool_call><|im_end|>")

    def shown(hidden: frozenset[int]) -> str:
        stream = Detokenizer(tokenizer, hidden=hidden)
        return "".join([*(stream.add(id_) for id_ in ids), stream.flush()])

    assert shown(hidden_ids(tokenizer)) == "ab"
    assert shown(hidden_ids(tokenizer, keep=MARKERS)) == "a<tool_call>b</tool_call>"


def test_ids_without_a_token_have_no_text() -> None:
    assert streamed(byte_level(), [], [5000, *ids_of(byte_level(), "a")]) == ["", "a", ""]


def test_the_prompt_decides_of_a_leading_blank() -> None:
    tokenizer = byte_fallback()
    hello = tokenizer.convert_tokens_to_ids("▁hello")
    dot = tokenizer.convert_tokens_to_ids(".")
    assert streamed(tokenizer, [], [hello, hello]) == ["hello", " hello", ""]
    assert streamed(tokenizer, [dot], [hello, hello]) == [" hello", " hello", ""]


@given(text=st.text(alphabet="ab é你😀.", max_size=30))
def test_bytes_that_stand_for_characters_are_joined(text: str) -> None:
    tokenizer = byte_fallback()
    ids = ids_of(tokenizer, text)
    assert "".join(streamed(tokenizer, [], ids)) == text_of(tokenizer, ids)


@given(ids=st.lists(st.integers(0, 263), max_size=60))
def test_no_bytes_are_too_odd_for_a_decoder_with_byte_fallback(ids: list[int]) -> None:
    streamed(byte_fallback(), [], ids)
