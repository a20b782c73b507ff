"""What a request must be before the engine takes it. Pure: a refusal costs the others nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gyre.elastic.engine.compute.kv import KVShape, rounded
from gyre.elastic.engine.limits import EngineLimits
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import GenerationRequest, SamplingParams
from gyre.proxy.errors import RequestError

MIB = 1 << 20


def require_sound(
    choices: Sequence[GenerationRequest], model: LoadedModel, limits: EngineLimits, shape: KVShape
) -> None:
    """Whether the choices of one call could be served; their common ids are read once.

    Raises:
        RequestError: names the field.
    """
    first = choices[0]
    if not first.prompt_ids:
        raise RequestError("the prompt is empty")
    _require_known("prompt", first.prompt_ids, model.vocab_size)
    _require_known("output_token_ids", first.output_ids, model.vocab_size)
    for choice in choices:
        _require_same_beginning(first, choice)
        _require_known("forced_ids", choice.forced_ids, model.vocab_size)
        _require_counts(choice)
        _require_length(choice, limits, shape)
        _require_sampling(choice.sampling)


def _require_same_beginning(first: GenerationRequest, other: GenerationRequest) -> None:
    """The tokens that choices begin with are computed once, for all."""
    same = _same(first.prompt_ids, other.prompt_ids) and _same(first.output_ids, other.output_ids)
    if not same or first.prompt_logprobs != other.prompt_logprobs:
        raise RequestError("the choices of a call have one prompt, and one beginning of the output")


def _same(left: Sequence[int], right: Sequence[int]) -> bool:
    return left is right or list(left) == list(right)


def _require_counts(request: GenerationRequest) -> None:
    if request.max_tokens < 1:
        raise RequestError(f"`max_tokens` is {request.max_tokens}, must be at least 1")
    if len(request.output_ids) >= request.max_tokens:
        raise RequestError(
            f"`output_token_ids` has {len(request.output_ids)} of `max_tokens` {request.max_tokens}"
        )
    counts = {"logprobs": request.top_logprobs, "prompt_logprobs": request.prompt_logprobs or 0}
    for name, count in counts.items():
        if count < 0:
            raise RequestError(f"`{name}` is {count}, must be 0 or more")
    if request.kv_id is not None and request.prompt_logprobs is not None:
        raise RequestError("`prompt_logprobs` are computed with the prompt: not with a `kv_id`")


def _require_known(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(id for id in ids if not 0 <= id < vocab_size)
        raise RequestError(f"`{name}` has the id {wrong}, the model knows 0 to {vocab_size - 1}")


def _require_length(request: GenerationRequest, limits: EngineLimits, shape: KVShape) -> None:
    prompt, output = len(request.prompt_ids), request.max_tokens
    if prompt + output > limits.ctx:
        raise RequestError(
            f"this model's maximum context length is {limits.ctx} tokens, but {prompt} in the prompt "
            f"and `max_tokens` {output} make {prompt + output}",
            code="context_length_exceeded",
        )
    needed = rounded(prompt + output) * shape.token_bytes
    if needed > limits.kv_bytes:
        raise RequestError(
            f"the keys and values of {prompt + output} tokens take {needed / MIB:.1f} MiB, the engine has"
            f" {limits.kv_bytes / MIB:.1f}",
            code="context_length_exceeded",
            hint="start the engine with a larger `--kv-memory`",
        )


def _require_sampling(params: SamplingParams) -> None:
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise RequestError(f"`temperature` is {params.temperature}, must be 0 or more")
    if not 0 < params.top_p <= 1:
        raise RequestError(f"`top_p` is {params.top_p}, must be above 0 and at most 1")
    if not 0 <= params.min_p <= 1:
        raise RequestError(f"`min_p` is {params.min_p}, must be between 0 and 1")
    if params.top_k < 0:
        raise RequestError(f"`top_k` is {params.top_k}, must be 0 (all) or more")


def require_place(count: int, held: int, limits: EngineLimits) -> None:
    """Raises:
    RequestError: `count` choices more than the `held` have no place: not now (503), or never (400).
    """
    places = limits.slots + limits.queue
    if count > places:
        raise RequestError(f"`n` is {count}, the engine has {places} places", hint="raise `--queue`")
    if held + count > places:
        raise RequestError("the engine is overloaded: its queue is full", 503, "overloaded")
