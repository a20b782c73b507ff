"""Taking out of an answer what only the proxy asked for."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gyre.proxy.capture.profiles import Hidden
from gyre.proxy.capture.reply import ABSENT, Choice, Raw, Reply, is_null
from gyre.proxy.capture.splice import Object, address, parse_list, without

_COMMA = 0x2C
_OBJECTS = ("__verbose", "sglext")
"""Decoded as values, so that their bytes cannot be cut; null is there to be hidden too."""
_OWN = (b'"weight_versions":', b'"kv_versions":', b'"seed":')
_decode_top = msgspec.json.Decoder(Object).decode


Cut = tuple[int, int, bytes]
"""Start, end, and what stands there instead."""


def stripped(data: bytes, reply: Reply, hidden: Hidden) -> bytes:
    """An answer or event without what is hidden; `data` itself if nothing is.

    `reply` was decoded from `data`, so its values are views that say where they stand. An unusual
    layout takes the slow way, value by value.
    """
    if any(key in hidden.top and b'"%s"' % key.encode() in data for key in _OBJECTS):
        return _rebuilt(data, hidden)
    if "meta_info" in hidden.choice and b'"meta_info"' in data:
        return _rebuilt(data, hidden)
    base = address(data)
    cuts: list[Cut | None] = []
    if reply.prompt_token_ids is not ABSENT and "prompt_token_ids" in hidden.top:
        cuts.append(_removed(data, base, b'"prompt_token_ids":', reply.prompt_token_ids))
    if reply.metadata is not ABSENT and "metadata" in hidden.top:
        cuts.append(_removed(data, base, b'"metadata":', reply.metadata))
    for choice in reply.choices or ():
        cuts += _cuts_of(data, base, choice, hidden)
    if not cuts:
        return data
    return _cut(data, cuts) or _rebuilt(data, hidden)


def _cuts_of(data: bytes, base: int, choice: Choice, hidden: Hidden) -> Iterator[Cut | None]:
    if choice.logprobs is not ABSENT and "logprobs" in hidden.choice and not is_null(choice.logprobs):
        start = address(choice.logprobs) - base
        null = (start, start + memoryview(choice.logprobs).nbytes, b"null")
        yield null if hidden.null_logprobs else _removed(data, base, b'"logprobs":', choice.logprobs)
    if choice.token_ids is not ABSENT and "token_ids" in hidden.choice:
        yield _removed(data, base, b'"token_ids":', choice.token_ids)
    if choice.prompt_token_ids is not ABSENT and "prompt_token_ids" in hidden.choice:
        yield _removed(data, base, b'"prompt_token_ids":', choice.prompt_token_ids)
    if choice.response_token_ids is not ABSENT and "response_token_ids" in hidden.choice:
        yield _removed(data, base, b'"response_token_ids":', choice.response_token_ids)
    if "weight_versions" in hidden.choice:
        own = (choice.weight_versions, choice.kv_versions, choice.seed)
        for key, value in zip(_OWN, own, strict=True):
            if value is not ABSENT:
                yield _removed(data, base, key, value)


def _removed(data: bytes, base: int, key: bytes, value: Raw) -> Cut | None:
    """The cut that takes out a pair and one of its commas; None where there are blanks between."""
    start = address(value) - base
    end = start + memoryview(value).nbytes
    start -= len(key)
    if not data.startswith(key, start):
        return None
    if data[start - 1] == _COMMA:
        return start - 1, end, b""
    return (start, end + 1, b"") if data[end] == _COMMA else None


def _cut(data: bytes, cuts: list[Cut | None]) -> bytes | None:
    """None when a cut is not possible or two of them want the same comma."""
    pieces, at = [], 0
    for cut in sorted(cut for cut in cuts if cut):
        if cut[0] < at:
            return None
        pieces += [data[at : cut[0]], cut[2]]
        at = cut[1]
    return None if None in cuts else b"".join([*pieces, data[at:]])


def _rebuilt(data: bytes, hidden: Hidden) -> bytes:
    """The same, put together from its parts; values and their order are untouched."""
    top = _decode_top(data)
    if "choices" in top:
        top = {**top, "choices": Raw(_rebuilt_choices(top["choices"], hidden))}
    return without(top, hidden.top)


def _rebuilt_choices(raw: Raw, hidden: Hidden) -> bytes:
    choices = parse_list(raw)
    if choices is None or not hidden.choice:
        return bytes(raw)
    return b"[%s]" % b",".join(_rebuilt_choice(choice, hidden) for choice in choices)


def _rebuilt_choice(raw: Raw, hidden: Hidden) -> bytes:
    fields: dict[str, Raw | bytes] = {**_decode_top(raw)}
    drop = set(hidden.choice)
    if "logprobs" in drop and "logprobs" in fields and hidden.null_logprobs:
        fields["logprobs"] = b"null"
        drop.remove("logprobs")
    return without(fields, drop)
