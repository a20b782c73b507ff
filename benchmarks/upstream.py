"""An engine that costs next to nothing: vLLM's field names, answers cut from rendered buffers.

No JSON is parsed. What to answer stands in a field `user`, which `benchmarks.bodies` puts near the end
of every body: "<start> <prompt tokens> <output tokens> <gap us> <delay ms> <tool calls>" (positions as in
`benchmarks.material`). Ids and log-probabilities come when asked for. Tool calls are the last tokens of an
answer.

Streams send one event per token, each in a write of its own; with a gap the content of an event is
`@<monotonic ns>@`, from which a client on the same machine reads how long it was under way. Tool calls
have none, since they must come back as they were.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import cast

import uvloop

from benchmarks.material import (
    BYTES_PER_TOKEN,
    CALL_TOKENS,
    TOKENS,
    argument,
    call_id,
    logprob_index,
    make_ids,
    make_logprobs,
    make_text,
)

WINDOW = 1024
"""All fields other than the messages and tools stand within so many bytes of either end."""

MODELS = (
    b'{"object":"list","data":[{"id":"bench","object":"model","owned_by":"vllm","max_model_len":1000000}]}'
)
PLAIN = b'{"id":"chatcmpl-%d","object":"chat.completion","created":1700000000,"model":"bench","choices":[{'
CHUNK = b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
USAGE = b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
CALL = b'"id":"%b","type":"function","function":{"name":"tool_0","arguments":"%b"}'
ARGUMENTS_START, ARGUMENTS_END = rb"{\"path\": \"", rb"\"}"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


class Material:
    """Everything rendered before the first request."""

    def __init__(self) -> None:
        self.ids = make_ids()
        self.logprobs = make_logprobs()
        self.text = make_text()

    def content(self, position: int, count: int) -> bytes:
        return self.text[position * BYTES_PER_TOKEN : (position + count) * BYTES_PER_TOKEN]

    def call(self, position: int) -> bytes:
        """The tool call whose first token is at `position`, whole."""
        arguments = ARGUMENTS_START + argument(self.text, position) + ARGUMENTS_END
        return b"{%b}" % (CALL % (call_id(position), arguments))

    def token_fields(self, wanted: Wanted, position: int, count: int) -> bytes:
        """The part of a choice that speaks of tokens."""
        entries = b"null"
        if wanted.logprobs:
            entries = b'{"content":[%b]}' % self.logprobs.cut(logprob_index(position), count)
        ids = b',"token_ids":[%b]' % self.ids.cut(position, count) if wanted.ids else b""
        return b'"logprobs":%b%b' % (entries, ids)


class Wanted:
    """What a request asks for, read from the two ends of its body."""

    def __init__(self, body: bytes, number: int) -> None:
        ends = body if len(body) < 2 * WINDOW else body[:WINDOW] + body[-WINDOW:]
        at = ends.index(b'"user":"') + 8
        script = ends[at : ends.index(b'"', at)].split()
        self.start, self.prompt, self.output, self.gap_us, self.delay_ms, self.calls = map(int, script)
        if self.start + self.prompt + self.output > TOKENS:
            raise ValueError("the prompt is longer than the material")
        self.number = number
        self.ids = b'"return_token_ids":true' in ends
        self.logprobs = b'"logprobs":true' in ends
        self.stream = b'"stream":true' in ends
        self.usage = b'"include_usage":true' in ends
        self.position = self.start + self.prompt
        self.said = self.output - self.calls * CALL_TOKENS
        """Tokens of text; the calls follow."""
        self.reason = b"tool_calls" if self.calls else b"stop"

    @property
    def usage_field(self) -> bytes:
        return USAGE % (self.prompt, self.output, self.prompt + self.output)


def plain_answer(material: Material, wanted: Wanted) -> bytes:
    prompt_ids = b""
    if wanted.ids:
        prompt_ids = b'"prompt_token_ids":[%b],' % material.ids.cut(wanted.start, wanted.prompt)
    body = b"".join(
        (
            PLAIN % wanted.number,
            b'"index":0,"message":{"role":"assistant","content":"',
            material.content(wanted.position, wanted.said),
            b'"%b},' % plain_calls(material, wanted),
            material.token_fields(wanted, wanted.position, wanted.output),
            b',"finish_reason":"%b"}],' % wanted.reason,
            prompt_ids,
            wanted.usage_field,
            b"}",
        )
    )
    return HEAD % len(body) + body


def plain_calls(material: Material, wanted: Wanted) -> bytes:
    first = wanted.position + wanted.said
    calls = [material.call(first + number * CALL_TOKENS) for number in range(wanted.calls)]
    return b',"tool_calls":[%b]' % b",".join(calls) if calls else b""


def event(material: Material, wanted: Wanted, index: int) -> bytes:
    """Event number `index`: the role, then one token each, then the end (several events, one write)."""
    chunk = CHUNK % wanted.number
    if index == 0:
        opening = b'%b"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        prompt_ids = b""
        if wanted.ids:
            prompt_ids = b',"prompt_token_ids":[%b]' % material.ids.cut(wanted.start, wanted.prompt)
        return framed(opening % chunk + b'"finish_reason":null}]%b}\n\n' % prompt_ids)
    position = wanted.position + index - 1
    if index <= wanted.output:
        fields = material.token_fields(wanted, position, 1)
        token = b'%b"choices":[{"index":0,"delta":{%b},%b,"finish_reason":null}]}\n\n'
        return framed(token % (chunk, delta(material, wanted, index - 1), fields))
    ending = b'%b"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"%b"}]}\n\n'
    last = ending % (chunk, wanted.reason)
    usage = framed(b'%b"choices":[],%b}\n\n' % (chunk, wanted.usage_field)) if wanted.usage else b""
    return framed(last) + usage + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def delta(material: Material, wanted: Wanted, token: int) -> bytes:
    """What token number `token` of an answer says."""
    position = wanted.position + token
    if token >= wanted.said:
        number, part = divmod(token - wanted.said, CALL_TOKENS)
        return b'"tool_calls":[{"index":%d,%b}]' % (number, call_part(material, position, part))
    content = b"@%d@" % time.monotonic_ns() if wanted.gap_us else material.content(position, 1)
    return b'"content":"%b"' % content


def call_part(material: Material, position: int, part: int) -> bytes:
    """Token number `part` of a tool call."""
    if part == 0:
        return CALL % (call_id(position), ARGUMENTS_START)
    text = ARGUMENTS_END if part == CALL_TOKENS - 1 else material.content(position, 1)
    return b'"function":{"arguments":"%b"}' % text


def framed(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


class Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as much of it as a proxy's client uses."""

    served = 0

    def __init__(self, material: Material) -> None:
        self.material = material
        self.loop = asyncio.get_running_loop()
        self.parts: list[bytes] = []
        self.missing = 0
        """Body bytes still to come; 0 while a head is awaited."""
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=64 << 20)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def data_received(self, data: bytes) -> None:
        if not self.missing:
            data = self.take_head(data)
            if not self.missing:
                return
        self.parts.append(data)
        self.missing -= len(data)
        if self.missing <= 0:
            self.missing = 0
            body = b"".join(self.parts) if len(self.parts) > 1 else self.parts[0]
            self.parts = []
            self.answer(body)

    def take_head(self, data: bytes) -> bytes:
        data = b"".join([*self.parts, data])
        end = data.find(b"\r\n\r\n")
        if end < 0:
            self.parts = [data]
            return b""
        self.parts = []
        head = data[:end].lower()
        if head.startswith(b"get"):
            self.transport.write(HEAD % len(MODELS) + MODELS)
            return b""
        at = head.index(b"content-length:") + 15
        self.missing = int(head[at:].split(b"\r\n", 1)[0])
        return data[end + 4 :]

    def answer(self, body: bytes) -> None:
        Connection.served += 1
        wanted = Wanted(body, Connection.served)
        send = self.begin_stream if wanted.stream else self.send_plain
        if wanted.delay_ms:
            self.loop.call_later(wanted.delay_ms / 1e3, send, wanted)
        else:
            send(wanted)

    def send_plain(self, wanted: Wanted) -> None:
        if not self.closed:
            self.transport.write(plain_answer(self.material, wanted))

    def begin_stream(self, wanted: Wanted) -> None:
        self.transport.write(STREAM_HEAD)
        self.send_event(wanted, 0)

    def send_event(self, wanted: Wanted, index: int) -> None:
        if self.closed:
            return
        self.transport.write(event(self.material, wanted, index))
        if index > wanted.output:
            return
        if wanted.gap_us:
            self.loop.call_later(wanted.gap_us / 1e6, self.send_event, wanted, index + 1)
        else:
            self.loop.call_soon(self.send_event, wanted, index + 1)


async def serve(port: int) -> None:
    material = Material()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(material), "127.0.0.1", port, backlog=4096)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="A fast fake engine for benchmarks.")
    options.add_argument("--port", type=int, default=0)
    uvloop.run(serve(options.parse_args().port))
