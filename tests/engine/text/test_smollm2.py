"""A real vocabulary of 49,152 ids: tokens that hold a blank and half a character, merges over anything."""

from __future__ import annotations

import random
from functools import cache

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gyre.elastic.engine.models.smollm2 import rebuilt
from gyre.elastic.engine.text.conversation import read_conversation
from gyre.elastic.engine.text.detokenizer import Detokenizer
from gyre.elastic.engine.text.memory import CompletionMemory
from gyre.elastic.engine.text.template import ChatTemplate
from tests.engine.text.tokens import ids_of, text_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@cache
def smollm2() -> PreTrainedTokenizerFast:
    tokenizer = AutoTokenizer.from_pretrained(rebuilt(print))
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    return tokenizer


def streamed(prompt: list[int], ids: list[int]) -> list[str]:
    stream = Detokenizer(smollm2(), prompt)
    return [*(stream.add(id_) for id_ in ids), stream.flush()]


def partial_ids() -> list[int]:
    """Ids whose text alone is no text."""
    return [id_ for id_ in range(len(smollm2())) if "\ufffd" in text_of(smollm2(), [id_])]


@pytest.mark.parametrize("seed", range(20))
def test_random_ids_stream_to_their_text(seed: int) -> None:
    noise = random.Random(seed)
    anything, partial = range(len(smollm2())), partial_ids()
    for _ in range(50):
        prompt = noise.choices(anything, k=noise.randrange(10))
        ids = noise.choices(noise.choice([anything, partial]), k=noise.randrange(80))
        assert "".join(streamed(prompt, ids)) == text_of(smollm2(), ids)


def test_text_streams_without_a_split_character() -> None:
    text = "naïve “quotes” — 你好，世界 😀👩‍👩‍👧 Ελληνικά हिन्दी\n\tx  = 10"
    pieces = streamed([], ids_of(smollm2(), text))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_random_completions_are_spliced() -> None:
    noise = random.Random(0)
    end = smollm2().eos_token_id
    template = ChatTemplate(smollm2(), str(smollm2().chat_template), stop_ids={end, 0}, max_tokens=8192)
    memory = CompletionMemory(1 << 20)
    messages: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
    for turn in range(10):
        conversation = read_conversation(messages)
        prompt = memory.splice(conversation, template.render(conversation), template)
        assert (prompt.spliced_tokens > 0) == (turn > 0)
        output = noise.choices(range(20, 49152), k=30)
        message = {"role": "assistant", "content": "".join(streamed(prompt.ids, output))}
        memory.remember(conversation, prompt.ids, [*output, end], message)
        messages += [message, {"role": "user", "content": f"go on, {turn}"}]
        text = template.render(read_conversation(messages))
        following = memory.splice(read_conversation(messages), text, template)
        assert following.ids[: len(prompt.ids) + 31] == [*prompt.ids, *output, end]
        assert text_of(smollm2(), following.ids) == text
