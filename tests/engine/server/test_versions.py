"""Weights that change in mid-answer: every token's version is told, and each digest once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.server.rig import USER, Json, Running, run_engine

LONG: Json = {"max_tokens": 60, "ignore_eos": True, "return_token_ids": True, "stream": True}


def rename(engine: Running, version: str) -> None:
    engine.engine.call(lambda core: core.rename(version)).result()


def chunks_across_a_change(engine: Running, path: str, body: Json) -> list[Json]:
    """All chunks of a stream; after the first with a token the weights have another version."""
    chunks: list[Json] = []
    with engine.client.stream("POST", path, json=body) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunks.append(json.loads(line.removeprefix("data: ")))
            if sum(bool(chunk["choices"][0].get("token_ids")) for chunk in chunks) == 1:
                rename(engine, "8")
    return chunks


def spans_of(chunks: list[Json], index: int = 0) -> list[Any]:
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
    return [
        (span["version"], span["start"], span["end"])
        for choice in choices
        for span in choice.get("weight_versions", ())
    ]


def test_a_stream_tells_each_tokens_version_and_the_new_ones_digest() -> None:
    with run_engine() as engine:
        chunks = chunks_across_a_change(engine, "/v1/chat/completions", {"messages": USER, **LONG})
    spans = spans_of(chunks)
    assert [start for _, start, _ in spans] == [0, *(end for _, _, end in spans[:-1])]
    assert spans[-1][2] == 60
    versions = [version for version, _, _ in spans]
    assert set(versions) == {"7", "8"} and versions == sorted(versions)
    assert [chunk["metadata"]["weight_digests"] for chunk in chunks if "metadata" in chunk] == [
        {"7": "d7"},
        {"8": "d7"},
    ]


def test_a_choice_that_begins_later_begins_with_the_weights_of_then() -> None:
    with run_engine(slots=1) as engine:
        body = {"prompt": ["Once", "Then"], **LONG}
        chunks = chunks_across_a_change(engine, "/v1/completions", body)
    assert {version for version, _, _ in spans_of(chunks, 1)} == {"8"}
    told = [chunk["metadata"] for chunk in chunks if "metadata" in chunk]
    assert told[0]["weight_version"] == "7"
    assert [one["weight_digests"] for one in told] == [{"7": "d7"}, {"8": "d7"}]


def test_a_plain_answer_tells_all_of_its_versions() -> None:
    with run_engine() as engine:
        first = engine.chat(**LONG | {"stream": False, "seed": 1})
        rename(engine, "8")
        ids = first["choices"][0]["token_ids"][:30]
        spans = [{"version": "7", "start": 0, "end": 30}]
        said = engine.chat(
            **LONG | {"stream": False, "seed": 1}, output_token_ids=ids, output_weight_versions=spans
        )
    assert said["choices"][0]["weight_versions"] == [*spans, {"version": "8", "start": 30, "end": 60}]
    assert said["metadata"]["weight_digests"] == {"7": "d7", "8": "d7"}
    assert said["metadata"]["weight_version"] == "8"


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_said_of_weights_to_those_who_did_not_ask(stream: bool) -> None:
    with run_engine() as engine:
        body = {"messages": USER, "max_tokens": 4, "stream": stream}
        text = engine.post("/v1/chat/completions", body).text
    assert "weight" not in text and "metadata" not in text and "seed" not in text
