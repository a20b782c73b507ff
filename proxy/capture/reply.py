"""The JSON shapes of all engines' answers, as far as capture reads them; the rest stays bytes."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from gyre.proxy.calls import Sampling

Ids = npt.NDArray[np.int32]
Raw = msgspec.Raw
ABSENT = Raw(b"")
"""msgspec has no optional `Raw`; a missing field is this one."""
Id = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class MetaInfo(msgspec.Struct):
    output_token_logprobs: list[tuple[float | None, Id, Any]] | None = None


class Choice(msgspec.Struct):
    """A choice of a plain answer (`message`, `text`) or of a stream's chunk (`delta`, `text`)."""

    index: Index = 0
    message: Raw = ABSENT
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Raw = ABSENT
    token_ids: Raw = ABSENT
    response_token_ids: Raw = ABSENT
    prompt_token_ids: Raw = ABSENT
    meta_info: MetaInfo | None = None
    stop_reason: Any = None
    """vLLM: the stop string, or the id, that ended it; SGLang says `matched_stop`."""
    matched_stop: Any = None
    weight_versions: Raw = ABSENT
    """gyre: spans of the output; in a stream of the chunk's own tokens, at their absolute positions."""
    kv_versions: Raw = ABSENT
    seed: Raw = ABSENT


class Sglext(msgspec.Struct):
    input_ids: Raw = ABSENT
    output_ids: list[list[Id]] | None = None


class Settings(msgspec.Struct):
    """The effective sampler, under llama.cpp's names; gyre says the first of them."""

    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None

    def effective(self) -> Sampling:
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=int64(self.top_k),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repeat_penalty,
            seed=int64(self.seed),
        )


class Verbose(msgspec.Struct):
    prompt: str | None = None
    tokens: list[Id] | None = None
    generation_settings: Settings | None = None


class Span(msgspec.Struct):
    version: str | int
    start: int
    end: int


class Metadata(msgspec.Struct):
    """SGLang says the versions here, gyre the rest."""

    weight_version: str | int | None = None
    weight_versions: list[Span] | None = None
    weight_digests: dict[str, str] | None = None
    sampling: Settings | None = None
    spliced_tokens: Id | None = None


class Reply(msgspec.Struct):
    choices: list[Choice] | None = None
    usage: Raw = ABSENT
    prompt_token_ids: Raw = ABSENT
    sglext: Sglext | None = None
    verbose: Verbose | None = msgspec.field(name="__verbose", default=None)
    metadata: Raw = ABSENT
    error: Raw = ABSENT


class TokenLogprob(msgspec.Struct):
    logprob: float | None = None
    id: Id | None = None
    sampling_logprob: float | None = None
    """gyre: of the distribution sampled from."""


class Logprobs(msgspec.Struct):
    """chat's `content` list, or the arrays of completions."""

    content: list[TokenLogprob] | None = None
    token_logprobs: list[float | None] | None = None
    sampling_logprobs: list[float | None] | None = None


decode_reply = msgspec.json.Decoder(Reply).decode
decode_logprobs = msgspec.json.Decoder(Logprobs).decode
decode_ids = msgspec.json.Decoder(list[Id]).decode
_decode_metadata = msgspec.json.Decoder(Metadata).decode


def read_metadata(raw: Raw) -> Metadata:
    """Empty for anything else: hosted APIs repeat what the client calls so."""
    try:
        return Metadata() if is_null(raw) else _decode_metadata(raw)
    except msgspec.ValidationError:
        return Metadata()


def int64(value: int | None) -> int | None:
    """None for what neither the journal nor a column can hold."""
    return value if value is not None and -(1 << 63) <= value < 1 << 63 else None


def is_null(raw: Raw) -> bool:
    """Whether the field was missing or null."""
    return raw is ABSENT or (memoryview(raw).nbytes <= 4 and bytes(raw) in (b"", b"null"))


def parse_ids(raw: Raw | bytes) -> Ids | None:
    """A JSON array of ids as int32; None when it is not one.

    numpy reads text at three times the speed of a JSON parser and without an object per id.
    """
    text = bytes(raw).strip()
    try:
        if len(text) < 256:
            return np.array(decode_ids(text), np.int32)
        wide = np.fromstring(text[1:-1], np.int64, sep=",")
        # Of blanks alone numpy makes a zero, and of a number that does not fit another one.
        if text[:1] != b"[" or text[1:-1].isspace() or np.bitwise_or.reduce(wide) >> 31:
            return np.array(decode_ids(text), np.int32)
    except (ValueError, OverflowError):
        return None
    return wide.astype(np.int32) if len(wide) == text.count(b",") + 1 else None
