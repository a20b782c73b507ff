"""What the simulated agents say: executions whose every body extends the one before it.

Each execution tells its own story (text from its own place in the material), so that whatever a
recorder saves by deltas and deduplication is earned. An execution's messages are one buffer; call k
sends a prefix of it and a tail, so that nothing is built while the clock runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from benchmarks.cells import Cell
from benchmarks.material import BYTES_PER_TOKEN, TOKENS

SYSTEM = b'{"role":"system","content":"You are an agent. Use the tools, one step at a time."}'
SPREAD = 104_729
"""Tokens between the beginnings of executions, modulo what the material holds."""


@dataclass
class Execution:
    name: str
    start: int
    messages: bytearray = field(default_factory=bytearray)
    unique: int = 0
    """Bytes of distinct messages and tools."""
    ends: list[int] = field(default_factory=list)
    """Where the messages of call k end."""
    tails: list[bytes] = field(default_factory=list)
    events: list[tuple[int, ...]] = field(default_factory=list)
    """How many events the answer to call k may have, if it is a stream."""
    outputs: list[int] = field(default_factory=list)
    """Tokens of the answer to call k."""
    new_ids: int = 0
    """Prompt and output ids of the whole execution, each counted once."""
    path: bytes = b"/v1/chat/completions"
    head: bytes = b'{"messages":['

    def body(self, call: int) -> list[memoryview | bytes]:
        return [self.head, memoryview(self.messages)[: self.ends[call]], self.tails[call]]

    def size(self, call: int) -> int:
        return len(self.head) + self.ends[call] + len(self.tails[call])


def grow(cell: Cell, name: str, index: int, text: bytes) -> Execution:
    """Execution number `index` of a cell, all its calls."""
    longest = cell.last_bytes // BYTES_PER_TOKEN + cell.output + 4096
    execution = Execution(name, start=index * SPREAD % (TOKENS - longest))
    # Half the material away from the answers, so that no text is sent twice.
    reader = Reader(text, (execution.start * BYTES_PER_TOKEN + len(text) // 2) % len(text))
    tools = tool_list(cell.tools)
    add(execution, SYSTEM)
    execution.unique += len(tools)
    first = max(40, cell.first_bytes - len(SYSTEM) - len(tools) - 220)
    for part in range(0, first, 20_000):
        opening = b"[%b] " % name.encode() if part == 0 else b""
        add(execution, message(b"user", opening + reader.read(min(20_000, first - part))))
    for call in range(cell.calls_each):
        prompt = len(execution.messages) // BYTES_PER_TOKEN
        end_call(execution, cell, prompt, tools)
        position = (execution.start + prompt) * BYTES_PER_TOKEN
        said = text[position : position + cell.output * BYTES_PER_TOKEN]
        add(execution, message(b"assistant", said))
        result = b"step %d: %b" % (call, reader.read(max(8, cell.grow_bytes - len(said) - 100)))
        add(execution, message(b"user", result))
    return execution


class Reader:
    """Reads the material onwards from a place of its own, round its end if need be."""

    def __init__(self, text: bytes, at: int) -> None:
        self._text, self._at = text, at

    def read(self, size: int) -> bytes:
        if self._at + size > len(self._text):
            self._at = size % 4096
        self._at += size
        return self._text[self._at - size : self._at]


def message(role: bytes, content: bytes) -> bytes:
    return b'{"role":"%b","content":"%b"}' % (role, content)


def add(execution: Execution, said: bytes) -> None:
    execution.messages += b"," + said if execution.messages else said
    execution.unique += len(said)


def end_call(execution: Execution, cell: Cell, prompt: int, tools: bytes) -> None:
    script = script_of(cell, execution.start, prompt)
    offered = b',"tools":' + tools if tools else b""
    stream = b',"stream":true' if cell.stream else b""
    execution.ends.append(len(execution.messages))
    execution.tails.append(b'],"model":"bench"%b,"user":"%b"%b}' % (offered, script, stream))
    # The role, the tokens, the end, [DONE]; usage only where the proxy does not hide it.
    execution.events.append((cell.output + 3, cell.output + 4))
    execution.outputs.append(cell.output)
    execution.new_ids = prompt + cell.output


def script_of(cell: Cell, start: int, prompt: int) -> bytes:
    """What the engine shall do."""
    return b"%d %d %d %d %d 0" % (start, prompt, cell.output, cell.gap_ms * 1000, cell.delay_ms)


def tool_list(count: int) -> bytes:
    """The same in every call, as agents send them."""
    if not count:
        return b""
    return json.dumps([{"type": "function", "function": function} for function in functions(count)]).encode()


def functions(count: int) -> list[dict[str, Any]]:
    """`count` function definitions of about 400 bytes."""
    about = "Use this when the task needs it and the last result did not already say what is asked. " * 2
    properties = {name: {"type": "string", "description": name * 3} for name in ("path", "query")}
    parameters = {"type": "object", "properties": properties, "required": ["path"]}
    return [
        {"name": f"tool_{n}", "description": f"{n}: {about}", "parameters": parameters} for n in range(count)
    ]
