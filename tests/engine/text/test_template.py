"""Conversations as prompts: our own template, those of others, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

from gyre.elastic.engine.text.chatml import chatml
from gyre.elastic.engine.text.conversation import Conversation, read_conversation
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.proxy.errors import RequestError
from tests.engine.text.tokens import byte_level, ids_of

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + SMOLLM2_SYSTEM + "<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}


def template(text: str | None = None, **options: Any) -> ChatTemplate:
    return ChatTemplate(byte_level(), chatml() if text is None else text, **options)


def user(text: str = "hi", **options: Any) -> Conversation:
    return read_conversation([{"role": "user", "content": text}], **options)


def test_a_whole_conversation_in_our_template() -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Wait.", "reasoning": "hm", "tool_calls": [CALL, CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    ]
    assert template().render(read_conversation(messages, [TOOL])) == (
        "<|im_start|>system\nBe kind.\n\nYou can call these functions:\n<tools>\n"
        '{"name": "f", "parameters": {"type": "object"}}\n</tools>\n'
        "To call one, write its name and arguments as JSON between tags, like this:\n"
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nhm\n</think>\n\nWait.\n"
        '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>tool\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>assistant\n"
    )


def test_no_system_message_is_made_up() -> None:
    assert template().render(user()) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_tools_have_a_system_message_of_their_own() -> None:
    ours = template(chatml("Say \"hi\" \\ 'é'"))
    assert ours.render(user(tools=[TOOL])).startswith("<|im_start|>system\nSay \"hi\" \\ 'é'\n\nYou can call")
    assert template().render(user(tools=[TOOL])).startswith("<|im_start|>system\n\n\nYou can call")


@pytest.mark.parametrize("system", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
def test_without_tools_ours_is_the_one_of_smollm2(system: bool, prompt: bool) -> None:
    roles = ["system"] * system + ["user", "assistant", "system", "user"]
    messages = [{"role": role, "content": f" {role}\n<b> & 'é'\n"} for role in roles]
    conversation = read_conversation(messages)
    theirs, ours = template(SMOLLM2), template(chatml(SMOLLM2_SYSTEM))
    assert ours.render(conversation, add_generation_prompt=prompt) == theirs.render(
        conversation, add_generation_prompt=prompt
    )


def test_the_last_message_can_be_continued() -> None:
    conversation = read_conversation(
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "One "}]
    )
    text = template().render(conversation, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOne "
    with pytest.raises(RequestError, match="not compatible"):
        template().render(conversation, continue_final_message=True)


def test_arguments_of_the_template_reach_it() -> None:
    text = template("{{ messages[0].content }} {{ effort }}").render(user(kwargs={"effort": "low"}))
    assert text == "hi low"


@pytest.mark.parametrize("key", ["messages", "tools", "chat_template", "tokenize", "padding"])
def test_arguments_that_steer_the_rendering_are_refused(key: str) -> None:
    with pytest.raises(RequestError, match=key):
        template().render(user(kwargs={key: "x"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages[0].content + 1 }}", "can only concatenate"),
        ("{{ messages[0].content.__class__.mro() }}", "unsafe"),
        ("{{ 1 / 0 }}", "division"),
    ],
)
def test_what_a_template_says_is_told(text: str, said: str) -> None:
    with pytest.raises(RequestError, match=said) as refused:
        template(text).render(user())
    assert refused.value.status == 400


def test_deep_arguments_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(3000):
        deep = [deep]
    with pytest.raises(RequestError, match="recursion"):
        template().render(user(kwargs={"x": deep}))


def test_tools_that_a_template_hides_are_refused() -> None:
    hiding = template(SMOLLM2)
    for _ in range(2):
        with pytest.raises(RequestError, match="does not show tools") as refused:
            hiding.render(user(tools=[TOOL]))
        assert "--chat-template" in refused.value.hint
    assert "user\nhi" in hiding.render(user(tools=[TOOL]), require_tools=False)
    assert "user\nhi" in hiding.render(user())


def test_markers_become_their_ids_and_nothing_is_added() -> None:
    ids = template().encode("<|im_start|>user\nhi<|im_end|>")
    assert (ids[0], ids[-1]) == (ids_of(byte_level(), "<|im_start|>")[0], byte_level().eos_token_id)
    assert template().encode("") == []


def test_a_token_that_the_tokenizer_puts_first_is_left_to_the_template() -> None:
    tokenizer = copy.deepcopy(byte_level())
    first = [("<|endoftext|>", tokenizer.convert_tokens_to_ids("<|endoftext|>"))]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=first
    )
    assert tokenizer.encode("hi")[0] == first[0][1]
    assert ChatTemplate(tokenizer, chatml()).encode("hi") == template().encode("hi")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        template().encode(template().render(user("\ud800")))


def test_a_text_that_cannot_fit_is_not_encoded() -> None:
    small = template(max_tokens=10)
    longest = max(map(len, byte_level().get_vocab()))
    assert len(small.encode("a" * 10 * longest)) > 10
    with pytest.raises(RequestError, match="characters") as refused:
        small.encode("a" * (10 * longest + 1))
    assert refused.value.code == "context_length_exceeded"
