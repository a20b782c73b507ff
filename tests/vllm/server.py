"""A running vLLM with the small model, in a process group of its own.

with VllmServer(tmp_path) as vllm:
    vllm.tokenize(messages=[{"role": "user", "content": "hi"}])
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from tests.vllm.install import HERE, environment, model, vllm

NAME = "smollm2"
_START_S = 400
_FLAGS = (
    *("--served-model-name", NAME, "--host", "127.0.0.1", "--max-model-len", "4096", "--enforce-eager"),
    *("--chat-template", str(HERE / "chatml.jinja"), "--enable-prompt-tokens-details"),
    # The routes that only render.
    "--enable-scale-out",
    # A small model calls no tool by itself: of a required call the grammar leaves it nothing but the values.
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--tool-strict-level", "parameter"),
    # Only a request with an effort thinks; what it writes is reasoning until its budget is spent.
    *("--reasoning-parser", "qwen3", "--default-chat-template-kwargs", '{"enable_thinking": false}'),
    "--reasoning-config",
    '{"reasoning_start_str": "<|im_start|>assistant\\n", "reasoning_end_str": "</think>"}',
)


class VllmServer:
    """What it says lies in `folder/vllm.txt`."""

    def __init__(self, folder: Path) -> None:
        self._said = folder / "vllm.txt"
        self._folder = folder
        self.url = ""
        self.started_s = 0.0
        self._process: subprocess.Popen[bytes]

    def render(self, route: str, body: dict[str, Any]) -> list[int]:
        """The prompt ids of a client's own body, as vLLM itself reads that wire."""
        ids: list[int] = self._ask(f"{route}/render", body)["token_ids"]
        return ids

    def tokenize(self, **body: Any) -> list[int]:
        ids: list[int] = self._ask("/tokenize", {"model": NAME, **body})["tokens"]
        return ids

    def text(self, ids: list[int]) -> str:
        return str(self._ask("/detokenize", {"model": NAME, "tokens": ids})["prompt"])

    def refuses(self, route: str, body: dict[str, Any]) -> str:
        """What vLLM answers to a body that it does not take."""
        answer = httpx.post(f"{self.url}{route}/render", json=body, timeout=60)
        assert answer.status_code == 400, answer.text
        return answer.text

    def _ask(self, route: str, body: dict[str, Any]) -> Any:
        answer = httpx.post(self.url + route, json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def __enter__(self) -> VllmServer:
        python = vllm()
        command = [str(python.with_name("vllm")), "serve", str(model(python)), *_FLAGS]
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [*command, "--port", str(port)],
                cwd=self._folder,
                env=environment(VLLM_CACHE_ROOT=str(self._folder / "cache")),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def _wait(self) -> None:
        begun = time.monotonic()
        while not self._healthy():
            assert self._process.poll() is None, f"vLLM ended:\n{self._said.read_text()[-4000:]}"
            assert time.monotonic() < begun + _START_S, f"no vLLM yet:\n{self._said.read_text()[-4000:]}"
            time.sleep(0.2)
        self.started_s = time.monotonic() - begun

    def _healthy(self) -> bool:
        try:
            return httpx.get(self.url + "/health", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def _end(self) -> None:
        """Asked to stop it clears its shared memory away; its workers are in its group."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
