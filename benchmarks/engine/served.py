"""The same requests over HTTP: CPU time of the server's process, whatever it is."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import aiohttp

from benchmarks.engine.loads import SMOLLM2, Load, prompts_of, quick
from benchmarks.engine.report import LLAMACPP, OWN, PLAIN, PREFILL, STREAMED, Served
from benchmarks.processes import SYSTEM_CORE, Server, cpu_seconds

SLOTS = 16
CTX = 2048
VOCAB = {"tiny": 2048, SMOLLM2: 49_152}
FIELDS: dict[str, Any] = {
    "temperature": 1,
    "top_p": 1,
    "ignore_eos": True,
    # What gyre's proxy asks for with each call; llama.cpp knows `logprobs` only.
    "return_token_ids": True,
    "logprobs": 0,
}
LIMIT_S = 600
GENERATE = [Load(open=open, prompt=100, output=64, temperature=1) for open in (1, 4, 16)]
PROMPT = Load(open=4, prompt=1500, output=1, temperature=1)


def measure(model: str, engine: str, rounds: int, short: bool) -> list[Served]:
    """One server, all loads in every round; one before that does not count."""
    loads = [(kind, load) for load in GENERATE for kind in (PLAIN, STREAMED)] + [(PREFILL, PROMPT)]
    found: dict[tuple[str, Load], list[float]] = {}
    with Server(_command(model, engine), SYSTEM_CORE) as server:
        for number in range(-1, rounds):
            for place, (kind, load) in enumerate(loads):
                asked = quick(load) if short else load
                prompts = prompts_of(asked, VOCAB[model], 1 + place + (number + 1) * len(loads))
                took = asyncio.run(_load(server, model, kind, asked, prompts))
                if number >= 0:
                    found.setdefault((kind, asked), []).append(took)
    return [
        Served(model=model, engine=engine, kind=kind, load=load, cpu_s=seconds)
        for (kind, load), seconds in found.items()
    ]


def _command(model: str, engine: str) -> list[str]:
    runtime = {OWN: "transformers", LLAMACPP: "llamacpp"}[engine]
    options = ("--runtime", runtime, "--threads", "1", "--slots", f"{SLOTS}", "--ctx", f"{CTX}")
    return [sys.executable, "-m", "gyre.cli.main", "engine", "--model", model, *options, "--json"]


async def _load(server: Server, model: str, kind: str, load: Load, prompts: Sequence[Sequence[int]]) -> float:
    """CPU seconds that the server took."""
    timeout = aiohttp.ClientTimeout(total=LIMIT_S)
    async with aiohttp.ClientSession(server.url, timeout=timeout) as session:
        before = cpu_seconds(server.pid)
        asked = [_ask(session, model, kind, load, prompt) for prompt in prompts]
        counts = await asyncio.gather(*asked)
        took = cpu_seconds(server.pid) - before
    if counts != [load.output] * load.open:
        raise RuntimeError(f"{counts} tokens instead of {load.output}: {server.state()}")
    return took


async def _ask(
    session: aiohttp.ClientSession, model: str, kind: str, load: Load, prompt: Sequence[int]
) -> int:
    """How many tokens came."""
    body = FIELDS | {"model": model, "prompt": list(prompt), "max_tokens": load.output}
    if kind == STREAMED:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        said = await answer.read()
    if kind == STREAMED:
        lines = [line for line in said.splitlines() if line.startswith(b"data: {")]
        said = lines[-1].removeprefix(b"data: ")
    tokens: int = json.loads(said)["usage"]["completion_tokens"]
    return tokens
