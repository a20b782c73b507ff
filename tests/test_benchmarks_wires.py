"""The benchmark of wires measures what it says: one story on three wires, every event counted once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gyre.proxy.calls import Wire
from gyre.proxy.capture.profiles import Engine, Hidden
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.capture.translated import TranslatedStream
from gyre.proxy.sse import EventSplitter
from gyre.proxy.wires import known
from gyre.proxy.wires.translation import Dialect

ROOT = Path(__file__).resolve().parent.parent
ALL = frozenset(("token_ids", "logprobs", "prompt_token_ids"))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark's modules; they are no part of the installed project."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("client", "passthrough", "report", "run", "upstream")
    modules = {name: import_module(f"benchmarks.{name}") for name in names}
    wires = {name: import_module(f"benchmarks.wires.{name}") for name in ("cells", "story")}
    wires["wires_report"] = import_module("benchmarks.wires.report")
    yield SimpleNamespace(**modules, **wires, content=rendered(modules["upstream"].Material))


@cache
def rendered(material: Any) -> Any:
    return material()


def cell_of(bench: Any, name: str) -> Any:
    return next(cell for cell in bench.cells.WIRE_CELLS if cell.name == name)


def executions(bench: Any, load: str) -> dict[str, Any]:
    """The same execution on every wire."""
    cells = {wire: cell_of(bench, bench.cells.name_of(load, wire)) for wire in bench.cells.WIRES}
    return {wire: bench.story.grow(cell, "e", 7, bench.content.text) for wire, cell in cells.items()}


def answer_to(bench: Any, execution: Any, call: int) -> Any:
    """What the engine says, as one plain answer."""
    wanted = wanted_by(bench, execution, call)
    wanted.stream = False
    return json.loads(bench.upstream.plain_answer(bench.content, wanted).partition(b"\r\n\r\n")[2])


def wanted_by(bench: Any, execution: Any, call: int) -> Any:
    return bench.upstream.Wanted(bench.passthrough.asking(b"".join(execution.body(call))), call)


def events_of(bench: Any, wanted: Any) -> list[bytes]:
    """The engine's events, without the framing of chunks."""
    raw = b"".join(bench.upstream.event(bench.content, wanted, index) for index in range(wanted.output + 2))
    lines = [line for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return EventSplitter(1 << 20).feed(b"".join(line + b"\n\n" for line in lines))


@pytest.mark.parametrize("load", ["20 KB paced", "400 KB paced", "2 KB", "100 KB"])
def test_every_wire_tells_the_engine_the_same(bench: Any, load: str) -> None:
    told = executions(bench, load)
    sampled: dict[str, str] = {}
    for call in range(len(told["chat"].tails)):
        chat = json.loads(b"".join(told["chat"].body(call)))
        for wire in ("messages", "responses"):
            body = b"".join(told[wire].body(call))
            assert len(body) == told[wire].size(call)
            translated = known.translate(
                Wire(wire), json.loads(body), Dialect("c", "reasoning", lambda ident: (sampled[ident],))
            )
            assert translated.lost == []
            assert translated.chat["messages"] == chat["messages"]
            assert translated.chat.get("tools") == chat.get("tools")
            assert translated.chat["chat_template_kwargs"] == chat["chat_template_kwargs"]
            assert translated.chat.get("stream", False) is chat.get("stream", False)
        for said in answer_to(bench, told["chat"], call)["choices"][0]["message"]["tool_calls"]:
            sampled[said["id"]] = said["function"]["arguments"]
    assert sampled.keys() >= ids_in(chat["messages"])


def ids_in(messages: list[Any]) -> set[str]:
    return {message["tool_call_id"] for message in messages if message["role"] == "tool"}


@pytest.mark.parametrize("load", ["20 KB paced", "2 KB"])
def test_each_prompt_extends_the_last_prompt_and_its_answer(bench: Any, load: str) -> None:
    execution = executions(bench, load)["chat"]
    ids: list[int] = []
    for call in range(len(execution.tails)):
        answer = answer_to(bench, execution, call)
        choice = answer["choices"][0]
        assert answer["prompt_token_ids"][: len(ids)] == ids
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == execution.outputs[call]
        assert choice["finish_reason"] == "tool_calls"
        ids = answer["prompt_token_ids"] + choice["token_ids"]
    assert execution.new_ids == len(ids)


@pytest.mark.parametrize("load", ["20 KB paced", "400 KB paced", "100 KB", "2 MB"])
def test_a_load_has_the_size_that_it_is_named_for(bench: Any, load: str) -> None:
    number, unit = load.split()[:2]
    history = int(number) * {"KB": 1_000, "MB": 1_000_000}[unit]
    for execution in executions(bench, load).values():
        last = len(execution.tails) - 1
        middle = (execution.size(1) + execution.size(last)) / 2
        # What is beside the history, system prompt and tools, is 10 KB.
        assert history * 0.9 < middle < history * 1.2 + 10_000


@pytest.mark.parametrize("wire", ["chat", "messages", "responses"])
@pytest.mark.parametrize("call", [0, 1])
def test_a_stream_has_as_many_events_as_its_client_waits_for(bench: Any, wire: str, call: int) -> None:
    execution = executions(bench, "20 KB paced")[wire]
    wanted = wanted_by(bench, execution, call)
    wanted.usage = True
    events = events_of(bench, wanted)
    assert (wanted.calls, wanted.gap_us) == ((12, 0) if call == 0 else (1, 5000))
    if wire != "chat":
        body = json.loads(b"".join(execution.body(call)))
        writer = known.translate(Wire(wire), body, Dialect("c")).writer()
        hidden = Hidden(frozenset(("prompt_token_ids",)), ALL, False, True)
        stream = TranslatedStream(StreamCapture(Engine.VLLM, hidden, True), writer, "c")
        events = [*map(stream.forward, events), stream.end()]
    count = b"".join(events).count(b"data: ")
    assert count in execution.events[call]


def test_a_streamed_call_says_what_the_plain_one_says(bench: Any) -> None:
    execution = executions(bench, "20 KB streamed")["chat"]
    events = [json.loads(event[6:]) for event in events_of(bench, wanted_by(bench, execution, 1))[:-1]]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    message = answer_to(bench, execution, 1)["choices"][0]["message"]
    parts = [call for delta in deltas for call in delta.get("tool_calls", [])]
    arguments = "".join(part["function"]["arguments"] for part in parts)
    assert [message["tool_calls"][0]["id"]] == [part["id"] for part in parts if "id" in part]
    assert arguments == message["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments).keys() == {"path"}
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]


def test_a_stamp_counts_when_it_comes_and_not_when_it_is_said_again(bench: Any) -> None:
    assert asyncio.run(stamps_in(bench, [b"data: @10@ @2", b"0@\n", b"done: @10@@20@", b" @30@"])) == [
        (10, 0),
        (20, 1),
        (30, 3),
    ]


async def stamps_in(bench: Any, reads: list[bytes]) -> list[tuple[int, int]]:
    connection = bench.client.Connection()
    connection.stream, connection.tail, connection.stamps = True, b"", []
    connection.events = connection.newest = 0
    for number, read in enumerate(reads):
        connection.look_at(read, number)
    return list(connection.stamps)


def result(bench: Any, transit: float, cpu: float) -> Any:
    figures = {"calls": 10, "events": 2000, "wall_s": 1.0, "upstream_cpu_s": 0.1, "cpu_s": cpu}
    times = {"total_ms": [9.0], "first_byte_ms": [transit * 10], "transit_ms": [transit] * 99 + [50.0]}
    return bench.client.Result(**figures, **times)


def test_what_translation_adds_is_told_against_chat(bench: Any) -> None:
    measured = {
        ("20 KB paced, chat", "direct"): result(bench, 0.25, 0.01),
        ("20 KB paced, chat", "pass-through"): result(bench, 0.5, 0.05),
        ("20 KB paced, chat", "gyre"): result(bench, 0.75, 0.1),
        ("20 KB paced, messages", "gyre"): result(bench, 1.0, 0.2),
        ("20 KB paced, responses", "gyre"): result(bench, 1.5, 0.3),
    }
    table = bench.report.Table([bench.report.figures(*key, [found] * 3) for key, found in measured.items()])
    bars = bench.wires_report.bars(table)
    assert [(bar.value, bar.met) for bar in bars] == [(0.75, True), (1.25, False)]
    (grid,) = bench.wires_report.grids(table)
    assert [row[0] for row in grid.rows] == [key[0] for key in measured if key[1] == "gyre"]
    assert grid.rows[1][1:] == ["20,000", "2.00", "100.0", "2.00", "0.75", "0.00", "10.00", "5.00"]
    assert len(grid.show()) == len(grid.markdown()) - 2 == len(grid.rows) + 2


@pytest.mark.slow
def test_every_wire_is_answered_and_recorded() -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--wires", "--json", "--only", "20 KB streamed"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=100)
    report = json.loads(done.stdout)
    assert {row["cell"] for row in report["figures"]} == {
        f"20 KB streamed, {wire}" for wire in ("chat", "messages", "responses")
    }
    assert not [remark for remark in report["remarks"] if remark.startswith("FAILED")]
    assert [bar["met"] for bar in report["bars"] if bar["name"].startswith("calls recorded")] == [True]
