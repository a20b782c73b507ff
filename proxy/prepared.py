"""The request as one backend shall get it: fields set by bytes, or translated to chat/completions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import orjson

from gyre.proxy.calls import Wire
from gyre.proxy.capture.profiles import (
    Ask,
    Engine,
    Hidden,
    fields_to_set,
    hidden,
    pinned_fields,
    pinned_sampling,
    read_ask,
)
from gyre.proxy.capture.splice import parse_object, with_fields
from gyre.proxy.errors import RequestError
from gyre.proxy.log.record.attempt import Call
from gyre.proxy.restore import SampledOf, restored
from gyre.proxy.router import BackendState
from gyre.proxy.settings import Backend, Pin
from gyre.proxy.wires import known
from gyre.proxy.wires.translation import Dialect, Json, Translation, dumped

Body = Sequence[bytes | memoryview]
CHAT_TARGET = b"/v1/chat/completions"
TOKENIZE_TARGET = b"/tokenize"
_PINNABLE = {
    Wire.MESSAGES: ("temperature", "top_p", "top_k"),
    Wire.RESPONSES: ("temperature", "top_p"),
}
"""What of the sampling a native wire lets a client say."""


@dataclass(frozen=True, slots=True)
class Prepared:
    body: Body
    hide: Hidden | None = None
    """What the client must not see of the answer."""
    translation: Translation | None = None
    ask: Ask | None = None
    """What the engine is asked for, with the sampling that is forced on it."""
    flags: tuple[str, ...] = ()

    whole: bool = False
    """The client of chat/completions wants a stream, and gets the whole answer as one."""
    folded: bool = False
    """System messages in mid-conversation went into their neighbours."""
    target: bytes | None = None
    """Path at the engine where it is not the client's."""

    @property
    def counts(self) -> bool:
        """The engine is asked for the ids of a prompt, where the client wants their number."""
        return self.target == TOKENIZE_TARGET


def is_translated(wire: Wire, engine: Engine | None, backend: Backend) -> bool:
    """Whether a call of `wire` reaches this backend as chat/completions."""
    if wire not in known.TRANSLATED or engine is None or backend.translate == "never":
        return False
    return backend.translate == "always" or engine != Engine.TEXT


def prepare(
    call: Call,
    ask: Ask,
    backend: BackendState,
    pin: Pin,
    restores: bool,
    sampled: SampledOf,
    capture: bool,
) -> Prepared:
    """`restores`: put sampled arguments back on chat too. `capture`: ask for token ids; not when the engine
    has refused our fields.

    Raises:
        RequestError: the request cannot be translated.
    """
    assert call.top is not None and backend.engine is not None
    forced = pinned_fields(pin, backend.engine)
    if is_translated(call.wire, backend.engine, backend.settings):
        return _translated(call, ask, backend, forced, sampled, capture)
    if call.wire in known.TRANSLATED:
        return _native(call, ask, backend.settings, forced)
    fields = forced | mapped_model(ask, backend.settings)
    better = _restored(call, sampled) if restores and call.wire == Wire.CHAT else None
    if better is not None:
        fields["messages"] = better
    effective = replace(ask, sampling=pinned_sampling(ask.sampling, forced)) if forced else ask
    whole = capture and _must_be_whole(call, ask, backend.engine)
    if whole:
        ask = replace(ask, stream=False, usage=True)
        fields |= {"stream": b"false"} | ({"stream_options": b"null"} if "stream_options" in call.top else {})
    wanted = fields_to_set(backend.engine, ask) if capture else {}
    hide = hidden(backend.engine, frozenset(wanted)) if wanted else None
    fields |= wanted
    body = with_fields(call.body, call.top, fields) if fields else [call.body]
    flags = ["arguments_restored"] if better is not None else []
    return Prepared(body, hide, None, effective, (*flags, *(["asked_whole"] if whole else [])), whole)


def _must_be_whole(call: Call, ask: Ask, engine: Engine) -> bool:
    """llama.cpp refuses to stream log-probabilities, and so ids, where there are tools."""
    tools = call.top is not None and "tools" in call.top
    return engine == Engine.LLAMACPP and call.wire == Wire.CHAT and ask.stream and tools


def _restored(call: Call, sampled: SampledOf) -> bytes | None:
    """`messages` with arguments of tool calls as they were sampled, where that is another text."""
    if call.top is None or "messages" not in call.top or b'"tool_calls"' not in call.body:
        return None
    try:
        messages = restored(orjson.loads(bytes(call.top["messages"])), sampled)
        return None if messages is None else dumped(messages)
    except (orjson.JSONDecodeError, RecursionError):
        return None


def mapped_model(ask: Ask, backend: Backend) -> dict[str, bytes]:
    """The model's name as this engine knows it, where it is another one."""
    mapped = backend.models.get(ask.model) if ask.model else None
    return {"model": msgspec.json.encode(mapped)} if mapped else {}


def _translated(
    call: Call,
    ask: Ask,
    backend: BackendState,
    forced: dict[str, bytes],
    sampled: SampledOf,
    capture: bool,
) -> Prepared:
    assert backend.engine is not None
    translation = translate(call, dialect_of(call.call_id, backend.engine, sampled, backend.folds_system))
    # Its streams lose the end token and characters of several tokens, so they could never be trained on.
    whole = ask.stream and backend.engine == Engine.LLAMACPP
    if whole:
        translation.chat["stream"] = False
        translation.chat.pop("stream_options", None)
    chat = _dumped(translation.chat)
    top = parse_object(chat)
    asked = read_ask(Wire.CHAT, top)
    wanted = fields_to_set(backend.engine, asked) if capture else {}
    body = with_fields(chat, top, forced | mapped_model(ask, backend.settings) | wanted)
    effective = replace(ask, sampling=pinned_sampling(asked.sampling, forced))
    hide = hidden(backend.engine, frozenset(wanted))
    flags = (*translation.lost, *(("asked_whole",) if whole else ()))
    return Prepared(body, hide, translation, effective, flags, False, backend.folds_system, CHAT_TARGET)


def translate(call: Call, dialect: Dialect) -> Translation:
    """The body, parsed and translated.

    Raises:
        RequestError: a number or a depth that JSON allows and nobody can carry, or see `translate`.
    """
    try:
        body = orjson.loads(call.body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"request body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise RequestError("request body is not a JSON object", code="invalid_json")
    wire = Wire.MESSAGES if call.wire == Wire.COUNT_TOKENS else call.wire
    try:
        return known.translate(wire, body, dialect)
    except RecursionError as error:
        raise too_deep() from error


def too_deep() -> RequestError:
    return RequestError("request body is nested too deeply", code="invalid_json")


def _dumped(chat: Json) -> bytes:
    try:
        return dumped(chat)
    except RecursionError as error:
        raise too_deep() from error


def _native(call: Call, ask: Ask, backend: Backend, forced: dict[str, bytes]) -> Prepared:
    assert call.top is not None
    fields = {key: value for key, value in forced.items() if key in _PINNABLE[call.wire]}
    flags = tuple(f"pin_not_carried:{key}" for key in forced if key not in fields and key != "seed")
    effective = replace(ask, sampling=pinned_sampling(ask.sampling, fields)) if fields else ask
    fields |= mapped_model(ask, backend)
    body = with_fields(call.body, call.top, fields) if fields else [call.body]
    return Prepared(body, None, None, effective, flags)


def dialect_of(
    call_id: str, engine: Engine | None, sampled: Callable[[str], Sequence[str]], folds_system: bool = False
) -> Dialect:
    """How `engine` writes chat/completions."""
    own = engine in (Engine.VLLM, Engine.GYRE)
    return Dialect(call_id, "reasoning" if own else "reasoning_content", sampled, folds_system)
