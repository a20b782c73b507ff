"""What both wires say around text: usage, ids, versions, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gyre.elastic.engine.request import Finish, FinishReason, Span, Started, Token
from gyre.elastic.engine.server.ask import Ask
from gyre.elastic.engine.server.calls import Call
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.prompts import Prompt
from gyre.elastic.engine.server.spelling import Spelling

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One answer, whatever its form."""

    ask: Ask
    prompts: Sequence[Prompt]
    spelling: Spelling
    created: int
    """Seconds since the epoch."""

    def top(self, kind: str) -> Json:
        return {"id": self.ask.id, "object": kind, "created": self.created, "model": self.ask.model}

    def prompt_of(self, index: int) -> Prompt:
        """The prompt of a choice."""
        return self.prompts[index // self.ask.n]

    def usage(self, call: Call) -> Json:
        prompt = sum(len(prompt.ids) for prompt in self.prompts)
        completion = sum(len(output.tokens) for output in call.outputs)
        cached = sum(
            min(_cached(group[0].output), len(prompt.ids))
            for group, prompt in zip(call.groups, self.prompts, strict=True)
        )
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def metadata(self, start: Started | None, digests: Json) -> Json:
        """Nothing about weights for an answer that never began."""
        params = self.ask.sampling
        return {
            **({"weight_version": start.version} if start else {}),
            "weight_digests": digests,
            "sampling": {
                "temperature": params.temperature,
                "top_p": params.top_p,
                "top_k": params.top_k,
                "min_p": params.min_p,
                "seed": params.seed,
            },
            "spliced_tokens": sum(prompt.spliced_tokens for prompt in self.prompts),
        }

    def ids(self, tokens: Sequence[Token], start: int) -> Json:
        """Ids of the tokens from output position `start` on, and by which weights they came."""
        if not self.ask.return_ids:
            return {}
        spans = [_span(span) for span in version_spans(tokens, start)]
        return {"token_ids": [token.id for token in tokens], "weight_versions": spans}

    def seed(self, index: int) -> Json:
        return {"seed": self.ask.seed(index % self.ask.n)} if self.ask.return_ids else {}

    def stop_reason(self, output: Output, finish: Finish) -> str | int | None:
        """The stop string, or the id that the request named; null for the model's own end."""
        if output.matched is not None:
            return output.matched
        return finish.stop_id if finish.stop_id in self.ask.own_stop_ids else None

    def is_verbatim(self, output: Output, finish: Finish) -> bool:
        """Whether the reply says just what its ids say, so that these may stand for it in the next prompt."""
        ended = finish.reason in (FinishReason.STOP, FinishReason.LENGTH)
        return ended and self.stop_reason(output, finish) is None and not self.ask.ignore_eos

    def kv(self, finish: Finish) -> Json:
        return {"kv_versions": [_span(span) for span in finish.kv_spans]} if self.ask.return_ids else {}


def _cached(output: Output) -> int:
    return output.finish.cached_tokens if output.finish else 0


def version_spans(tokens: Iterable[Token], start: int = 0) -> Iterator[Span]:
    """Runs of tokens by one version; tokens of which it is not known are in none."""
    run: Span | None = None
    for at, token in enumerate(tokens, start):
        if run and run.version == token.version:
            run = Span(run.version, run.start, at + 1)
            continue
        if run:
            yield run
        run = Span(token.version, at, at + 1) if token.version else None
    if run:
        yield run


def _span(span: Span) -> Json:
    return {"version": span.version, "start": span.start, "end": span.end}
