"""SIGKILL at any moment: every call that a client saw answered is in the log, whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.engines.fake import FakeEngine
from tests.engines.script import Answer

OPEN_CALLS = 64
ANSWERS = 200
SLOW = Answer(text="word " * 12, gap=0.004, delay=0.01)


@contextmanager
def proxy_process(
    logs: Path, engine: FakeEngine, *options: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`gyre proxy` as a user starts it, in a process group of its own."""
    command = [sys.executable, "-m", "gyre.cli.main", "proxy", "--upstream", engine.url, "--logs", str(logs)]
    process = subprocess.Popen(
        [*command, "--port", "0", "--json", *options], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"], process
    finally:
        kill_group(process)
        process.wait(10)
        assert process.stdout
        process.stdout.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def answers_until(url: str, kill: Callable[[], None], moment: Callable[[], bool]) -> list[str]:
    """Keep 64 calls open, `kill` at the `moment` after 200 answers; returns the answered call ids."""
    answered: list[str] = []

    async def agent(session: aiohttp.ClientSession, number: int) -> None:
        body: dict[str, Any] = {"model": "fake", "stream": number % 2 == 0, "messages": []}
        while True:
            body["messages"].append(
                {"role": "user", "content": f"agent {number} turn {len(body['messages'])}"}
            )
            async with session.post(f"{url}/x/e{number}/v1/chat/completions", json=body) as response:
                text = await response.text()
                assert text.endswith("data: [DONE]\n\n" if body["stream"] else "}")
                answered.append(response.headers["x-gyre-call-id"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        agents = asyncio.gather(*(agent(session, n) for n in range(OPEN_CALLS)), return_exceptions=True)
        while len(answered) < ANSWERS or not moment():
            await asyncio.sleep(0)
        kill()
        ends = await agents
    assert all(isinstance(end, aiohttp.ClientError | OSError) for end in ends), ends
    return answered


def check(logs: Path, answered: list[str], tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "answered.txt"
    file.write_text("\n".join(answered))
    command = [
        sys.executable,
        "-m",
        "gyre.cli.main",
        "log",
        "check",
        str(logs),
        "--answered",
        str(file),
        "--json",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def assert_nothing_lost(logs: Path, engine: FakeEngine, answered: list[str], tmp_path: Path) -> None:
    """Answered calls are whole, and every call that reached the engine has its row."""
    assert len(answered) >= ANSWERS
    counts = check(logs, answered, tmp_path)["counts"]
    assert counts["answered_complete"] == counts["answered"] == len(answered)
    assert counts["interrupted"] > 0
    assert counts["calls"] >= sum(request.method == "POST" for request in engine.requests)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_every_answered_call_survives_a_kill(tmp_path: Path, workers: str) -> None:
    logs = tmp_path / "logs"
    with FakeEngine(script=SLOW) as engine:
        with proxy_process(logs, engine, "--workers", workers) as (url, process):
            answered = asyncio.run(answers_until(url, lambda: kill_group(process), lambda: True))
        assert_nothing_lost(logs, engine, answered, tmp_path)


def test_every_answered_call_survives_a_kill_during_a_seal(tmp_path: Path) -> None:
    logs, config = tmp_path / "logs", tmp_path / "gyre.toml"
    config.write_text("[log]\nrotate_bytes = 1\nsync_s = 0.05\n")
    with FakeEngine(script=SLOW) as engine:
        with proxy_process(logs, engine, "--config", str(config)) as (url, process):

            def sealing() -> bool:
                return any((logs / "messages").glob(".*.tmp")) or any((logs / "calls").glob(".*.tmp"))

            answered = asyncio.run(answers_until(url, lambda: kill_group(process), sealing))
        assert_nothing_lost(logs, engine, answered, tmp_path)
