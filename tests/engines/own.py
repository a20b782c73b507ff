"""What gyre's own engine says beyond vLLM's fields, to those who ask for token ids.

    choices[].weight_versions, .kv_versions, .seed      spans of output; of prompt and output
    metadata                                            version, digests, effective sampling, splices
    logprobs                                            `sampling_logprob` beside the raw one

A request with `output_token_ids` is continued: a plain answer is whole, a stream brings the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engines import tokens
from tests.engines.script import Answer, Request

Json = dict[str, Any]
SEED = 7000
"""Drawn for requests without one; choice i samples with the seed + i."""
_NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
Spans = Sequence[tuple[str, int, int]]


def sampling_of(body: Json) -> Json:
    said = {name: body.get(name) for name in (*_NEUTRAL, "seed")}
    return {**_NEUTRAL, "seed": SEED} | {name: value for name, value in said.items() if value is not None}


def sampling_logprob_at(body: Json, position: int) -> float:
    """Of the distribution sampled from; exact in float32, and the raw one where sampling is neutral."""
    sampling = sampling_of(body)
    if sampling["temperature"] == 0:
        return 0.0
    neutral = all(sampling[name] == value for name, value in _NEUTRAL.items())
    return tokens.logprob_at(position) / (1 if neutral else 2)


def given(body: Json) -> list[int]:
    """Ids that were sampled earlier and are gone on from."""
    ids: list[int] = body.get("output_token_ids") or []
    return ids


def rest_of(answer: Answer, body: Json) -> str:
    """The text after the given ids, as a stream brings it."""
    before, ids = given(body), answer.output_ids
    if ids[: len(before)] != before:
        raise ValueError("the scripted answer does not begin with the given ids")
    return tokens.detokenize(token for token in ids[len(before) :] if token != tokens.END)


def spans_of(answer: Answer) -> Spans:
    return answer.versions or [("0", 0, len(answer.output_ids))]


def clipped(spans: Spans, start: int, end: int) -> list[Json]:
    """What of the spans lies in [start, end), at its absolute positions."""
    cut = [(version, max(first, start), min(last, end)) for version, first, last in spans]
    return [{"version": v, "start": first, "end": last} for v, first, last in cut if first < last]


def last_fields(request: Request, answer: Answer, index: int) -> Json:
    """What a choice says when it is over."""
    count = len(request.prompt_ids) + len(answer.output_ids)
    # The last token of an output is never computed on.
    spans = answer.kv_versions or [(spans_of(answer)[0][0], 0, count - 1)]
    seed = sampling_of(request.json)["seed"] + index
    return {"kv_versions": clipped(spans, 0, count), "seed": seed}


def digest_of(answer: Answer, version: str) -> str:
    return answer.digests.get(version, f"digest-of-{version}")


def metadata_of(body: Json, answer: Answer, versions: Sequence[str]) -> Json:
    return {
        "weight_version": versions[-1],
        "weight_digests": {version: digest_of(answer, version) for version in versions},
        "sampling": sampling_of(body),
        "spliced_tokens": answer.spliced,
    }
