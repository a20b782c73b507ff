"""A plain (not streamed) answer: what it says about tokens, and what of it the client sees."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gyre.proxy.calls import VersionSpan
from gyre.proxy.capture.captured import Captured, ChoiceCapture
from gyre.proxy.capture.own import read_own, read_own_metadata, sampling_values
from gyre.proxy.capture.profiles import Engine, Hidden
from gyre.proxy.capture.reply import (
    ABSENT,
    Choice,
    Ids,
    Logprobs,
    Raw,
    Reply,
    decode_ids,
    decode_logprobs,
    decode_reply,
    int64,
    is_null,
    parse_ids,
    read_metadata,
)
from gyre.proxy.capture.splice import Object, without
from gyre.proxy.capture.strip import stripped

_LARGE = 1 << 16
_PROMPT_KEY = b'"prompt_token_ids":['
_RECORDED = {"choices", "usage", "prompt_token_ids", "sglext", "__verbose"}
"""What of an answer has columns of its own."""
_RECORDED_OF_OURS = _RECORDED | {"metadata"}
_decode_top = msgspec.json.Decoder(Object).decode


Parse = Callable[[bytes], Ids | None]


class Unreadable(ValueError):
    """The answer is not what this wire calls an answer."""


def capture_plain(
    engine: Engine, hidden: Hidden, body: bytes, parse: Parse = parse_ids
) -> tuple[Captured, bytes]:
    """Read an answer of status 200; return what was captured and the bytes for the client.

    `parse` reads the prompt's ids.

    Raises:
        Unreadable: not JSON, or no `choices` in it.
    """
    small, prompt = lift_prompt(body, hidden)
    try:
        reply = decode_reply(small)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if reply.choices is None:
        raise Unreadable("no `choices` in it")
    captured = Captured(usage=None if is_null(reply.usage) else bytes(reply.usage), complete=True)
    shown = body if hidden.nothing else stripped(small, reply, hidden)
    captured.meta = meta_of(engine, shown)
    read_common(captured, reply, prompt, parse)
    if engine == Engine.GYRE:
        read_own_metadata(captured, reply.metadata)
    captured.choices = [_choice(engine, choice, reply, captured) for choice in reply.choices]
    if all(choice.empty for choice in captured.choices):
        captured.flag("no_content")
    return captured, shown


def meta_of(engine: Engine, answer: bytes) -> bytes:
    """The answer's other fields, JSON."""
    return without(_decode_top(answer), _RECORDED_OF_OURS if engine == Engine.GYRE else _RECORDED)


def lift_prompt(body: bytes, hidden: Hidden) -> tuple[bytes, bytes | None]:
    """Take a large list of prompt ids out before anything parses the answer.

    Inside a JSON string the key's quotes would be escaped, so the bytes can only be the key; that it
    stood at the top level shows when the answer is decoded. Only done when the client must not see it.
    """
    if len(body) < _LARGE or "prompt_token_ids" not in hidden.top:
        return body, None
    start = body.find(_PROMPT_KEY)
    end = body.find(b"]", start)
    if start < 0 or end - start < _LARGE:
        return body, None
    start += len(_PROMPT_KEY) - 1
    return b"".join((body[:start], b"null", body[end + 1 :])), body[start : end + 1]


def read_common(
    captured: Captured, reply: Reply, lifted: bytes | None = None, parse: Parse = parse_ids
) -> None:
    """What plain answers and stream chunks share: prompt ids and llama.cpp's own report."""
    places = [reply.prompt_token_ids, *(choice.prompt_token_ids for choice in reply.choices or ())]
    if reply.sglext:
        places.append(reply.sglext.input_ids)
    if lifted is not None:
        captured.prompt_ids = parse(lifted)
    elif (raw := next((raw for raw in places if not is_null(raw)), None)) is not None:
        captured.prompt_ids = parse(bytes(raw))
    if reply.verbose:
        captured.prompt_text = reply.verbose.prompt
        if reply.verbose.generation_settings:
            captured.sampling = reply.verbose.generation_settings.effective()


def version_spans(raw: Raw) -> list[VersionSpan]:
    """SGLang's spans; a single version ends where the output does."""
    if raw is ABSENT:
        return []
    metadata = read_metadata(raw)
    if metadata.weight_versions:
        spans = [VersionSpan(str(span.version), span.start, span.end) for span in metadata.weight_versions]
        return [span for span in spans if None not in (int64(span.start), int64(span.end))]
    return [VersionSpan(str(metadata.weight_version), 0, -1)] if metadata.weight_version is not None else []


def _choice(engine: Engine, choice: Choice, reply: Reply, captured: Captured) -> ChoiceCapture:
    logprobs = read_logprobs(choice.logprobs)
    message = None if is_null(choice.message) else bytes(choice.message)
    if choice.text is not None:
        message = msgspec.json.encode({"text": choice.text})
    out = ChoiceCapture(
        index=choice.index,
        message=message,
        finish_reason=choice.finish_reason,
        ids=_output_ids(engine, choice, reply, logprobs),
        logprobs=_values(choice, logprobs),
        empty=message is None or _says_nothing(message),
    )
    if engine == Engine.GYRE:
        out.sampling_logprobs = sampling_values(logprobs) or None
        read_own(captured, choice, out)
    else:
        out.spans = version_spans(reply.metadata)
    return out


def read_logprobs(raw: Raw) -> Logprobs | None:
    if is_null(raw):
        return None
    try:
        return decode_logprobs(raw)
    except msgspec.ValidationError:
        return None


def _values(choice: Choice, logprobs: Logprobs | None) -> list[float | None] | None:
    if choice.meta_info and choice.meta_info.output_token_logprobs:
        return [entry[0] for entry in choice.meta_info.output_token_logprobs]
    return logprob_values(logprobs)


def logprob_values(logprobs: Logprobs | None) -> list[float | None] | None:
    if logprobs is None:
        return None
    if logprobs.content is not None:
        return [entry.logprob for entry in logprobs.content]
    return logprobs.token_logprobs


def logprob_ids(logprobs: Logprobs | None) -> list[int] | None:
    """llama.cpp names each sampled id in its log-probability entry."""
    if logprobs is None or logprobs.content is None:
        return None
    return [entry.id for entry in logprobs.content if entry.id is not None]


def _output_ids(engine: Engine, choice: Choice, reply: Reply, logprobs: Logprobs | None) -> list[int] | None:
    for raw in (choice.token_ids, choice.response_token_ids):
        if not is_null(raw):
            try:
                return decode_ids(raw)
            except msgspec.DecodeError:
                return None
    if choice.meta_info and choice.meta_info.output_token_logprobs:
        return [entry[1] for entry in choice.meta_info.output_token_logprobs]
    if engine == Engine.LLAMACPP:
        # Its entries miss all but the last token of a character; the verbose list is whole.
        whole = reply.verbose.tokens if reply.verbose and len(reply.choices or ()) == 1 else None
        return whole or logprob_ids(logprobs)
    return None


_SAYS = ("content", "text", "tool_calls", "reasoning", "reasoning_content", "refusal", "function_call")


def _says_nothing(message: bytes) -> bool:
    try:
        fields = msgspec.json.decode(message)
    except msgspec.DecodeError:
        return True
    return not isinstance(fields, dict) or not any(fields.get(key) for key in _SAYS)
