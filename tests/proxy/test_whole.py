"""Chat streams with tools on llama.cpp, which refuses ids there: asked for whole, sent in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, ToolCall
from tests.proxy.reading import ids_of
from tests.proxy.running import RunningProxy

TOOL: Any = {
    "type": "function",
    "function": {"name": "ls", "parameters": {"type": "object", "properties": {}}},
}
ASKED: Any = [{"role": "user", "content": "look"}]
LOOK = Answer(text="I look.", reasoning="hm", tool_calls=(ToolCall("ls", '{"a":  1}'), ToolCall("ls", "{}")))


@pytest.mark.parametrize("usage", [False, True])
def test_the_client_gets_its_stream_and_the_row_its_ids(tmp_path: Path, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    with (
        FakeEngine(kind="llamacpp", script=LOOK) as engine,
        RunningProxy(tmp_path, engine) as proxy,
        openai.OpenAI(base_url=proxy.base(), api_key="dummy", max_retries=0) as client,
    ):
        asked = client.chat.completions.create(
            model="m", messages=ASKED, tools=[TOOL], stream=True, **options
        )
        chunks = list(asked)
        (row,) = proxy.rows()
    calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert [(call.index, call.function and call.function.arguments) for call in calls] == [
        (0, '{"a":  1}'),
        (1, "{}"),
    ]
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "I look."
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices] == [None, "tool_calls"]
    assert [chunk.usage is not None for chunk in chunks][-1] is usage
    assert engine.calls[0].json["stream"] is False and row.stream
    assert (row.capture_quality, ids_of(row.output)) == ("exact", LOOK.output_ids)
    assert row.capture_flags == ["asked_whole"]


def test_without_tools_the_stream_is_the_engines_own(tmp_path: Path) -> None:
    with FakeEngine(kind="llamacpp") as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=True)
        (row,) = proxy.rows()
    assert engine.calls[0].json["stream"] is True and row.capture_flags == []
