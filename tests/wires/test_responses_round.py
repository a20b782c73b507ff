"""There and back: histories mean the same as chat, and what an engine said comes back as it said it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.canonical import Block, blocks_of, response_blocks
from gyre.proxy.wires.responses.translate import translate
from tests.proxy.json_text import TEXT
from tests.wires.responses_builders import (
    AGENTS,
    CALL_ID,
    EXEC,
    FIND,
    PATCH,
    Json,
    body,
    called,
    chat_call,
    dialect,
    message,
    messages,
    output,
    patched,
    run,
    said,
    thought,
    user,
    writer,
)

PATIENT = settings(deadline=None)
TOOLS = [EXEC, AGENTS, PATCH, FIND]
WORDS = TEXT.filter(str.strip)
OBJECTS = st.dictionaries(WORDS, WORDS | st.integers(-9, 9) | st.none() | st.lists(st.booleans(), max_size=2))
SPACING = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : ")])


@st.composite
def spelled(draw: st.DrawFn) -> str:
    return json.dumps(draw(OBJECTS), separators=draw(SPACING), ensure_ascii=draw(st.booleans()))


@st.composite
def answers(draw: st.DrawFn) -> list[Json]:
    """The items of one answer."""
    number = draw(st.integers(0, 999))
    items = [thought(text, f"rs_{number}_0") for text in draw(st.lists(WORDS, max_size=1))]
    items += [said(text, f"msg_{number}_1") for text in draw(st.lists(WORDS, max_size=1))]
    kinds = draw(st.lists(st.sampled_from(["function", "namespace", "custom", "search"]), max_size=3))
    for at, kind in enumerate(kinds):
        ident, more = f"c{number}_{at}", {"id": f"fc_{number}_{at + 2}"}
        if kind == "custom":
            items.append(patched(ident, draw(WORDS), **more))
        elif kind == "search":
            search = {"type": "tool_search_call", "execution": "client", "call_id": ident, **more}
            items.append(search | {"arguments": draw(OBJECTS)})
        elif kind == "namespace":
            items.append(called(ident, draw(spelled()), "spawn_agent", namespace="agents", **more))
        else:
            items.append(called(ident, draw(spelled()), **more))
    return items


@st.composite
def histories(draw: st.DrawFn) -> list[Json]:
    items = [message("developer", text) for text in draw(st.lists(WORDS, max_size=1))]
    for _ in range(draw(st.integers(1, 4))):
        answer = draw(answers())
        items += [user(draw(WORDS)), *answer]
        results = {"custom_tool_call": "custom_tool_call_output", "function_call": "function_call_output"}
        items += [
            output(item["call_id"], draw(WORDS), results[item["type"]])
            for item in answer
            if item["type"] in results
        ]
    return items


def leveled(blocks: list[Block]) -> list[Block]:
    """chat has no developer, and what of one answer stood in two items may stand in one message."""
    return [block._replace(role="system") if block.role == "developer" else block for block in blocks]


@PATIENT
@given(histories())
def test_a_history_means_the_same_in_chat(items: list[Json]) -> None:
    chat = messages(*items, tools=TOOLS)
    assert leveled(blocks_of(orjson.dumps(items))) == blocks_of(orjson.dumps(chat))


@PATIENT
@given(histories())
def test_every_answer_is_one_message_and_every_call_is_answered_by_its_id(items: list[Json]) -> None:
    chat = messages(*items, tools=TOOLS)
    asked = sum(item["type"] == "message" and item["role"] != "assistant" for item in items)
    told = [call["id"] for found in chat for call in found.get("tool_calls", ())]
    assert sum(found["role"] in ("user", "system") for found in chat) == asked
    assert told == [item["call_id"] for item in items if item["type"].endswith("_call")]
    assert all(one["role"] != "assistant" or two["role"] != "assistant" for one, two in pairwise(chat))


NAMES = ["exec_command", "agents__spawn_agent", "apply_patch", "tool_search", "made_up"]


@st.composite
def engine_messages(draw: st.DrawFn) -> Json:
    """What an engine says, in any spelling, also of arguments that are no JSON."""
    odd = st.sampled_from(['{"a": 1', "", "[]", "*** Begin Patch", '{"input": "cut'])
    custom = WORDS.map(lambda text: json.dumps({"input": text}, indent=1))
    told = draw(st.lists(st.tuples(st.sampled_from(NAMES), spelled() | custom | odd), max_size=3))
    calls = [chat_call(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(told)]
    found: Json = {"role": "assistant", "content": draw(WORDS | st.none())}
    found["content"] = found["content"] or (None if calls else "so")
    if thought_of := draw(st.none() | WORDS):
        found["reasoning_content"] = thought_of
    return found | ({"tool_calls": calls} if calls else {})


def answered(said_by_engine: Json, tools: list[Json], **fields: Any) -> list[Json]:
    out = writer(*tools, **fields)
    run(out, [said_by_engine])
    found = out.answer()["output"]
    assert isinstance(found, list)
    return found


def respelled(item: Json) -> Json:
    """As a harness does that parses arguments and writes them again."""
    try:
        return {**item, "arguments": json.dumps(json.loads(item["arguments"]), separators=(",", ":"))}
    except (KeyError, TypeError, json.JSONDecodeError):
        return item


@PATIENT
@given(engine_messages(), st.booleans(), st.booleans())
def test_what_the_engine_said_comes_back_as_it_said_it(
    told: Json, keeps_content: bool, keeps_ids: bool
) -> None:
    """The next prompt renders the sampled text again, whatever the harness did to its spelling."""
    sampled = {call["id"]: call["function"]["arguments"] for call in told.get("tool_calls", ())}
    items = answered(told, TOOLS, include=["reasoning.encrypted_content"])
    for item in items:
        if item["type"] == "reasoning" and not keeps_content:
            del item["content"]
        if not keeps_ids:
            del item["id"]
    history = [user("hi"), *(respelled(item) for item in items), user("on")]
    asked = translate(body(*history, tools=TOOLS), dialect(sampled))
    assert asked.chat["messages"][1:-1] == [told]
    assert asked.lost == ["grammar_not_enforced:apply_patch"]


@PATIENT
@given(engine_messages())
def test_an_answer_is_the_same_in_both_forms(told: Json) -> None:
    """The log keeps the engine's message; the next request brings items."""
    items = answered(told, TOOLS)
    whole = [call for call in told.get("tool_calls", ()) if _is_plain(call)]
    if len(whole) == len(told.get("tool_calls", ())):
        chat = response_blocks(orjson.dumps(told))
        assert chat == response_blocks(orjson.dumps({"output": items})) == blocks_of(orjson.dumps(items))


def _is_plain(call: Json) -> bool:
    """Whether a custom tool was called with its one text and nothing else."""
    if call["function"]["name"] != "apply_patch":
        return True
    try:
        value = json.loads(call["function"]["arguments"])
    except json.JSONDecodeError:
        return False
    return isinstance(value, dict) and value.keys() == {"input"} and isinstance(value["input"], str)


def test_ids_say_which_items_one_answer_was() -> None:
    told = {"reasoning_content": "hm", "content": "so", "tool_calls": [chat_call("c1", "exec_command", "{}")]}
    ids = [item["id"] for item in answered(told, TOOLS)]
    assert ids == [f"rs_{CALL_ID}_0", f"msg_{CALL_ID}_1", f"fc_{CALL_ID}_2"]
