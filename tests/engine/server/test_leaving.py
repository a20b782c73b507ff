"""Clients that leave, and requests that are ended: nobody is sampled for in vain."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest

from tests.engine.server.rig import USER, Json, Running, events_of, run_engine

CHAT = "/v1/chat/completions"
LONG: Json = {"messages": USER, "max_tokens": 3000, "ignore_eos": True}


@contextmanager
def connection(engine: Running, body: Json) -> Iterator[socket.socket]:
    """A client that has sent its request and can leave at any time."""
    data = orjson.dumps(body)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2])), timeout=20) as client:
        client.sendall(head.encode() + data)
        yield client


def wait_until_running(engine: Running) -> None:
    deadline = time.monotonic() + 20
    while not engine.engine.stats.running:
        assert time.monotonic() < deadline, "it never began"
        time.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_what_a_client_left_is_aborted(stream: bool, n: int) -> None:
    with run_engine() as engine:
        with connection(engine, LONG | {"stream": stream, "n": n}):
            wait_until_running(engine)
        engine.wait_until_idle()
        assert engine.engine.stats.generated_tokens < n * 3000
        assert "gyre_engine_clients_left_total 1.0" in engine.client.get("/metrics").text


def test_a_client_that_leaves_before_its_turn_is_forgotten() -> None:
    with run_engine(slots=1) as engine, connection(engine, LONG | {"stream": True}):
        wait_until_running(engine)
        with connection(engine, LONG | {"stream": True}) as waiting:
            assert waiting.recv(100).startswith(b"HTTP/1.1 200")
            assert engine.engine.stats.waiting == 1
        deadline = time.monotonic() + 20
        while engine.engine.stats.waiting:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert engine.engine.stats.running == 1


def test_a_client_that_leaves_disturbs_no_other() -> None:
    with run_engine() as engine:
        alone = engine.chat(seed=1, max_tokens=50, return_token_ids=True, ignore_eos=True)
        answers: list[Json] = []
        ask = {"seed": 1, "max_tokens": 50, "return_token_ids": True, "ignore_eos": True}
        other = threading.Thread(target=lambda: answers.append(engine.chat(**ask)))
        with connection(engine, LONG | {"stream": True, "n": 2}):
            wait_until_running(engine)
            other.start()
        other.join()
        assert answers[0]["choices"][0]["token_ids"] == alone["choices"][0]["token_ids"]


def test_half_a_request_is_no_request() -> None:
    with run_engine() as engine:
        with socket.create_connection(("127.0.0.1", int(engine.url.rpartition(":")[2]))) as client:
            client.sendall(
                f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n".encode() + b"{"
            )
        assert engine.chat()["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_the_engine_ends_say_so(stream: bool) -> None:
    with run_engine() as engine:

        def end_it() -> None:
            wait_until_running(engine)
            engine.engine.abort(["mine"])

        thread = threading.Thread(target=end_it)
        thread.start()
        answer = engine.post(CHAT, LONG | {"request_id": "mine", "stream": stream})
        thread.join()
        text = events_of(answer.text)[-2] if stream else answer.text
        assert orjson.loads(text)["choices"][0]["finish_reason"] == "abort"
