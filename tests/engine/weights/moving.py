"""The ways in which a stream leaves one engine and goes on in another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.engine.weights.streams import Answer, Client, Json, ask, until

PROMPT = list(range(100, 400))
TOKENS = 120
EARLY = 20
"""Tokens after which a stream is disturbed."""
SAMPLINGS: dict[str, Json] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 11},
    "seeded, cut": {"seed": 12, "temperature": 0.8, "top_p": 0.9, "top_k": 50, "min_p": 0.01},
}
CLOSE = 1e-4


async def undisturbed(client: Client, sampling: Json) -> Answer:
    answer = await client.complete(ask(PROMPT, TOKENS, **sampling))
    assert answer.done and len(answer.ids) == TOKENS
    return answer


async def killed(client: Client, sampling: Json, kill: Callable[[], Any]) -> Answer:
    """What a client has of a stream whose engine died."""
    answer = Answer(PROMPT)
    stream = asyncio.create_task(client.complete(ask(PROMPT, TOKENS, **sampling), answer))
    await until(lambda: len(answer.ids) >= EARLY)
    kill()
    await stream
    assert not answer.done and EARLY <= len(answer.ids) < TOKENS
    return answer


async def drained(client: Client, sampling: Json) -> tuple[Answer, bytes]:
    """What a client has of a stream whose engine was paused and gave its KV away, and that KV."""
    answer = Answer(PROMPT)
    stream = asyncio.create_task(client.complete(ask(PROMPT, TOKENS, **sampling), answer))
    await until(lambda: len(answer.ids) >= EARLY)
    await client.post("/pause", mode="keep")
    blob = await client.bytes("/kv/export", {"request_id": answer.id})
    await stream
    assert answer.done and answer.finish == "moved" and EARLY <= len(answer.ids) < TOKENS
    return answer, blob


async def rest(client: Client, part: Answer, sampling: Json, kv_id: str | None = None) -> Answer:
    """What the second engine streams: only what is new."""
    more = ask(part.prompt_ids, TOKENS, **sampling, output_token_ids=part.ids, kv_id=kv_id)
    answer = Answer(part.prompt_ids)
    answer.versions += part.versions  # spans count from the output's start
    answer.ids += part.ids
    answer.logprobs += part.logprobs
    answer.sampling_logprobs += part.sampling_logprobs
    await client.complete(more, answer)
    assert answer.done and answer.error is None
    return answer


def require_same(answer: Answer, whole: Answer) -> None:
    """Nobody can tell that it was in two engines."""
    assert answer.ids == whole.ids
    assert (answer.finish, answer.versions) == (whole.finish, whole.versions)
    for told, undisturbed in (
        (answer.logprobs, whole.logprobs),
        (answer.sampling_logprobs, whole.sampling_logprobs),
    ):
        assert max(abs(one - other) for one, other in zip(told, undisturbed, strict=True)) < CLOSE
