"""Streams that go on in another engine over HTTP, from ids alone or with their KV."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gyre.elastic.engine.moving.conversation import decode, encode
from gyre.elastic.engine.request import Span
from tests.engine.weights.engines import engine_processes
from tests.engine.weights.moving import (
    CLOSE,
    PROMPT,
    SAMPLINGS,
    TOKENS,
    drained,
    killed,
    require_same,
    rest,
    undisturbed,
)
from tests.engine.weights.streams import Answer, Client, ask, connected, tiny_engine, until
from tests.engine.weights.versions import versions

Two = tuple[str, str]


@pytest.fixture
def two() -> Iterator[Two]:
    with tiny_engine() as one, tiny_engine() as other:
        yield one, other


async def clients(stack: AsyncExitStack, urls: Two) -> tuple[Client, Client]:
    one, other = [await stack.enter_async_context(connected(url)) for url in urls]
    return one, other


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_drained_stream_goes_on_with_its_kv(two: Two, sampling: str) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            whole = await undisturbed(target, SAMPLINGS[sampling])
            await target.post("/reset_prefix_cache")
            part, blob = await drained(source, SAMPLINGS[sampling])
            told = await target.import_kv(blob)
            assert told["tokens"] == len(part.all_ids) - 1
            before = await target.get("/load")
            answer = await rest(target, part, SAMPLINGS[sampling], told["kv_id"])
            require_same(answer, whole)
            # Only the new tokens were computed.
            after = await target.get("/load")
            assert after["computed_tokens"] - before["computed_tokens"] == TOKENS - len(part.ids)
            assert answer.cached == len(PROMPT)
            assert answer.kv_spans == [Span("0", 0, len(PROMPT) + TOKENS - 1)]

    asyncio.run(check())


def test_a_stream_goes_on_from_its_ids_alone(two: Two) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            whole = await undisturbed(source, SAMPLINGS["seeded"])
            part = replace(whole, ids=whole.ids[:30], done=False)
            for name in ("logprobs", "sampling_logprobs", "versions"):
                setattr(part, name, getattr(whole, name)[:30])
            require_same(await rest(target, part, SAMPLINGS["seeded"]), whole)

    asyncio.run(check())


def test_kept_kv_is_found_by_its_tokens_where_it_was_imported(two: Two) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            first = await undisturbed(source, SAMPLINGS["greedy"])
            blob = await source.bytes("/kv/export", {"token_ids": first.all_ids})
            assert (await target.import_kv(blob))["tokens"] == len(first.all_ids) - 1
            longer = ask([*first.all_ids, 5, 6, 7], 8, temperature=0)
            answer = await target.complete(longer)
            assert answer.cached == len(first.all_ids) - 1
            fresh = versions().replay().fresh(answer.all_ids, "0")[len(longer["prompt"]) - 1 :]
            gaps = [abs(one - other) for one, other in zip(answer.logprobs, fresh, strict=True)]
            assert max(gaps) < CLOSE
            assert (await source.complete(longer)).ids == answer.ids

    asyncio.run(check())


def test_kv_that_crossed_a_publication_moves_with_its_spans(two: Two, tmp_path: Path) -> None:
    of = versions()

    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            for name, client in (("a", source), ("b", target)):
                if name == "b":
                    await client.publish(of.write(tmp_path / name, "1"), "1")
            part = Answer(PROMPT)
            stream = asyncio.create_task(source.complete(ask(PROMPT, TOKENS, seed=3), part))
            await until(lambda: len(part.ids) >= 10)
            await source.publish(of.write(tmp_path / "a", "1"), "1", "keep")
            await until(lambda: part.versions[-1] == "1")
            await source.post("/pause", mode="keep")
            blob = await source.bytes("/kv/export", {"request_id": part.id})
            await stream
            told = await target.import_kv(blob)
            # By its tokens it is found by nobody: a part of it is of older weights.
            other = await target.complete(ask(part.all_ids, 1))
            assert other.cached == 0
            answer = await rest(target, part, {"seed": 3}, told["kv_id"])
            assert [span.version for span in answer.kv_spans] == ["0", "1"]
            assert answer.cached == len(PROMPT)
            assert answer.digests.keys() >= {"1"}
            replayed = of.replay().kept(answer.all_ids, answer.kv_spans)[len(PROMPT) - 1 :]
            gaps = [abs(one - other) for one, other in zip(answer.logprobs, replayed, strict=True)]
            assert max(gaps) < CLOSE

    asyncio.run(check())


def test_kv_of_other_weights_is_refused_and_the_stream_goes_on_from_ids(two: Two, tmp_path: Path) -> None:
    of = versions()

    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            part, blob = await drained(source, SAMPLINGS["seeded"])
            await target.publish(of.write(tmp_path, "1"), "1")
            status, error = await target.status("/kv/import", data=blob)
            assert status == 409 and error["error"]["code"] == "kv_refused"
            assert "other weights" in error["error"]["message"]
            answer = await rest(target, part, SAMPLINGS["seeded"])
            assert set(answer.versions[len(part.ids) :]) == {"1"}
            fresh = of.replay().fresh(answer.all_ids, "1")[len(PROMPT) - 1 :]
            new = slice(len(part.ids), None)
            gaps = [abs(a - b) for a, b in zip(answer.logprobs[new], fresh[new], strict=True)]
            assert max(gaps) < CLOSE

    asyncio.run(check())


def test_the_blob_tells_where_the_request_stood(two: Two) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, _ = await clients(stack, two)
            part, blob = await drained(source, SAMPLINGS["seeded, cut"])
            conversation = decode(blob, 1 << 30)
            assert conversation.ids.tolist() == part.all_ids[:-1]
            assert conversation.model == "tiny"
            progress = conversation.progress
            assert progress is not None
            assert (progress.n_prompt, list(progress.output_ids)) == (len(PROMPT), part.ids)
            assert list(progress.logprobs) == part.logprobs
            assert list(progress.sampling_logprobs) == part.sampling_logprobs
            assert (progress.sampling.seed, progress.sampling.top_k) == (12, 50)

    asyncio.run(check())


def test_what_cannot_be_imported_is_refused_and_harms_nobody(two: Two) -> None:
    async def check() -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, two)
            _, blob = await drained(source, SAMPLINGS["greedy"])
            sound = decode(blob, 1 << 30)
            narrow = replace(sound, kv=sound.kv[:, :, :1].contiguous())
            rounded = replace(sound, kv=sound.kv.to(torch.bfloat16))
            refusals: list[tuple[bytes, int, str]] = [
                (b"", 400, "bad_kv"),
                (b"garbage", 400, "bad_safetensors"),
                (blob[:-1], 400, "bad_safetensors"),
                (encode(narrow), 409, "kv_refused"),
                (encode(rounded), 409, "kv_refused"),
            ]
            for data, status, code in refusals:
                got, error = await target.status("/kv/import", data=data)
                assert (got, error["error"]["code"]) == (status, code)
            assert (await target.get("/load"))["kv_bytes"] == 0

    asyncio.run(check())


def test_kv_that_has_no_room_is_refused(two: Two) -> None:
    async def check(small: str) -> None:
        async with AsyncExitStack() as stack:
            source, target = await clients(stack, (two[0], small))
            _, blob = await drained(source, SAMPLINGS["greedy"])
            status, error = await target.status("/kv/import", data=blob)
            assert (status, error["error"]["code"]) == (413, "kv_no_room")
            large = b"\0" * (20 << 20)
            status, error = await target.status("/kv/import", data=large)
            assert (status, error["error"]["code"]) == (413, "kv_too_large")
            assert (await target.complete(ask([1, 2], 3))).done

    with tiny_engine(kv_bytes=256 << 10) as small:
        asyncio.run(check(small))


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({}, 400, "either"),
        ({"request_id": "a", "token_ids": [1]}, 400, "either"),
        ({"token_ids": []}, 400, "token_ids"),
        ({"request_id": "unknown"}, 404, "unknown"),
        ({"token_ids": [1, 2, 3]}, 404, "kept"),
    ],
)
def test_what_is_not_there_cannot_be_exported(body: Any, status: int, problem: str) -> None:
    async def check(url: str) -> None:
        async with connected(url) as client:
            got, error = await client.status("/kv/export", body)
            assert got == status and problem in error["error"]["message"]

    with tiny_engine() as url:
        asyncio.run(check(url))


# -- between processes -----------------------------------------------------------------------------


@pytest.mark.slow
def test_engines_that_are_killed_or_drained_lose_nothing() -> None:
    """Six streams, each in an engine of its own: killed or drained, and continued in one that lives."""

    async def check(urls: list[str], kill: list[Any]) -> None:
        async with AsyncExitStack() as stack:
            target, *sources = [await stack.enter_async_context(connected(url)) for url in urls]
            wholes = {name: await undisturbed(target, sampling) for name, sampling in SAMPLINGS.items()}
            await target.post("/reset_prefix_cache")
            for name, sampling in SAMPLINGS.items():
                part, blob = await drained(sources[0], sampling)
                await sources[0].post("/resume")
                kv_id = (await target.import_kv(blob))["kv_id"]
                require_same(await rest(target, part, sampling, kv_id), wholes[name])
                await target.post("/reset_prefix_cache")
            for source, die, (name, sampling) in zip(sources, kill, SAMPLINGS.items(), strict=True):
                part = await killed(source, sampling, die)
                require_same(await rest(target, part, sampling), wholes[name])

    with engine_processes(1 + len(SAMPLINGS)) as engines:
        asyncio.run(check([one.url for one in engines], [one.kill for one in engines[1:]]))
