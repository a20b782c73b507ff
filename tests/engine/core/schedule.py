"""Two engines under a random schedule, and the story of every request told by it.

Whatever is done to a request in between, its tokens are those of a replay: each was drawn, with the
request's own noise, from what transformers computes with the weights that the engine names.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
import torch

from gyre.elastic.engine.compute.sampling import Row, draw
from gyre.elastic.engine.core import Core
from gyre.elastic.engine.moving.carry import export_request, import_conversation
from gyre.elastic.engine.moving.conversation import decode, encode
from gyre.elastic.engine.request import GenerationRequest, Span, Token
from gyre.proxy.errors import RequestError
from tests.engine.core.build import (
    Heard,
    answer,
    core_of,
    prompt_of,
    require_idle,
    staged,
)
from tests.engine.core.oracle import Replay, is_sure

WEIGHTS = 3
VERSIONS = {str(n): n % WEIGHTS for n in range(1, 60)}
"""Version -> seed of its weights."""


def related_prompt(kind: int, length: int) -> list[int]:
    """Prompts that agree in their first 40 tokens, in 20, or in nothing."""
    stem = prompt_of(100, seed=1)
    turn = (0, 20, 40)[kind % 3]
    return [*stem[:turn], *prompt_of(100, seed=kind)][:length]


@dataclass
class Watching(Heard):
    """Notes of which weights the memory was that each token came from."""

    core: Core | None = None
    name: str = ""
    spans: list[tuple[Span, ...]] = field(default_factory=list)

    def token(self, token: Token) -> bool:
        assert self.core is not None
        sequence = self.core.roster.find(self.name)
        assert sequence is not None and sequence.kv is not None
        assert token.version == self.core.version
        self.spans.append(sequence.kv.spans())
        return super().token(token)


@dataclass
class Story:
    """A request and what became of it, here and elsewhere."""

    request: GenerationRequest
    parts: list[Watching]
    where: int
    """Which engine has it."""
    disturbed: bool = False
    """It saw more than one version."""

    @property
    def live(self) -> bool:
        return not self.parts[-1].ends

    @property
    def name(self) -> str:
        return self.parts[-1].name

    @property
    def tokens(self) -> list[Token]:
        return [token for part in self.parts for token in part.tokens]

    @property
    def spans(self) -> list[tuple[Span, ...]]:
        return [spans for part in self.parts for spans in part.spans]

    @property
    def open(self) -> bool:
        """Whether its output is not whole yet."""
        return self.parts[-1].ends == 1 and self.parts[-1].reason in ("abort", "moved")


class Schedule:
    def __init__(
        self, *, slots: int, step_tokens: int, kv_tokens: int, ahead: int, kind: str = "qwen3"
    ) -> None:
        self.kind = kind
        self.cores = [
            core_of(kind, slots=slots, step_tokens=step_tokens, kv_tokens=kv_tokens, seed=VERSIONS["1"])
            for _ in range(2)
        ]
        for core in self.cores:
            core.memory.ahead = ahead
        self.stories: list[Story] = []
        self.version = 1

    # -- what a schedule is made of ----------------------------------------------------------------

    def add(self, requests: Sequence[GenerationRequest], where: int) -> None:
        """The choices of one call."""
        parts = [self._watching(request, where) for request in requests]
        self.cores[where].add(list(zip(requests, parts, strict=True)))
        self.stories += [Story(request, [part], where) for request, part in zip(requests, parts, strict=True)]

    def step(self, where: int) -> None:
        self.cores[where].step()
        self.check()

    def abort(self, story: Story) -> None:
        self.cores[story.where].abort([story.name])
        assert story.parts[-1].reason == "abort"

    def pause(self, where: int, mode: str) -> None:
        there = [story for story in self.live if story.where == where]
        self.cores[where].pause(mode)
        if mode == "abort":
            assert all(story.parts[-1].reason == "abort" for story in there)

    def resume(self, where: int) -> None:
        self.cores[where].resume()

    def publish(self, in_flight: str) -> None:
        """To both, as a trainer would."""
        self.version += 1
        version = str(self.version)
        for core in self.cores:
            core.publish(staged(VERSIONS[version], self.kind), version=version, in_flight=in_flight)
        for story in self.stories:
            story.disturbed |= story.live or story.open
        self.check()

    def move(self, story: Story, *, by_name: bool) -> None:
        """To the other engine, with its memory where that can be."""
        here, there = self.cores[story.where], self.cores[1 - story.where]
        kv_id = None
        try:
            conversation = decode(encode(export_request(here, story.name)), 1 << 30)
            kv_id = import_conversation(there, conversation) if by_name else None
        except RequestError as refused:
            assert refused.status in (409, 413)
        if story.live:
            self.abort(story)
        self.go_on(story, 1 - story.where, kv_id)

    def go_on(self, story: Story, where: int, kv_id: str | None = None) -> None:
        """From the ids, as after a kill."""
        request = replace(
            story.request,
            request_id=f"{story.request.request_id}.{len(story.parts)}",
            output_ids=[*story.request.output_ids, *(token.id for token in story.tokens)],
            kv_id=kv_id,
            prompt_logprobs=None,
        )
        part = self._watching(request, where)
        self.cores[where].add([(request, part)])
        story.parts.append(part)
        story.where = where

    def forget(self, where: int) -> None:
        self.cores[where].memory.clear()

    def _watching(self, request: GenerationRequest, where: int) -> Watching:
        return Watching(core=self.cores[where], name=request.request_id)

    @property
    def live(self) -> list[Story]:
        return [story for story in self.stories if story.live]

    @property
    def open(self) -> list[Story]:
        return [story for story in self.stories if story.open]

    # -- what must be so ---------------------------------------------------------------------------

    def check(self) -> None:
        for where, core in enumerate(self.cores):
            stats = core.stats
            assert stats.kv_bytes <= core.limits.kv_bytes
            assert stats.running <= core.limits.slots
            assert stats.running + stats.waiting == sum(story.where == where for story in self.live)

    def end(self) -> None:
        """Let all end, and judge every story."""
        for core in self.cores:
            core.resume()
            while core.step():
                self.check()
            require_idle(core)
            core.memory.clear()
            assert core.stats.kv_bytes == 0
        replay = Replay(VERSIONS, self.kind)
        for story in self.stories:
            judge(story, replay, self.kind)


def judge(story: Story, replay: Replay, kind: str) -> None:
    for part in story.parts:
        assert part.ends == 1
        assert part.starts == (1 if part.tokens else 0)
        assert part.reason in ("length", "stop", "abort", "moved")
    request, tokens = story.request, story.tokens
    _judge_end(story)
    _judge_start(story, replay)
    sure = _judge_tokens(story, replay) if tokens else 0
    if not story.disturbed and tokens:
        alone = one_at_a_time(request, tokens[0].version, kind)
        assert [token.id for token in tokens[:sure]] == alone.ids[:sure]
        logprobs = [token.logprob for token in tokens[:sure]]
        assert logprobs == pytest.approx(alone.logprobs[:sure], abs=1e-4)


def _judge_tokens(story: Story, replay: Replay) -> int:
    """How many of the first tokens no rounding could have changed."""
    request, tokens, start = story.request, story.tokens, len(story.request.prompt_ids)
    rows_NV = _rows(story, [*request.prompt_ids, *(token.id for token in tokens)], replay)
    expected = draw(rows_NV, [Row(request.sampling, start + index) for index in range(len(tokens))])
    logprobs = torch.log_softmax(rows_NV, -1)[range(len(tokens)), [token.id for token in tokens]]
    assert [token.logprob for token in tokens] == pytest.approx(logprobs.tolist(), abs=1e-4)
    sure = [is_sure(row, request.sampling, start + index) for index, row in enumerate(rows_NV)]
    for index, token in enumerate(tokens):
        spans = story.spans[index]
        assert spans[-1] == replace(spans[-1], version=token.version, end=start + index)
        versions = [int(span.version) for span in spans]
        assert versions == sorted(versions)
        if sure[index]:
            assert token.id == expected[index].id
            assert token.sampling_logprob == pytest.approx(expected[index].sampling_logprob, abs=1e-3)
    assert sum(sure) >= len(sure) - 3
    return [*sure, False].index(False)


def _rows(story: Story, ids: list[int], replay: Replay) -> torch.Tensor:
    """(N, V): the logits before each token; tokens whose memory only grew are replayed at once."""
    rows: list[torch.Tensor] = []
    while len(rows) < len(story.tokens):
        begin = len(rows)
        end = begin + 1
        while end < len(story.tokens) and _grew(story.spans[end - 1], story.spans[end]):
            end += 1
        covered = replay.rows(ids, story.spans[end - 1])
        rows += covered[-(end - begin) :].unbind()
    return torch.stack(rows)


def _grew(before: tuple[Span, ...], after: tuple[Span, ...]) -> bool:
    """Whether `after` is `before` and one position more."""
    last = before[-1].end
    clipped = tuple(replace(span, end=min(span.end, last)) for span in after if span.start < last)
    return clipped == before and after[-1].end == last + 1


def _judge_end(story: Story) -> None:
    request, reason, tokens = story.request, story.parts[-1].reason, story.tokens
    stops = [token.id in request.stop_ids for token in tokens]
    assert not any(stops[:-1])
    if reason == "stop":
        finish = story.parts[-1].finish
        assert stops[-1] and finish is not None and finish.stop_id == tokens[-1].id
    elif reason == "length":
        assert len(tokens) == request.max_tokens and not stops[-1]
    else:
        assert len(tokens) < request.max_tokens


def _judge_start(story: Story, replay: Replay) -> None:
    prompt = story.request.prompt_ids
    for part in story.parts:
        if part.start is None or part.finish is None:
            continue
        assert 0 <= part.start.cached_tokens <= len(prompt) - (part is story.parts[0])
        assert part.finish.cached_tokens == part.start.cached_tokens
        assert part.start.version == part.tokens[0].version
        assert part.start.digest == f"digest {VERSIONS[part.start.version]}"
    start = story.parts[0].start
    if story.request.prompt_logprobs is None or start is None:
        return
    rows = replay.rows(prompt, [Span(start.version, 0, len(prompt))])
    expected = torch.log_softmax(rows[:-1], -1)[range(len(prompt) - 1), list(prompt[1:])].tolist()
    assert start.prompt_logprobs is not None
    assert start.cached_tokens == 0
    assert [row.id for row in start.prompt_logprobs] == list(prompt[1:])
    assert [row.logprob for row in start.prompt_logprobs] == pytest.approx(expected, abs=1e-4)


def one_at_a_time(request: GenerationRequest, version: str, kind: str) -> Heard:
    """What a core says that holds nothing else."""
    return _alone(
        tuple(request.prompt_ids),
        replace(request, request_id="alone", prompt_ids=(), prompt_logprobs=None),
        VERSIONS[version],
        kind,
    )


@functools.lru_cache(4096)
def _alone(prompt: tuple[int, ...], request: GenerationRequest, seed: int, kind: str) -> Heard:
    return answer(_empty(seed, kind), replace(request, prompt_ids=prompt))


@functools.cache
def _kept(seed: int, kind: str) -> Core:
    return core_of(kind, slots=1, seed=seed)


def _empty(seed: int, kind: str) -> Core:
    core = _kept(seed, kind)
    core.memory.clear()
    return core
