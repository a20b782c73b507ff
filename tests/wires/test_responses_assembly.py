"""Native streams, read as they go past: whole, cut, from engines that say little, and odd ones."""

from __future__ import annotations

from typing import Any

import pytest

from gyre.proxy.wires.responses.assembly import ResponsesAssembly, read_plain
from gyre.proxy.wires.translation import Ending
from tests.wires.responses_builders import (
    AGENTS,
    EXEC,
    FIND,
    PATCH,
    Json,
    called,
    chat_call,
    events,
    run,
    said,
    writer,
)

USAGE = {"prompt_tokens": 40, "completion_tokens": 9}
CALLS = [
    chat_call("c1", "agents__spawn_agent", '{"a": 1}'),
    chat_call("c2", "apply_patch", '{"input": "x\\ny"}'),
    chat_call("c3", "exec_command", '{"cmd": "ls"}'),
]
DELTAS: list[Json] = [
    {"reasoning": "hm "},
    {"reasoning": "hm"},
    {"content": "I "},
    {"content": "look."},
    {"refusal": "No"},
    {"tool_calls": CALLS},
]


def stream(ending: Ending | None = None) -> tuple[list[Json], Json]:
    out = writer(EXEC, AGENTS, PATCH, FIND)
    found = events(run(out, DELTAS, ending or Ending("stop", None, USAGE)))
    return found, out.answer()


def read(found: list[Json]) -> ResponsesAssembly:
    assembly = ResponsesAssembly()
    for event in found:
        assembly.add(event)
    return assembly


def test_a_whole_stream_is_its_answer() -> None:
    found, answer = stream()
    assembly = read(found)
    assert assembly.message() == {"output": answer["output"]}
    assert (assembly.done, assembly.failed, assembly.finish_reason) == (True, None, "completed")
    assert assembly.usage == answer["usage"]
    assert assembly.meta()["id"] == answer["id"]
    assert assembly.meta().keys().isdisjoint({"output", "usage", "tools", "instructions"})


def test_a_plain_answer_reads_like_its_stream() -> None:
    found, answer = stream()
    plain, streamed = read_plain(answer), read(found)
    assert plain.message() == streamed.message()
    assert plain.meta() == streamed.meta()
    assert (plain.done, plain.finish_reason, plain.usage) == (True, "completed", streamed.usage)


def test_items_count_where_the_end_repeats_none() -> None:
    found, answer = stream()
    found[-1]["response"]["output"] = []
    assert read(found).message() == {"output": answer["output"]}
    del found[-1]["response"]["output"]
    assert read(found).message() == {"output": answer["output"]}


def test_deltas_count_where_items_have_no_end() -> None:
    """What came before a cut: the same, but for the status."""
    found, answer = stream()
    cut = [event for event in found[:-1] if not event["type"].endswith("output_item.done")]
    assembly = read(cut)
    assert (assembly.done, assembly.finish_reason, assembly.usage) == (False, None, None)
    texts = [_said(item) for item in assembly.message()["output"]]
    assert texts == [_said(item) for item in answer["output"]]
    assert texts == [["hm hm"], ["I look.", "No"], ['{"a": 1}'], ["x\ny"], ['{"cmd": "ls"}']]


def _said(item: Json) -> list[str]:
    if "content" in item:
        return [part.get("text") or part["refusal"] for part in item["content"]]
    return [item.get("arguments") or item["input"]]


def test_a_summary_is_assembled() -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": []}
    delta = {"type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 0}
    assembly = read([{"type": "response.output_item.added", "output_index": 0, "item": item}])
    for piece in ("in ", "short"):
        assembly.add({**delta, "delta": piece})
    assert assembly.message()["output"][0]["summary"] == [{"type": "summary_text", "text": "in short"}]


def test_items_without_an_index_are_in_their_order() -> None:
    items = [said("a"), called("c1")]
    assembly = read([{"type": "response.output_item.done", "item": item} for item in items])
    assert assembly.message() == {"output": items}


@pytest.mark.parametrize(
    ("reason", "told"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_why_it_is_incomplete(reason: str, told: str) -> None:
    found, answer = stream(Ending(reason))
    assert (read(found).finish_reason, read(found).done) == (told, True)
    assert read_plain(answer).finish_reason == told


def test_a_failure_is_told() -> None:
    out = writer()
    found = events(out.start(None) + out.failed(429, "slow down", "x"))
    assembly = read(found)
    assert (assembly.done, assembly.failed, assembly.finish_reason) == (True, "slow down", "failed")
    assert read_plain(out.answer()).failed == "slow down"


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "code": "server_error", "message": "broke"},
        {"type": "error", "error": {"type": "server_error", "message": "broke"}},
    ],
)
def test_an_error_event_is_a_failure_but_no_end(event: Json) -> None:
    assembly = read([event])
    assert (assembly.failed, assembly.done) == ("broke", False)


ODD: list[Any] = [None, 3, "x", [], {}, [None], {"a": 1}, True]
FIELDS = ("response", "item", "delta", "output_index", "content_index", "summary_index", "error", "message")


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", FIELDS)
def test_odd_types_never_raise(field: str, odd: Any) -> None:
    found, _ = stream()
    kinds = {event["type"]: event for event in found}
    more = ["error", "response.failed", "response.reasoning_summary_text.delta", "response.banana"]
    assembly = ResponsesAssembly()
    assembly.add(kinds["response.output_item.added"])
    for event in [*kinds.values(), *({"type": kind} for kind in more)]:
        assembly.add({**event, field: odd})
    assert isinstance(assembly.message()["output"], list)
    assert isinstance(assembly.meta(), dict)


@pytest.mark.parametrize("kind", ODD)
def test_odd_events_are_nothing(kind: Any) -> None:
    assembly = read([{"type": kind}, {}])
    assert (assembly.message(), assembly.done, assembly.failed) == ({"output": []}, False, None)


@pytest.mark.parametrize(
    "answer", [{}, {"status": 3, "output": "x", "usage": 3, "error": [], "incomplete_details": 3}]
)
def test_odd_plain_answers_never_raise(answer: Json) -> None:
    assembly = read_plain(answer)
    assert (assembly.message(), assembly.done, assembly.usage) == ({"output": []}, True, None)
