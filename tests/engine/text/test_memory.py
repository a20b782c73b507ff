"""Prompts that keep the ids of the engine's own completions."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.elastic.engine.text.chatml import chatml
from gyre.elastic.engine.text.conversation import read_conversation
from gyre.elastic.engine.text.detokenizer import Detokenizer, hidden_ids
from gyre.elastic.engine.text.memory import CompletionMemory, Splice
from gyre.elastic.engine.text.reply import MARKERS, ReplyParser, reply_form
from gyre.elastic.engine.text.template import ChatTemplate
from tests.engine.text.tokens import byte_level, ids_of, text_of

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
END = byte_level().eos_token_id
END_OF_TEXT = byte_level().convert_tokens_to_ids("<|endoftext|>")
SAID = '<think>\nhm\n</think>\n\nOne.\n<tool_call>\n{"name": "f", "arguments": {"x": 1.0}}\n</tool_call>'
ANY = st.lists(st.integers(3, 339), max_size=12)
OUTPUTS = st.lists(ANY | st.sampled_from([ids_of(byte_level(), SAID)]), max_size=3).map(
    lambda parts: [id_ for part in parts for id_ in part]
)


@dataclass
class Chat:
    """A client and the engine's text side; the model is whatever ids the test says."""

    memory: CompletionMemory
    template: ChatTemplate
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]

    def prompt(self) -> tuple[str, Splice]:
        conversation = read_conversation(self.messages, self.tools)
        text = self.template.render(conversation)
        return text, self.memory.splice(conversation, text, self.template)

    def say(self, output: list[int]) -> list[int]:
        """One call whose output is these ids; the ids that the engine now holds."""
        text, prompt = self.prompt()
        message = reply(self.template, text, output)
        conversation = read_conversation(self.messages, self.tools)
        self.memory.remember(conversation, prompt.ids, output, message)
        self.messages.append(json.loads(json.dumps(message)))
        return prompt.ids + output

    def hear(self, text: str, role: str = "user") -> None:
        self.messages.append({"role": role, "content": text})


def reply(template: ChatTemplate, prompt: str, output: list[int]) -> dict[str, Any]:
    """The message that a client is told for these ids."""
    stream = Detokenizer(byte_level(), hidden=hidden_ids(byte_level(), keep=MARKERS))
    parser = ReplyParser(reply_form(template.text, prompt, tools=True))
    for id_ in output:
        parser.add(stream.add(id_))
    parser.add(stream.flush())
    parser.finish()
    return parser.reply.message()


def chat(text: str | None = None, *, max_bytes: int = 1 << 20, tools: bool = True) -> Chat:
    template = ChatTemplate(byte_level(), text or chatml(), stop_ids={END, END_OF_TEXT})
    first = {"role": "user", "content": "hi"}
    return Chat(CompletionMemory(max_bytes), template, [first], TOOLS if tools else [])


def said(text: str = SAID, *, ended: bool = True) -> list[int]:
    """Ids of a text as no tokenizer would give them: one for each byte."""
    letters = byte_level().backend_tokenizer.model
    singles = [letters.token_to_id(char) for word in letters_of(text) for char in word]
    return [id_ for id_ in singles if id_ is not None] + [END] * ended


def letters_of(text: str) -> list[str]:
    return [word for word, _ in byte_level().backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@given(turns=st.lists(st.tuples(OUTPUTS, st.booleans(), st.text(max_size=8)), min_size=1, max_size=4))
def test_prompts_extend_what_was_sampled(turns: list[tuple[list[int], bool, str]]) -> None:
    it = chat()
    for output, ended, heard in turns:
        held = it.say(output + [END] * ended)
        it.hear(heard)
        text, prompt = it.prompt()
        assert prompt.ids[: len(held)] == held
        assert prompt.spliced_tokens == len(held)
        rest = text_of(byte_level(), prompt.ids[len(held) - ended :])
        assert text.endswith(rest)
        assert rest == f"<|im_end|>\n<|im_start|>user\n{heard}<|im_end|>\n<|im_start|>assistant\n"


@given(words=st.lists(st.text(alphabet="abé你 \n", max_size=12), min_size=1, max_size=4))
def test_where_the_text_gives_the_same_ids_nothing_changes(words: list[str]) -> None:
    it = chat()
    for word in words:
        it.say([*ids_of(byte_level(), word), END])
        it.hear("go on")
        text, prompt = it.prompt()
        assert prompt.ids == it.template.encode(text)
        assert prompt.spliced_tokens > 0


def test_ids_that_no_text_encodes_to_are_kept() -> None:
    it = chat()
    held = it.say(said("hello"))
    it.hear("and?")
    text, prompt = it.prompt()
    assert text_of(byte_level(), prompt.ids) == text
    assert prompt.ids != it.template.encode(text)
    assert prompt.ids[: len(held)] == held


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_conversation_that_goes_another_way_keeps_what_it_shares(after: int) -> None:
    it = chat()
    held = []
    for word in ("one", "two", "three"):
        held.append(it.say(said(word)))
        it.hear(f"after {word}")
    it.messages[2 * after + 2 :] = [{"role": "user", "content": "otherwise"}]
    _, prompt = it.prompt()
    assert prompt.ids[: prompt.spliced_tokens] == held[after]


def changed(how: str) -> Chat:
    """A chat after one turn with everything in it, and what its client then did."""
    it = chat()
    it.say([*ids_of(byte_level(), SAID), END])
    message = it.messages[-1]
    function = message["tool_calls"][0]["function"]
    match how:
        case "nothing":
            pass
        case "new ids of calls":
            message["tool_calls"][0]["id"] = "other"
        case "JSON written anew":
            function["arguments"] = '{ "x":1 }'
        case "reasoning_content":
            message["reasoning_content"] = message.pop("reasoning")
        case "content in parts":
            message["content"] = [{"type": "text", "text": message["content"]}]
        case "other fields":
            message |= {"refusal": None, "annotations": [], "audio": None}
        case "no reasoning":
            del message["reasoning"]
        case "other content":
            message["content"] += " "
        case "other arguments":
            function["arguments"] = '{"x": 2}'
        case "no call":
            del message["tool_calls"]
        case "other question":
            it.messages[0]["content"] = "ho"
        case "other role":
            it.messages[0]["role"] = "system"
        case "other tools":
            it.tools = [{"type": "function", "function": {"name": "g", "parameters": {}}}]
    it.hear("42", "tool")
    return it


@pytest.mark.parametrize(
    "how",
    [
        "nothing",
        "new ids of calls",
        "JSON written anew",
        "reasoning_content",
        "content in parts",
        "other fields",
    ],
)
def test_messages_that_say_the_same_are_recognised(how: str) -> None:
    assert changed(how).prompt()[1].spliced_tokens > 0


@pytest.mark.parametrize(
    "how",
    [
        "no reasoning",
        "other content",
        "other arguments",
        "no call",
        "other question",
        "other role",
        "other tools",
    ],
)
def test_messages_that_differ_are_tokenised(how: str) -> None:
    it = changed(how)
    text, prompt = it.prompt()
    assert prompt == Splice(ids=it.template.encode(text), spliced_tokens=0)


def test_null_content_and_none_are_the_same() -> None:
    it = chat()
    it.say([*ids_of(byte_level(), SAID.partition("One.\n")[2]), END])
    assert it.messages[-1]["content"] is None
    it.messages[-1]["content"] = ""
    assert it.prompt()[1].spliced_tokens > 0


def test_an_output_cut_off_is_closed_by_the_template() -> None:
    it = chat()
    held = it.say(said("hello", ended=False))
    it.hear("and?")
    text, prompt = it.prompt()
    assert text_of(byte_level(), prompt.ids) == text
    assert prompt.ids[: len(held) + 1] == [*held, END]


def test_an_output_with_another_end_is_not_spliced() -> None:
    it = chat()
    it.say([*said("hello", ended=False), END_OF_TEXT])
    it.hear("and?")
    text, prompt = it.prompt()
    assert prompt == Splice(ids=it.template.encode(text), spliced_tokens=0)


@pytest.mark.parametrize(
    "template",
    [
        # an answer is shown as it was in the last turn alone
        "{% for m in messages %}{{ m.content if loop.last or m.role == 'user' else m.content | upper }}"
        "<|im_end|>{% endfor %}",
        # a question that comes last has a mark
        "{% for m in messages %}{{ m.content + ('!' if loop.last and m.role == 'user' else '') }}<|im_end|>"
        "{% endfor %}",
        # nothing ends a turn
        "{% for m in messages %}{{ m.content }}\n{% endfor %}",
        # what comes first depends on what comes last
        "{{ messages | length }}{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
        # turns are counted, and one of two is no conversation
        "{% if messages | length == 2 %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
    ],
)
def test_where_the_place_is_not_certain_nothing_is_spliced(template: str) -> None:
    it = chat(template, tools=False)
    it.say(said("hello"))
    it.hear("and?")
    text, prompt = it.prompt()
    assert prompt == Splice(ids=it.template.encode(text), spliced_tokens=0)


def test_a_turn_that_the_template_hides_leaves_the_one_before() -> None:
    it = chat()
    held = it.say(said("one"))
    it.hear("more")
    it.say([*said("two", ended=False), END_OF_TEXT])
    it.hear("more")
    assert it.prompt()[1].spliced_tokens == len(held)


def test_choices_of_one_call_are_told_apart() -> None:
    it = chat()
    start = list(it.messages)
    held = {}
    for word in ("one", "two"):
        it.messages = list(start)
        held[word] = it.say(said(word))
    for word, ids in held.items():
        it.messages = [*start, {"role": "assistant", "content": word}, {"role": "user", "content": "?"}]
        assert it.prompt()[1].ids[: len(ids)] == ids


def test_the_least_recently_used_is_forgotten() -> None:
    size = len(chat().say(said("a"))) * 4 + 256
    it = chat(max_bytes=2 * size)
    starts = [{"role": "user", "content": word} for word in "xyz"]

    def spliced(start: dict[str, Any]) -> bool:
        it.messages = [start, {"role": "assistant", "content": "a"}]
        return it.prompt()[1].spliced_tokens > 0

    for start in starts[:2]:
        it.messages = [start]
        it.say(said("a"))
    assert spliced(starts[0])
    it.messages = [starts[2]]
    it.say(said("a"))
    assert [spliced(start) for start in starts] == [True, False, True]


def test_an_entry_larger_than_all_the_room_is_not_kept() -> None:
    it = chat(max_bytes=100)
    it.say(said("hello"))
    it.hear("and?")
    assert it.prompt()[1].spliced_tokens == 0


def test_a_long_conversation_with_noise_is_spliced_to_the_last_turn() -> None:
    noise = random.Random(0)
    it = chat()
    for _ in range(30):
        held = it.say([noise.randrange(3, 259) for _ in range(20)] + [END])
        it.hear("go on")
    text, prompt = it.prompt()
    assert prompt.ids[: len(held)] == held
    assert prompt.ids != it.template.encode(text)
