"""Small builders of Messages bodies, and strategies for whole conversations and answers."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st

from gyre.proxy.canonical import Block, Kind, blocks_of
from gyre.proxy.wires.messages.translate import MessagesTranslation, translate
from gyre.proxy.wires.messages.writer import MessagesWriter
from gyre.proxy.wires.translation import Dialect, Ending, Json

PIXEL = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE: Json = {"type": "image", "source": PIXEL}
IMAGE_PART: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
BASH: Json = {
    "name": "Bash",
    "description": "Run a command",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}


def text(said: str, **more: Any) -> Json:
    return {"type": "text", "text": said, **more}


def thinking(said: str) -> Json:
    return {"type": "thinking", "thinking": said, "signature": "s"}


def call(ident: str, name: str = "Bash", **given: Any) -> Json:
    return {"type": "tool_use", "id": ident, "name": name, "input": given}


def result(ident: str, content: Any = None, **more: Any) -> Json:
    block = {"type": "tool_result", "tool_use_id": ident, **more}
    return block if content is None else {**block, "content": content}


def user(*content: Any) -> Json:
    """One string stands alone, as clients write it."""
    return {"role": "user", "content": content[0] if content and isinstance(content[0], str) else [*content]}


def assistant(*content: Any) -> Json:
    return {**user(*content), "role": "assistant"}


def system(*content: Any) -> Json:
    return {**user(*content), "role": "system"}


def body(*messages: Json, **fields: Any) -> Json:
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **fields}


def translated(*messages: Json, dialect: Dialect | None = None, **fields: Any) -> MessagesTranslation:
    return translate(body(*messages, **fields), dialect or Dialect("c1"))


def chat_of(*messages: Json, **fields: Any) -> list[Json]:
    """The chat messages of a conversation."""
    chat: list[Json] = translated(*messages, **fields).chat["messages"]
    return chat


def chat_call(ident: str, arguments: str, name: str = "Bash", **more: Any) -> Json:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def events_of(stream: bytes) -> list[Json]:
    """Events of a stream, each of which must be named as its type."""
    events = []
    for event in stream.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def written(deltas: list[Json], ending: Ending, prompt_tokens: int | None = 7) -> tuple[bytes, Json]:
    """The stream of an answer and its plain form."""
    writer = MessagesWriter("c1", "m")
    pieces = [writer.start(prompt_tokens), *map(writer.delta, deltas), writer.end(ending)]
    return b"".join(pieces), writer.answer()


def canonical(messages: list[Json], first: Any = None) -> list[Block]:
    """Canonical blocks of a conversation.

    Texts of one system prompt and thoughts in a row are one, for so they reach the engine.
    """
    listed = [{"role": "system", "content": first}] if first else []
    levelled: list[Block] = []
    for message in [*listed, *messages]:
        blocks = blocks_of(orjson.dumps(message))
        if message["role"] == "system":
            said = "".join(block.text for block in blocks)
            blocks = [Block("system", Kind.TEXT, "", said)] if said else []
        for block in blocks:
            if levelled and block.kind == levelled[-1].kind == Kind.REASONING:
                block = block._replace(text=levelled.pop().text + block.text)
            levelled.append(block)
    return levelled


PATIENT = settings(deadline=None)
"""Shared machines stall for longer than hypothesis waits."""

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda text: not text or text.strip())
"""Blank ones say nothing in canonical form, but stand between others when they are joined."""
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(-1e6, 1e6, allow_nan=False), TEXTS
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=5,
)
INPUTS = st.dictionaries(TEXTS, _VALUES, max_size=3)
_SPOKEN = st.one_of(TEXTS, st.lists(st.builds(text, TEXTS), max_size=3))


@st.composite
def conversations(draw: st.DrawFn) -> Json:
    """A body as a harness may send it: each call answered in the next message, results before text."""
    messages: list[Json] = [{"role": "user", "content": draw(_SPOKEN)}]
    for turn in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            messages.append({"role": "system", "content": draw(_SPOKEN)})
        idents = [f"call_{turn}_{number}" for number in range(draw(st.integers(0, 3)))]
        said = [
            *draw(st.lists(st.builds(thinking, TEXTS.filter(bool)), max_size=2)),
            *draw(st.lists(st.builds(text, TEXTS), max_size=2)),
            *({**call(ident), "input": draw(INPUTS)} for ident in idents),
        ]
        results = [result(ident, draw(st.one_of(st.none(), TEXTS, _one_text()))) for ident in idents]
        spoken = draw(st.lists(st.builds(text, TEXTS), min_size=1, max_size=2))
        messages += [assistant(*said), user(*results, *spoken)]
    return body(*messages, **draw(st.one_of(st.just({}), st.fixed_dictionaries({"system": _SPOKEN}))))


def _one_text() -> st.SearchStrategy[list[Json]]:
    return st.builds(text, TEXTS).map(lambda block: [block])


@st.composite
def spelled(draw: st.DrawFn, value: Json) -> str:
    """A JSON object in one of the ways a model may write it."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")]))
    return draw(st.sampled_from(["", " ", "\n"])) + json.dumps(
        value, ensure_ascii=False, separators=separators
    )


@st.composite
def chat_answers(draw: st.DrawFn) -> Json:
    """The message of a plain chat answer."""
    message: Json = {"role": "assistant", "content": draw(st.one_of(st.none(), TEXTS))}
    if thought := draw(TEXTS):
        message[draw(st.sampled_from(["reasoning", "reasoning_content"]))] = thought
    calls = [
        chat_call(f"call_{number}", draw(INPUTS.flatmap(spelled)), index=number)
        for number in range(draw(st.integers(0, 3)))
    ]
    return {**message, "tool_calls": calls} if calls else message


@st.composite
def deltas_of(draw: st.DrawFn, message: Json) -> list[Json]:
    """The message cut anywhere, parallel calls interleaved; each begins after the one before has begun."""
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    for field in ("reasoning", "reasoning_content", "content"):
        deltas += [{field: piece} for piece in _cut(draw, message.get(field) or "")]
    waiting = [_call_parts(draw, part) for part in message.get("tool_calls", [])]
    begun: list[list[Json]] = []
    while waiting or begun:
        if waiting and (not begun or draw(st.booleans())):
            begun.append(waiting.pop(0))
            parts = begun[-1]
        else:
            parts = begun[draw(st.integers(0, len(begun) - 1))]
        deltas.append({"tool_calls": [parts.pop(0)]})
        begun = [left for left in begun if left]
    return deltas


def _call_parts(draw: st.DrawFn, part: Json) -> list[Json]:
    first = {**part, "function": {"name": part["function"]["name"], "arguments": ""}}
    pieces = _cut(draw, part["function"]["arguments"])
    return [first, *({"index": part["index"], "function": {"arguments": piece}} for piece in pieces)]


def _cut(draw: st.DrawFn, whole: str) -> list[str]:
    cuts = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=5)) | {0, len(whole)})
    return [whole[start:end] for start, end in pairwise(cuts)]
