"""Arguments of tool calls as they were sampled, where the harness wrote them anew: a mode of chat."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.restore import arguments_in, restored
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, ToolCall
from tests.proxy.processes import ProxyProcess
from tests.proxy.reading import body_of
from tests.proxy.running import RunningProxy

Json = dict[str, Any]
SAMPLED = '{"b": 1.0,  "a": "\\u00e9"}'
LOOK = Answer(text="", tool_calls=(ToolCall("ls", SAMPLED),))
ASKED = {"role": "user", "content": "look"}


def history(arguments: str, ident: str = "call_0") -> list[Json]:
    call = {"id": ident, "type": "function", "function": {"name": "ls", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    return [ASKED, said, {"role": "tool", "tool_call_id": ident, "content": "a b"}]


def sent(engine: FakeEngine) -> str:
    text: str = engine.calls[-1].json["messages"][1]["tool_calls"][0]["function"]["arguments"]
    return text


def test_a_harness_that_writes_arguments_anew_gets_them_sent_as_sampled(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine, restore_arguments=True) as proxy:
        proxy.chat(messages=[ASKED], stream=True)
        again = proxy.chat(messages=history('{"a":"é","b":1}'))
        rows = proxy.rows(2)
        assert sent(engine) == SAMPLED
    assert rows[1].capture_flags == ["arguments_restored"] and rows[1].capture_quality == "exact"
    assert body_of(rows, rows[1]) == again.request.content


@pytest.mark.parametrize("arguments", ['{"a":"e","b":1.0}', '{"a":"é","b":true}', "{", SAMPLED])
def test_other_arguments_and_the_same_text_stay_as_they_are(tmp_path: Path, arguments: str) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine, restore_arguments=True) as proxy:
        proxy.chat(messages=[ASKED])
        again = proxy.chat(messages=history(arguments))
        rows = proxy.rows(2)
        assert engine.calls[-1].json["messages"] == history(arguments)
    assert rows[1].capture_flags == [] and body_of(rows, rows[1]) == again.request.content


def test_without_the_mode_nothing_is_changed_and_an_execution_can_ask_for_it(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine) as proxy:
        url = f"{proxy.url}/gyre/v1/executions/e2"
        shown = httpx.put(url, json={"restore_arguments": True}).json()
        for execution in ("e1", "e2"):
            proxy.chat(execution, messages=[ASKED])
            proxy.chat(execution, messages=history('{"a":"é","b":1.0}'))
        texts = [call.json["messages"][1:2] for call in engine.calls]
        events = [record for record in proxy.records() if getattr(record, "event", "") == "started"]
    assert shown["restore_arguments"] is True
    written = [message[0]["tool_calls"][0]["function"]["arguments"] for message in texts if message]
    assert written == ['{"a":"é","b":1.0}', SAMPLED]
    assert json.loads(getattr(events[0], "details", b"")) == {"restore_arguments": True}


def test_what_another_worker_saw_is_found_in_the_log(tmp_path: Path) -> None:
    """Each call comes over a connection of its own, so that any of three workers may take it."""
    config = "restore_arguments = true\n"
    with (
        FakeEngine(script=LOOK) as engine,
        ProxyProcess(tmp_path, engine.url, "--workers", "3", config=config) as proxy,
    ):
        for number in range(12):
            name = f"e{number}"
            proxy.chat(name, messages=[ASKED])
            proxy.chat(name, messages=history('{"a":"é","b":1.0}'))
            assert sent(engine) == SAMPLED


def test_a_call_that_the_harness_made_up_is_looked_for_once(tmp_path: Path) -> None:
    with FakeEngine(script=LOOK) as engine, RunningProxy(tmp_path, engine, restore_arguments=True) as proxy:
        for _ in range(3):
            proxy.chat(messages=history('{"a": 1}', ident="made-up"))
        known = proxy.relay.sampled.get("e1", "made-up")
    assert known == () and engine.calls[-1].json["messages"] == history('{"a": 1}', "made-up")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.booleans(), st.booleans())
def test_any_spelling_of_the_same_value_is_restored(value: Json, ascii_only: bool, tight: bool) -> None:
    sampled = json.dumps(value, ensure_ascii=not ascii_only, indent=1)
    written = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":") if tight else None)
    answer = {"tool_calls": [{"id": "call_0", "function": {"name": "ls", "arguments": sampled}}]}
    memory = dict(arguments_in(json.dumps(answer).encode()))
    messages = restored(history(written), lambda ident: (memory[ident],))
    assert messages is None or messages == history(sampled)
    assert messages is not None or written == sampled
