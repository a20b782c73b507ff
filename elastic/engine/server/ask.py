"""A generation as both wires ask for it, read into what the core and the answer need. Pure but for seeds."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gyre.elastic.engine.compute.noise import seed_of_choice
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import GenerationRequest, SamplingParams, Token
from gyre.elastic.engine.server.bodies import (
    MOST_STOP_CHARACTERS,
    MOST_STOPS,
    CompletionBody,
    Generation,
    VersionSpan,
)
from gyre.elastic.engine.server.errors import FieldError, too_long, unknown_model

_UNKNOWN = float("nan")
_COLDEST = 1e-6
"""Below it logits are divided into infinity."""
_CHOICE = re.compile(r"#[0-9]+\Z")
"""The end of the name of a choice: no call may have it, or its name were that of another's choice."""
_DEFAULT_COMPLETION = 16
"""What OpenAI and vLLM answer to a completion without `max_tokens`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What holds for all choices of a call."""

    id: str
    model: str
    stream: bool
    include_usage: bool
    n: int
    sampling: SamplingParams
    """Of the first choice: the others differ by their seed."""
    stops: tuple[str, ...]
    include_stop: bool
    stop_ids: frozenset[int]
    own_stop_ids: frozenset[int]
    """Those of them that the request named."""
    ignore_eos: bool
    show_special: bool
    logprobs: int | None
    """Alternatives per token; None: no log-probabilities."""
    prompt_logprobs: int | None
    return_ids: bool
    kv_id: str | None
    earlier: tuple[Token, ...]
    """Of a continuation."""

    def seed(self, choice: int) -> int:
        return seed_of_choice(self.sampling.seed, choice)


def read_ask(body: Generation, model: LoadedModel, *, logprobs: int | None, prefix: str) -> Ask:
    """RequestError 400 or 404 with the field that is to blame."""
    if body.model is not None and body.model != model.name:
        raise unknown_model(body.model, model.name)
    if body.stream and body.prompt_logprobs is not None:
        raise FieldError("prompt_logprobs", "not with `stream`")
    if _CHOICE.search(body.request_id or ""):
        raise FieldError("request_id", "choices have names that end in `#` and a number, calls have not")
    own = frozenset(body.stop_token_ids or ())
    if own and max(own) >= model.vocab_size:
        raise FieldError("stop_token_ids", f"{max(own)} is no id of this model ({model.vocab_size} ids)")
    options = body.stream_options
    return Ask(
        id=body.request_id or f"{prefix}-{uuid.uuid4().hex}",
        model=model.name,
        stream=body.stream is True,
        include_usage=options is not None and options.include_usage is True,
        n=body.n or 1,
        sampling=_sampling(body),
        stops=_stops(body.stop),
        include_stop=body.include_stop_str_in_output is True,
        stop_ids=own if body.ignore_eos else own | model.stop_ids,
        own_stop_ids=own,
        ignore_eos=body.ignore_eos is True,
        show_special=body.skip_special_tokens is False,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        return_ids=body.return_token_ids is True,
        kv_id=body.kv_id,
        earlier=_earlier(body),
    )


def request_of(
    ask: Ask, prompt_ids: Sequence[int], index: int, count: int, *, max_tokens: int, forced: Sequence[int]
) -> GenerationRequest:
    """The choice `index` of `count`, over all prompts."""
    params = ask.sampling
    return GenerationRequest(
        request_id=ask.id if count == 1 else f"{ask.id}#{index}",
        call_id=ask.id,
        prompt_ids=prompt_ids,
        output_ids=[token.id for token in ask.earlier],
        max_tokens=max_tokens,
        sampling=SamplingParams(
            seed=ask.seed(index % ask.n),
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
        ),
        stop_ids=ask.stop_ids,
        top_logprobs=ask.logprobs or 0,
        prompt_logprobs=ask.prompt_logprobs,
        kv_id=ask.kv_id,
        forced_ids=forced,
    )


def most_tokens(body: Generation, context: int, prompt: int) -> int:
    """`max_tokens`, or what there is room for.

    Raises:
        RequestError: the prompt and the answer do not fit together.
    """
    given = getattr(body, "max_completion_tokens", None) or body.max_tokens
    if given is None:
        given = _DEFAULT_COMPLETION if isinstance(body, CompletionBody) else max(context - prompt, 1)
    if prompt + given > context:
        raise too_long(context, prompt + given, f": {prompt} in the prompt and {given} for the answer")
    return given


def _sampling(body: Generation) -> SamplingParams:
    """Neutral unless asked otherwise, whatever the model's own generation config says."""
    if body.temperature and body.temperature < _COLDEST:
        raise FieldError("temperature", f"0 (greedy) or at least {_COLDEST}")
    return SamplingParams(
        seed=secrets.randbits(53) if body.seed is None else body.seed,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
    )


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in stops:
        raise FieldError("stop", "an empty string would end every answer at once")
    if len(stops) > MOST_STOPS or sum(map(len, stops)) > MOST_STOP_CHARACTERS:
        limit = f"{MOST_STOPS} strings with {MOST_STOP_CHARACTERS:,} characters together"
        raise FieldError("stop", f"at most {limit}")
    return stops


def _earlier(body: Generation) -> tuple[Token, ...]:
    ids = body.output_token_ids
    if not ids:
        return ()
    if (body.n or 1) > 1:
        raise FieldError("output_token_ids", "one answer is continued at a time: `n` must be 1")
    raw = _numbers("output_logprobs", body.output_logprobs, len(ids))
    sampling = _numbers("output_sampling_logprobs", body.output_sampling_logprobs, len(ids))
    versions = _versions(body.output_weight_versions or (), len(ids))
    return tuple(map(Token, ids, raw, sampling, versions))


def _numbers(field: str, values: Sequence[float | None] | None, count: int) -> list[float]:
    if values is None:
        return [_UNKNOWN] * count
    if len(values) != count:
        raise FieldError(field, f"{len(values)} numbers for {count} `output_token_ids`")
    return [_UNKNOWN if value is None else value for value in values]


def _versions(spans: Sequence[VersionSpan], count: int) -> list[str]:
    versions = [""] * count
    for span in spans:
        if not span.start <= span.end <= count:
            raise FieldError("output_weight_versions", f"[{span.start}, {span.end}) is not within the output")
        versions[span.start : span.end] = [span.version] * (span.end - span.start)
    return versions
