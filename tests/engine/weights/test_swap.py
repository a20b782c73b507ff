"""Weights that change under running streams: every token is of the version it says it is of."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gyre.elastic.engine.request import Span
from tests.engine.weights.streams import Answer, Client, ask, connected, tiny_engine, until
from tests.engine.weights.versions import Versions, versions

STREAMS, PUBLICATIONS, TOKENS = 32, 10, 96
CLOSE = 1e-4
APART = 0.01
"""Log-probabilities of two versions differ by more than this somewhere in every text."""


def bodies(rng: random.Random, streams: int, tokens: int) -> list[dict[str, Any]]:
    """Streams of all kinds; half of them have a prefix in common."""
    shared = rng.choices(range(2048), k=64)
    made = []
    for index in range(streams):
        prompt = rng.choices(range(2048), k=rng.randrange(1, 120))
        if index % 2:
            prompt = shared + prompt
        temperature = rng.choice([0.0, 0.7, 1.0])
        made.append(ask(prompt, tokens, temperature=temperature, top_p=rng.choice([1.0, 0.95]), seed=index))
    return made


async def run(
    url: str,
    tmp_path: Path,
    policies: Sequence[str],
    of: Versions,
    *,
    streams: int = STREAMS,
    tokens: int = TOKENS,
    preempts: bool = False,
) -> list[Answer]:
    """All streams, with a publication each time that a share of all tokens is there."""
    asked = bodies(random.Random(3), streams, tokens)
    answers = [Answer(body["prompt"]) for body in asked]
    async with connected(url) as client:
        tasks = [
            asyncio.create_task(client.complete(body, answer))
            for body, answer in zip(asked, answers, strict=True)
        ]
        for number, policy in enumerate(policies, 1):
            folder = of.write(tmp_path, str(number))
            due = streams * tokens * number // (len(policies) + 1)
            await until(lambda due=due: sum(len(answer.ids) for answer in answers) >= due)
            await client.publish(folder, str(number), policy)
        await asyncio.gather(*tasks)
        # Nothing is left behind.
        load = await client.get("/load")
        assert load["running"] == load["waiting"] == load["failures"] == 0
        assert load["publications"] == len(policies)
        assert (load["preemptions"] > 0) == preempts
    return answers


def require_whole(answers: Sequence[Answer], tokens: int = TOKENS) -> None:
    for answer in answers:
        assert answer.error is None and answer.done
        assert (answer.finish, len(answer.ids)) == ("length", tokens)
        numbers = [int(version) for version in answer.versions]
        assert numbers == sorted(numbers)
        assert answer.kv_spans[0].start == 0
        assert answer.kv_spans[-1].end == len(answer.all_ids) - 1
        assert all(one.end == two.start for one, two in pairwise(answer.kv_spans))
    seen = {version for answer in answers for version in answer.versions}
    assert seen == {str(version) for version in range(PUBLICATIONS + 1)}
    digests = {version: digest for answer in answers for version, digest in answer.digests.items()}
    assert digests.keys() == seen and len(set(digests.values())) == len(seen)


def gap(told: Sequence[float], replayed: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(told, replayed, strict=True))


def test_kept_kv_gives_what_a_replay_gives_that_swaps_at_the_same_places(tmp_path: Path) -> None:
    of = versions(PUBLICATIONS)
    with tiny_engine() as url:
        answers = asyncio.run(run(url, tmp_path, ["keep"] * PUBLICATIONS, of))
    require_whole(answers)
    replay = of.replay()
    for answer in answers:
        # Each token is of the version that computed the one before it.
        computed_by = [span.version for span in answer.kv_spans for _ in range(span.start, span.end)]
        assert answer.versions == computed_by[len(answer.prompt_ids) - 1 :]
        replayed = replay.kept(answer.all_ids, answer.kv_spans)[len(answer.prompt_ids) - 1 :]
        assert gap(answer.logprobs, replayed) < CLOSE
    crossed = [answer for answer in answers if len(answer.kv_spans) > 1]
    assert len(crossed) > STREAMS // 2
    # The places matter: one position off is not the same.
    shifted = [_shifted(answer) for answer in crossed]
    gaps = [
        gap(answer.logprobs, replay.kept(answer.all_ids, spans)[len(answer.prompt_ids) - 1 :])
        for answer, spans in zip(crossed, shifted, strict=True)
    ]
    assert min(gaps) > CLOSE


def _shifted(answer: Answer) -> list[Span]:
    """The first change of weights that was seen in the answer, one position earlier."""
    first = len(answer.prompt_ids)
    spans = list(answer.kv_spans)
    at = next(index for index, span in enumerate(spans) if span.end > first)
    if at + 1 == len(spans) or spans[at].end - spans[at].start < 2:
        at = len(spans) - 2
    before, after = spans[at], spans[at + 1]
    spans[at : at + 2] = [
        Span(before.version, before.start, before.end - 1),
        Span(after.version, before.end - 1, after.end),
    ]
    return spans


def test_recomputed_kv_gives_what_a_fresh_pass_of_the_version_gives(tmp_path: Path) -> None:
    of = versions(PUBLICATIONS)
    with tiny_engine() as url:
        answers = asyncio.run(run(url, tmp_path, ["recompute"] * PUBLICATIONS, of))
    require_whole(answers)
    replay = of.replay()
    for answer in answers:
        assert {span.version for span in answer.kv_spans} == {answer.versions[-1]}
    for version in of.weights:
        for answer in answers:
            places = [place for place, name in enumerate(answer.versions) if name == version]
            if places:
                fresh = replay.fresh(answer.all_ids, version)[len(answer.prompt_ids) - 1 :]
                assert gap([answer.logprobs[at] for at in places], [fresh[at] for at in places]) < CLOSE
    wrong = [gap(one.logprobs, replay.fresh(one.all_ids, "10")[len(one.prompt_ids) - 1 :]) for one in answers]
    assert min(wrong) > APART


@pytest.mark.slow
def test_mixed_policies_break_no_stream(tmp_path: Path) -> None:
    with tiny_engine(slots=16) as url:
        answers = asyncio.run(run(url, tmp_path, ["keep", "recompute"] * 5, versions(PUBLICATIONS)))
    for answer in answers:
        assert answer.error is None and answer.done
        assert (answer.finish, len(answer.ids)) == ("length", TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_little_memory_changes_nothing(tmp_path: Path, policy: str) -> None:
    """Sequences lose their KV to each other and are computed anew, by whatever weights are then there."""
    of, few = versions(PUBLICATIONS), {"streams": 6, "tokens": 700}
    with tiny_engine(kv_bytes=2560 << 10) as url:
        answers = asyncio.run(run(url, tmp_path, [policy] * PUBLICATIONS, of, **few, preempts=True))
    require_whole(answers, few["tokens"])
    if policy == "recompute":
        replay = of.replay()
        for answer in answers:
            fresh = replay.fresh(answer.all_ids, answer.versions[-1])[len(answer.prompt_ids) - 1 :]
            last = answer.versions.index(answer.versions[-1])
            assert gap(answer.logprobs[last:], fresh[last:]) < CLOSE


async def _one(client: Client, prompt: Sequence[int], tokens: int = 4, **fields: Any) -> Answer:
    answer = await client.complete(ask(prompt, tokens, **fields))
    assert answer.done and answer.error is None
    return answer


@pytest.mark.parametrize("policy", ["keep", "recompute", "abort"])
def test_no_prefix_of_older_weights_is_reused(tmp_path: Path, policy: str) -> None:
    of = versions(PUBLICATIONS)
    replay = of.replay()
    prompt = random.Random(1).choices(range(2048), k=200)

    async def check(url: str) -> None:
        async with connected(url) as client:
            first = await _one(client, prompt)
            assert (await _one(client, prompt)).cached == 199
            await client.publish(of.write(tmp_path, "1"), "1", policy)
            for asked in (prompt, first.all_ids):
                after = await _one(client, asked)
                assert gap(after.logprobs, replay.fresh(after.all_ids, "1")[len(asked) - 1 :]) < CLOSE
                assert after.kv_spans == [Span("1", 0, len(asked) + 3)]
            assert after.cached == 200  # of the first call after the publication

    with tiny_engine() as url:
        asyncio.run(check(url))


def test_kv_that_crossed_a_publication_is_reused_by_nobody(tmp_path: Path) -> None:
    of = versions(PUBLICATIONS)
    replay = of.replay()
    prompt = random.Random(1).choices(range(2048), k=200)

    async def check(url: str) -> None:
        async with connected(url) as client:
            crossing = Answer(prompt)
            stream = asyncio.create_task(client.complete(ask(prompt, 64), crossing))
            await until(lambda: len(crossing.ids) > 4)
            await client.post("/pause", mode="keep")
            await client.publish(of.write(tmp_path, "1"), "1", "keep")
            await client.post("/resume")
            await until(lambda: "1" in crossing.versions)
            beside = await _one(client, prompt)  # while it runs
            await stream
            extended = await _one(client, crossing.all_ids)
            assert beside.cached == 0
            assert extended.cached == 200  # what `beside` left of the prompt
            for answer in (beside, extended):
                fresh = replay.fresh(answer.all_ids, "1")[len(answer.prompt_ids) - 1 :]
                assert gap(answer.logprobs, fresh) < CLOSE

    with tiny_engine() as url:
        asyncio.run(check(url))


def test_abort_ends_what_runs_and_nothing_that_waits(tmp_path: Path) -> None:
    of = versions(PUBLICATIONS)

    async def check(url: str) -> None:
        async with connected(url) as client:
            answers = [Answer([index]) for index in range(1, 9)]
            streams = [
                asyncio.create_task(client.complete(ask(answer.prompt_ids, 2000), answer))
                for answer in answers[:4]
            ]
            await until(lambda: all(answer.ids for answer in answers[:4]))
            streams += [
                asyncio.create_task(client.complete(ask(answer.prompt_ids, 4), answer))
                for answer in answers[4:]
            ]
            await client.publish(of.write(tmp_path, "1"), "1", "abort")
            await asyncio.gather(*streams)
            for answer in answers[:4]:
                assert answer.done and answer.finish == "abort" and set(answer.versions) == {"0"}
            for answer in answers[4:]:
                assert answer.done and answer.finish == "length" and set(answer.versions) == {"1"}

    with tiny_engine(slots=4) as url:
        asyncio.run(check(url))
