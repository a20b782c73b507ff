"""`gyre engine` as an engine of a run: real processes, weights that change under them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.elastic.engine.settings import Dtype
from gyre.elastic.engine.weights.digest import digest_of_folder
from gyre.elastic.engines.embedded import Embedded
from gyre.elastic.engines.logprobs import check_logprobs
from gyre.elastic.engines.options import EngineOptions
from gyre.proxy.errors import EngineError
from tests.elastic.models import folder, logprobs
from tests.proxy.processes import wait_for

PROMPT = [5, 17, 300, 42, 1999, 8, 8, 640]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    made = embedded(tmp_path_factory.mktemp("engine"))
    try:
        made.start(folder(0), "3")
        yield made
    finally:
        made.stop()


def embedded(output: Path, **options: object) -> Embedded:
    made = EngineOptions(model="policy", threads=1, **options)  # type: ignore[arg-type]
    return Embedded("engine-0", made, output)


def ask(engine: Embedded, method: str, route: str, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {engine.key}"}
    return httpx.request(method, engine.url + route, headers=headers, **({"timeout": 30} | more))


def answer(engine: Embedded) -> dict[str, object]:
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": 4, "return_token_ids": True}
    said = ask(engine, "POST", "/v1/completions", json=body).raise_for_status().json()
    choice: dict[str, object] = said["choices"][0]
    return choice


def test_it_serves_what_it_was_given_under_the_name_it_was_given(engine: Embedded) -> None:
    engine.publish(folder(0), "3")
    told = engine.weights()
    assert (told.version, told.digest) == ("3", digest_of_folder(folder(0), Dtype.FP32))
    assert check_logprobs(engine, "policy", PROMPT, logprobs(0, PROMPT)) < 1e-4
    listed = ask(engine, "GET", "/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["policy"]


def test_it_takes_up_weights_while_it_runs(engine: Embedded) -> None:
    before = engine.child.pid
    engine.publish(folder(1), "4")
    assert engine.child.pid == before
    assert answer(engine)["weight_versions"] == [{"version": "4", "start": 0, "end": 4}]
    assert engine.weights().digest == digest_of_folder(folder(1), Dtype.FP32)
    assert check_logprobs(engine, "policy", PROMPT, logprobs(1, PROMPT)) < 1e-4


def test_other_weights_than_claimed_are_told_by_their_log_probabilities(engine: Embedded) -> None:
    engine.publish(folder(1), "4")
    with pytest.raises(EngineError, match="`engine-0` serves other weights than it claims") as caught:
        check_logprobs(engine, "policy", PROMPT, logprobs(2, PROMPT))
    assert "nats" in caught.value.message and caught.value.hint


def test_a_pause_holds_what_arrives(engine: Embedded) -> None:
    engine.pause()
    with pytest.raises(httpx.ReadTimeout):
        ask(engine, "POST", "/v1/completions", json={"prompt": PROMPT}, timeout=0.3)
    engine.resume()
    assert answer(engine)["token_ids"]


def test_weights_of_another_version_of_the_same_name_are_refused_by_name(engine: Embedded) -> None:
    engine.publish(folder(0), "5")
    with pytest.raises(EngineError) as caught:
        engine.publish(folder(2), "5")
    assert "answers 409" in caught.value.message and "/update_weights" in caught.value.message
    assert "version `5`" in caught.value.message


def test_killed_it_comes_back_where_it_was_with_the_weights_it_is_told(engine: Embedded) -> None:
    assert engine.alive() and engine.child.pid
    os.kill(engine.child.pid, signal.SIGKILL)
    wait_for(lambda: not engine.alive())
    url, said = engine.url, engine.child.output
    with pytest.raises(EngineError, match="is not reached"):
        engine.weights()
    engine.start(folder(1), "1")
    assert engine.url == url
    assert check_logprobs(engine, "policy", PROMPT, logprobs(1, PROMPT)) < 1e-4
    assert answer(engine)["weight_versions"] == [{"version": "1", "start": 0, "end": 4}]
    assert said.exists() and engine.child.output != said


@pytest.mark.slow
def test_a_folder_that_is_no_model_is_said_in_the_engines_own_words(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    with pytest.raises(EngineError) as caught:
        embedded(tmp_path).start(tmp_path / "nothing", "0")
    assert "`engine-0` ended before it answered" in caught.value.message
    assert "has no config.json" in caught.value.message
    assert "give a Hugging Face folder" in caught.value.hint and "engine-0.txt" in caught.value.hint


@pytest.mark.slow
def test_a_port_that_somebody_took_is_named(tmp_path: Path) -> None:
    engine = embedded(tmp_path)
    port = int(engine.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(EngineError) as caught:
        # Somebody answers there, though not as an engine does: only its own end tells.
        engine.start(folder(0), "0")
    assert f"cannot listen on 127.0.0.1:{port}" in caught.value.message
    engine.stop()
