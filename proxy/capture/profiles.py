"""What each engine can say about tokens: what to ask, and what to hide from a client that did not ask.

Field names as in vLLM 0.10.2+, SGLang 0.5.23 and llama.cpp's server of 2026-10; our own engine uses
vLLM's, and has more. No I/O: `probe_reply` reads the answer of `GET /v1/models`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from gyre.proxy.calls import Sampling, Wire
from gyre.proxy.capture.reply import Ids, int64, parse_ids
from gyre.proxy.capture.splice import Object
from gyre.proxy.settings import Pin


class Engine(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    GYRE = "gyre"
    TEXT = "text"
    """A hosted API, or anything we do not know: no ids."""


def probe_reply(models: bytes) -> Engine:
    """Engine from the body of `GET /v1/models`: they all sign their models with `owned_by`."""
    try:
        owner = msgspec.json.decode(models)["data"][0]["owned_by"]
        return Engine(owner)
    except (msgspec.DecodeError, ValueError, LookupError, TypeError):
        return Engine.TEXT


@dataclass(frozen=True, slots=True)
class Ask:
    """What a model request asks for, as far as the proxy must know."""

    wire: Wire
    model: str | None = None
    stream: bool = False
    n: int = 1
    usage: bool = False
    """Whether a stream shall end with a usage chunk."""
    options: dict[str, Any] = field(default_factory=dict)
    """`stream_options` as given."""
    true: frozenset[str] = frozenset()
    """Capture fields that the client itself set to something other than false or null."""
    sampling: Sampling = field(default_factory=Sampling)
    given: Ids | None = None
    """Output ids that our own engine shall go on after."""


_CAPTURE_FIELDS = frozenset(
    (
        "logprobs",
        "top_logprobs",
        "return_token_ids",
        "return_prompt_token_ids",
        "return_meta_info",
        "return_input_ids_in_sglext",
        "return_output_ids_in_sglext",
        "verbose",
        "return_tokens",
    )
)


def read_ask(wire: Wire, top: Object) -> Ask:
    """Read a request's top level; values of a wrong type are left for the engine to refuse."""
    options = _value(top, "stream_options", dict) or {}
    stream = _value(top, "stream", bool) or False
    asked = _CAPTURE_FIELDS & top.keys()
    return Ask(
        wire=wire,
        model=_value(top, "model", str),
        stream=stream,
        n=_int(top, "n") or 1,
        usage=not stream or options.get("include_usage") is True,
        options=options,
        true=frozenset(key for key in asked if bytes(top[key]) not in (b"false", b"null")),
        given=_given(wire, top) if "output_token_ids" in top else None,
        sampling=_NOTHING if top.keys().isdisjoint(Sampling.__struct_fields__) else _read_sampling(top),
    )


_NOTHING = Sampling()


def _given(wire: Wire, top: Object) -> Ids | None:
    """Of the wires that reach an engine as they are."""
    return parse_ids(top["output_token_ids"]) if wire in (Wire.CHAT, Wire.COMPLETIONS) else None


def _read_sampling(top: Object) -> Sampling:
    return Sampling(
        temperature=_number(top, "temperature"),
        top_p=_number(top, "top_p"),
        top_k=_int(top, "top_k"),
        min_p=_number(top, "min_p"),
        presence_penalty=_number(top, "presence_penalty"),
        frequency_penalty=_number(top, "frequency_penalty"),
        repetition_penalty=_number(top, "repetition_penalty"),
        seed=_int(top, "seed"),
    )


def _value(top: Object, key: str, kind: type) -> Any:
    raw = top.get(key)
    if raw is None:
        return None
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    return value if type(value) is kind else None


def _int(top: Object, key: str) -> int | None:
    return int64(_value(top, key, int))


def _number(top: Object, key: str) -> float | None:
    value: float | None = _value(top, key, float)
    if value is None and (whole := _int(top, key)) is not None:
        return float(whole)
    return value


def fields_to_set(engine: Engine, ask: Ask) -> dict[str, bytes]:
    """Fields, with their JSON text, that make `engine` return ids and log-probabilities."""
    fields = dict(_id_fields(engine, ask.wire == Wire.CHAT, ask.stream, ask.true))
    if engine != Engine.TEXT and ask.stream and not ask.usage:
        fields["stream_options"] = msgspec.json.encode({**ask.options, "include_usage": True})
    return fields


@lru_cache(256)
def _id_fields(engine: Engine, chat: bool, stream: bool, true: frozenset[str]) -> dict[str, bytes]:
    fields = {key: text for key, text in _wanted(engine, chat, stream).items() if key not in true}
    if "logprobs" in true:
        fields.pop("top_logprobs", None)
    return fields


def _wanted(engine: Engine, chat: bool, stream: bool) -> dict[str, bytes]:
    yes = b"true"
    logprobs = {"logprobs": yes if chat else b"0"}
    match engine:
        case Engine.VLLM | Engine.GYRE:
            return {**logprobs, "return_token_ids": yes}
        case Engine.SGLANG if chat and stream:
            # It answers 400 to its own id fields under stream=true, but sends them as `sglext`.
            return {**logprobs, "return_input_ids_in_sglext": yes, "return_output_ids_in_sglext": yes}
        case Engine.SGLANG if chat:
            ids = {"return_token_ids": yes, "return_prompt_token_ids": yes, "return_meta_info": yes}
            return {**logprobs, **ids}
        case Engine.SGLANG:
            return {**logprobs, "return_token_ids": yes}
        case Engine.LLAMACPP:
            # It lists 20 alternatives per token unless told otherwise; 0 turns the ids off.
            one = {"logprobs": yes, "top_logprobs": b"1"} if chat else {"logprobs": b"1"}
            return {**one, "verbose": yes, "return_tokens": yes}
        case Engine.TEXT:
            return {}


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a client must not see because only the proxy asked for it."""

    top: frozenset[str]
    choice: frozenset[str]
    usage_chunk: bool
    null_logprobs: bool
    """The engine says `"logprobs": null` to those who did not ask; llama.cpp omits the key."""

    @property
    def nothing(self) -> bool:
        return not (self.top or self.choice or self.usage_chunk)


_SHOWS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "logprobs": ((), ("logprobs",)),
    "return_token_ids": (("prompt_token_ids",), ("token_ids", "response_token_ids", "prompt_token_ids")),
    "return_prompt_token_ids": ((), ("prompt_token_ids",)),
    "return_meta_info": ((), ("meta_info",)),
    "return_output_ids_in_sglext": (("sglext",), ()),
    "verbose": (("__verbose",), ()),
}

_SHOWN_BY_OURS = ("metadata",), ("weight_versions", "kv_versions", "seed")
"""With the ids; elsewhere clients are used to a `metadata` of other origin."""


@lru_cache(256)
def hidden(engine: Engine, fields: frozenset[str]) -> Hidden:
    """What follows from having set `fields` in the request."""
    shown = [_SHOWS[key] for key in fields if key in _SHOWS]
    if engine == Engine.GYRE and "return_token_ids" in fields:
        shown.append(_SHOWN_BY_OURS)
    return Hidden(
        top=frozenset(key for top, _ in shown for key in top),
        choice=frozenset(key for _, choice in shown for key in choice),
        usage_chunk="stream_options" in fields,
        null_logprobs=engine != Engine.LLAMACPP,
    )


def pinned_fields(pin: Pin, engine: Engine) -> dict[str, bytes]:
    """Sampling forced on the request; the agent's seed goes too, since it would tie a group's samples."""
    values = {key: value for key, value in msgspec.structs.asdict(pin).items() if value is not None}
    if engine == Engine.SGLANG and values.get("top_k") == 0:
        values["top_k"] = -1  # it refuses 0, by which the others mean all
    fields = {key: msgspec.json.encode(value) for key, value in values.items()}
    return {**fields, "seed": b"null"} if fields else {}


def pinned_sampling(asked: Sampling, fields: dict[str, bytes]) -> Sampling:
    """The effective sampling once `fields` are forced on the request."""
    values = {key: msgspec.json.decode(text) for key, text in fields.items()}
    return Sampling(*(values.get(name, getattr(asked, name)) for name in Sampling.__struct_fields__))
