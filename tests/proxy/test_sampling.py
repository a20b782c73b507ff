"""Sampling as it really was: pinned, asked for, or the engine's default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.calls import Sampling
from gyre.proxy.commands import PutExecution
from gyre.proxy.settings import Pin
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.reading import body_of
from tests.proxy.running import RunningProxy

PIN = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


def test_pinned_sampling_is_what_the_engine_gets_and_what_is_recorded(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"temperature": 0.2, "seed": 7, "min_p": 0.1, "stop": ["x"]}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, pin=PIN) as proxy:
        proxy.chat(**asked)
        sent = engine.calls[0].json
        rows = proxy.rows()
    assert {name: sent[name] for name in (*PIN, "min_p", "stop")} == {**PIN, "min_p": 0.1, "stop": ["x"]}
    assert sent["seed"] is None
    assert rows[0].sampling == Sampling(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.1)
    assert b'"temperature":0.2' in body_of(rows, rows[0])


def test_without_a_pin_the_request_is_recorded_as_it_was(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "temperature": 1,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "seed": 3,
    }
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(**asked)
        assert {name: engine.calls[0].json[name] for name in asked} == asked
        (row,) = proxy.rows()
    assert row.sampling == Sampling(**asked)


def put(proxy: RunningProxy, name: str, pin: Pin) -> None:
    async def work() -> None:
        proxy.worker.apply(PutExecution(name, pin=pin))

    proxy.run(work())


def test_an_execution_may_have_a_pin_of_its_own(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, pin=PIN) as proxy:
        put(proxy, "greedy", Pin(temperature=0.0))
        proxy.chat("greedy", top_p=0.5)
        proxy.chat("other", top_p=0.5)
        greedy, other = proxy.rows(2)
        assert [call.json["top_p"] for call in engine.calls] == [0.5, 1.0]
    assert (greedy.sampling, other.sampling) == (
        Sampling(temperature=0.0, top_p=0.5),
        Sampling(temperature=1.0, top_p=1.0, top_k=-1),
    )
    assert (greedy.logprob_quality, other.logprob_quality) == ("greedy", "sampled")


@pytest.mark.parametrize("stream", [False, True])
def test_llamacpps_own_defaults_are_the_effective_ones(tmp_path: Path, stream: bool) -> None:
    with FakeEngine(kind="llamacpp") as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(stream=stream, temperature=0.3)
        (row,) = proxy.rows()
    assert (row.sampling.temperature, row.sampling.top_k, row.sampling.min_p) == (0.3, 40, 0.05)
    assert row.logprob_quality == "raw"


@pytest.mark.parametrize(
    ("asked", "quality"),
    [
        ({"temperature": 1, "top_p": 1}, "sampled"),
        ({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}, "sampled"),
        ({"temperature": 0}, "greedy"),
        ({"temperature": 0.7, "top_p": 1}, "raw"),
        ({"temperature": 1, "top_p": 0.9}, "raw"),
        ({"temperature": 1, "top_p": 1, "top_k": 20}, "raw"),
        ({"temperature": 1, "top_p": 1, "presence_penalty": 0.1}, "raw"),
        ({"temperature": 1}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_logprobs_are_of_what_was_sampled_from_only_without_truncation(
    tmp_path: Path, asked: dict[str, Any], quality: str
) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(**asked)
        assert proxy.rows()[0].logprob_quality == quality


def test_without_logprobs_there_is_no_quality_of_them(tmp_path: Path) -> None:
    with FakeEngine(kind="text", script=Answer()) as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat(temperature=1, top_p=1)
        (row,) = proxy.rows()
    assert (row.logprob_quality, row.capture_quality, row.logprobs) == ("none", "none", None)
