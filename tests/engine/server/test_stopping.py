"""Servers that stop: nothing that is cut looks complete, and nobody waits for a step."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from tests.engine.server.rig import USER, Json, run_engine

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LONG: Json = {"messages": USER, "max_tokens": 3000, "ignore_eos": True}
GYRE = str(Path(sys.executable).with_name("gyre"))


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """That it stops is no fault that a log would have to tell."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelname != "INFO"] == []


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """They outlive the server."""
    with ExitStack() as stack:
        yield stack


@contextmanager
def sent(url: str, path: str, body: Json, *, missing: int = 0) -> Iterator[socket.socket]:
    """A client whose request, but for its last `missing` bytes, the server has read."""
    data = orjson.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as client:
        client.sendall(head.encode() + data[: len(data) - missing])
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        yield client


def received(client: socket.socket) -> bytes:
    """Up to the end of the connection."""
    with client.makefile("rb") as answer:
        return answer.read()


def is_refusal(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 503") and b'"code":"stopping"' in answer


def is_cut(answer: bytes) -> bool:
    return answer.startswith(b"HTTP/1.1 200") and b"chunked" in answer and not answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.usefixtures("silence")
def test_a_stream_that_is_cut_looks_as_if_the_process_had_died(clients: ExitStack, n: int) -> None:
    with run_engine() as engine:
        ask = LONG | {"stream": True, "n": n}
        answer = clients.enter_context(httpx.stream("POST", engine.url + CHAT, json=ask, timeout=60))
        chunks = answer.iter_raw()
        assert b"data: " in next(chunks)
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        list(chunks)


@pytest.mark.usefixtures("silence")
def test_a_plain_answer_that_has_not_begun_is_a_refusal(clients: ExitStack) -> None:
    with run_engine() as engine:
        client = clients.enter_context(sent(engine.url, CHAT, LONG))
    assert is_refusal(received(client))


@pytest.mark.usefixtures("silence")
def test_a_request_that_is_still_being_sent_is_refused(clients: ExitStack) -> None:
    with run_engine() as engine:
        client = clients.enter_context(sent(engine.url, CHAT, LONG, missing=1))
    assert is_refusal(received(client))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, LONG),
        (CHAT, LONG | {"stream": True}),
        (COMPLETIONS, {"prompt": ["a", "b"]}),
        ("/pause", {}),
        ("/kv/export", {"token_ids": [1, 2, 3]}),
    ],
)
@pytest.mark.usefixtures("silence")
def test_who_waits_for_the_step_in_progress_is_refused_before_its_end(
    clients: ExitStack, path: str, body: Json
) -> None:
    over = threading.Event()
    pool = clients.enter_context(ThreadPoolExecutor())
    with run_engine() as engine:
        step = engine.engine.call(lambda _: over.wait(30))
        client = clients.enter_context(sent(engine.url, path, body))
        answer: Future[bytes] = pool.submit(received, client)
        answer.add_done_callback(lambda _: over.set())
    assert is_refusal(answer.result())
    assert step.result(), "it waited for the step"


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_a_signal_ends_the_process_while_a_long_prompt_is_computed(number: signal.Signals) -> None:
    command = [GYRE, "engine", "--json", "--model", "tiny", "--threads", "1"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ExitStack() as clients,
    ):
        clients.callback(process.kill)
        assert process.stdout and process.stderr
        url = json.loads(process.stdout.readline())["url"]
        long: Json = {"prompt": [5, 6, 7, 8] * 25_000, "max_tokens": 9}
        asked = [long | {"stream": True}, long, *[{"prompt": [9, 9], "stream": True}] * 2, {"prompt": [9, 9]}]
        sockets = [clients.enter_context(sent(url, COMPLETIONS, ask)) for ask in asked]
        process.send_signal(number)
        answers = [received(client) for client in sockets]
        assert all(is_cut(answer) or is_refusal(answer) for answer in answers), answers
        assert is_refusal(answers[1])
        assert process.wait(timeout=30) == 0
        assert "Traceback" not in (log := process.stderr.read()) and "Error" not in log, log
