"""The least a Python proxy can do: a bare ASGI application over an aiohttp client, recording nothing.

It asks the engine for the same fields as gyre (ids, log-probabilities, usage), so that both fetch
the same answers, and hands every byte on as it comes, ids included.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import uvicorn

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ASK = b',"logprobs":true,"return_token_ids":true}'
ASK_STREAM = b',"stream_options":{"include_usage":true}' + ASK


class PassThrough:
    def __init__(self, upstream: str) -> None:
        self.upstream = upstream

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.lifespan(receive, send)
        else:
            await self.relay(scope, receive, send)

    async def lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self.session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.session.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def relay(self, scope: Message, receive: Receive, send: Send) -> None:
        body = asking(await read_body(receive))
        headers = {"content-type": "application/json"}
        async with self.session.post(self.upstream + scope["path"], data=body, headers=headers) as answer:
            kept = (b"content-type", b"content-length")
            raw = [(name, value) for name, value in answer.raw_headers if name.lower() in kept]
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            async for part in answer.content.iter_any():
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})


async def read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def asking(body: bytes) -> bytes:
    """The body with the capture fields added before its closing brace."""
    return body[:-1] + (ASK_STREAM if body.endswith(b'"stream":true}') else ASK)


def main() -> None:
    options = argparse.ArgumentParser(description="A proxy that records nothing.")
    options.add_argument("--upstream", required=True)
    chosen = options.parse_args()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    config = uvicorn.Config(
        PassThrough(chosen.upstream), http="httptools", loop="uvloop", access_log=False, log_level="warning"
    )
    print(json.dumps({"url": f"http://127.0.0.1:{listener.getsockname()[1]}"}), flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
