"""Simulated agents: raw HTTP/1.1 connections that send prepared bodies and time what comes back.

Run by `benchmarks.run` as a process of its own, once per cell and system; prints one JSON line.
The protocol is bare, so that the client's own cost stays small against what it measures. It takes
the CPU time of the system under test itself, right around the measured calls.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.bodies import Execution, grow
from benchmarks.cells import Cell
from benchmarks.processes import cpu_seconds, settled_cpu_seconds
from benchmarks.wires.story import grow as grow_with_tools

LIMIT_S = 240
"""The longest that a cell may take."""
_STAMP = re.compile(rb"@(\d+)@")


@dataclass(kw_only=True)
class Result:
    """One cell against one system."""

    calls: int = 0
    answered: int = 0
    """With the warm-up."""
    failures: list[str] = field(default_factory=list)
    wall_s: float = 0
    cpu_s: float = 0
    """Of the system under test."""
    upstream_cpu_s: float = 0
    events: int = 0
    total_ms: list[float] = field(default_factory=list)
    first_byte_ms: list[float] = field(default_factory=list)
    transit_ms: list[float] = field(default_factory=list)
    request_bytes: int = 0
    answer_bytes: int = 0
    unique_bytes: int = 0
    new_ids: int = 0


class Connection(asyncio.Protocol):
    """One connection, one call at a time: `ask`, await, read the figures off."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost = False
        self.answer: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=64 << 20)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        if self.answer and not self.answer.done():
            self.answer.set_exception(ConnectionError(f"connection lost: {exc}"))

    async def ask(self, parts: list[memoryview | bytes], *, stream: bool) -> None:
        self.stream, self.head, self.in_head = stream, b"", True
        self.left = self.first_ns = self.status = self.events = self.size = self.newest = 0
        self.chunked = self.last_chunk = False
        self.rest = self.tail = b""
        self.stamps: list[tuple[int, int]] = []
        self.answer = self.loop.create_future()
        self.start_ns = time.monotonic_ns()
        self.transport.writelines(parts)
        await self.answer
        self.end_ns = time.monotonic_ns()

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        if self.in_head:
            data = self.take_head(data)
            if self.in_head:
                return
        payload = self.unframe(data) if self.chunked else data
        if not self.chunked:
            self.left -= len(data)
        if payload:
            self.first_ns = self.first_ns or now
            self.size += len(payload)
            self.look_at(payload, now)
        if self.left <= 0 and (self.last_chunk or not self.chunked) and self.answer:
            self.answer.set_result(None)

    def take_head(self, data: bytes) -> bytes:
        self.head += data
        end = self.head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        head, data = self.head[:end].lower(), self.head[end + 4 :]
        self.in_head, self.status = False, int(head[9:12])
        at = head.find(b"content-length:")
        self.chunked = at < 0
        self.left = 0 if self.chunked else int(head[at + 15 :].split(b"\r\n", 1)[0])
        return data

    def unframe(self, data: bytes) -> bytes:
        """The payload in `data` of a chunked body; `left` counts a chunk and the line end after it."""
        data, at, out = self.rest + data, 0, []
        while at < len(data):
            if self.left:
                size = min(self.left, len(data) - at)
                out.append(data[at : at + min(size, max(0, self.left - 2))])
                self.left -= size
                at += size
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                self.left = int(data[at:end], 16) + 2
                self.last_chunk = self.left == 2
                at = end + 2
        self.rest = data[at:]
        return b"".join(out)

    def look_at(self, payload: bytes, now: int) -> None:
        if not self.stream:
            self.tail = payload[-1:]
            return
        text = self.tail + payload
        self.events += text.count(b"data: ") - self.tail.count(b"data: ")
        for stamp in _STAMP.finditer(text):
            # Responses says all text once more in the end: only what is new has been under way.
            if (sent := int(stamp[1])) > self.newest:
                self.newest = sent
                self.stamps.append((sent, now))
        keep = text.rfind(b"@", len(text) - 24) if len(text) > 24 else 0
        self.tail = text[-16:] if keep < 0 else text[max(keep, len(text) - 24) :]

    def fault(self, expected: tuple[int, ...]) -> str:
        """Why the answer does not count, or nothing; `expected`: how many events a stream may have."""
        if self.status != 200:
            return f"status {self.status}"
        if not self.stream:
            return "" if self.tail == b"}" else "answer is no object"
        return "" if self.events in expected else f"{self.events} events, not {expected}"


class Agent:
    """Calls one after the other, through its executions."""

    def __init__(self, cell: Cell, url: str, executions: list[Execution]) -> None:
        self.cell, self.executions = cell, executions
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.connection: Connection | None = None
        self.done = 0

    async def call(self, result: Result) -> None:
        number, step = divmod(self.done, self.cell.calls_each)
        execution = self.executions[number]
        self.done += 1
        if self.connection is None or self.connection.lost:
            loop = asyncio.get_running_loop()
            _, self.connection = await loop.create_connection(Connection, self.host, self.port)
        head = (
            b"POST /x/%b%b HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer none\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
        ) % (execution.name.encode(), execution.path, execution.size(step))
        try:
            await self.connection.ask([head, *execution.body(step)], stream=self.cell.stream)
        except ConnectionError as error:
            result.failures.append(str(error))
            return
        result.request_bytes += execution.size(step)
        self.count(result, self.connection, execution.events[step], execution.outputs[step])

    def count(self, result: Result, answer: Connection, expected: tuple[int, ...], output: int) -> None:
        fault = answer.fault(expected)
        if fault:
            result.failures.append(fault)
            return
        result.answered += 1
        result.calls += 1
        result.answer_bytes += answer.size
        result.total_ms.append(round((answer.end_ns - answer.start_ns) / 1e6, 4))
        result.first_byte_ms.append(round((answer.first_ns - answer.start_ns) / 1e6, 4))
        result.events += output if self.cell.stream else 0
        result.transit_ms += [round((seen - sent) / 1e6, 4) for sent, seen in answer.stamps]

    async def run(self, calls: int, result: Result, after_s: float = 0) -> None:
        await asyncio.sleep(after_s)
        for _ in range(calls):
            await self.call(result)


def prepare(cell: Cell, tag: str, text: bytes) -> list[list[Execution]]:
    """The executions of each agent: enough for the warm-up and the measured calls."""
    grown = grow_with_tools if cell.wire else grow
    each = -(-(cell.warmup + cell.calls_per_agent) // cell.calls_each)
    return [
        [grown(cell, f"{tag}-{agent}-{number}", agent * each + number, text) for number in range(each)]
        for agent in range(cell.open)
    ]


async def measure(
    cell: Cell, executions: list[list[Execution]], url: str, system: int, upstream: int
) -> Result:
    agents = [Agent(cell, url, own) for own in executions]
    warm, result = Result(), Result()
    await asyncio.gather(*(agent.run(cell.warmup, warm) for agent in agents))
    result.failures += warm.failures
    result.answered = warm.answered
    cpu, upstream_cpu = settled_cpu_seconds(system), cpu_seconds(upstream)
    started = time.monotonic()
    starts = [number * cell.apart_ms / 1e3 for number in range(len(agents))]
    await asyncio.gather(
        *(agent.run(cell.calls_per_agent, result, at) for agent, at in zip(agents, starts, strict=True))
    )
    result.wall_s = time.monotonic() - started
    result.cpu_s = settled_cpu_seconds(system) - cpu
    result.upstream_cpu_s = cpu_seconds(upstream) - upstream_cpu
    result.unique_bytes = sum(execution.unique for own in executions for execution in own)
    result.new_ids = sum(execution.new_ids for own in executions for execution in own)
    return result


async def limited(
    cell: Cell, executions: list[list[Execution]], url: str, system: int, upstream: int
) -> Result:
    async with asyncio.timeout(LIMIT_S):
        return await measure(cell, executions, url, system, upstream)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Simulated agents.")
    options.add_argument("--cell", required=True, help="the fields of a cell, as JSON")
    options.add_argument("--url", required=True)
    options.add_argument("--tag", required=True, help="prefix of the executions' names")
    options.add_argument("--text", type=Path, required=True, help="the material's text, rendered once")
    options.add_argument("--system-pid", type=int, required=True)
    options.add_argument("--upstream-pid", type=int, required=True)
    chosen = options.parse_args()
    load = Cell(**json.loads(chosen.cell))
    told = prepare(load, chosen.tag, chosen.text.read_bytes())
    found = uvloop.run(limited(load, told, chosen.url, chosen.system_pid, chosen.upstream_pid))
    print(json.dumps(asdict(found)))
