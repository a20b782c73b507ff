"""A request body taken apart: what is the same in call after call is stored once, under its address.

`take_apart` cuts the arrays of messages and tools out of the body and leaves a marker; putting them
back (`gyre.proxy.log.envelope.restore`) gives the exact bytes, which the row's digest proves.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import msgspec
import xxhash

from gyre.proxy.calls import NewMessage, Wire
from gyre.proxy.capture.reply import Ids, parse_ids
from gyre.proxy.capture.splice import Object, offset, parse_list
from gyre.proxy.log.envelope import SYSTEM, USER, wrapped

MARK = b'"gyre:'
_SEPARATORS = (b",", b", ")
_LISTS = {Wire.CHAT: "messages", Wire.MESSAGES: "messages", Wire.RESPONSES: "input"}
_SYSTEM = {Wire.MESSAGES: "system", Wire.RESPONSES: "instructions"}
"""Where the wire has its messages, and what of them it keeps elsewhere."""


@dataclass(slots=True)
class Parts:
    """One request body in pieces; `exact` says that the pieces give back the very bytes."""

    envelope: bytes
    messages: list[msgspec.Raw | bytes] = field(default_factory=list)
    tools: list[msgspec.Raw | bytes] = field(default_factory=list)
    kind: str = "message"
    exact: bool = True


def take_apart(body: bytes, top: Object, wire: Wire, prompt_ids: Ids | None) -> Parts:
    """Cut `body` (its top level is `top`) for storage. `prompt_ids`: as captured from the answer."""
    parts = Parts(body)
    cuts: list[tuple[int, int, bytes]] = []
    if (key := _SYSTEM.get(wire, "")) in top and bytes(memoryview(top[key])[:1]) in (b'"', b"["):
        cuts.append(_cut_alone(body, top[key], b"system", SYSTEM, parts))
    if (key := _LISTS.get(wire, "")) in top:
        if bytes(memoryview(top[key])[:1]) == b'"':
            cuts.append(_cut_alone(body, top[key], b"input", USER, parts))
        elif cut := _cut_list(body, "messages", top[key]):
            parts.messages += cut[1]
            cuts.append(cut[0])
    if "tools" in top and (cut := _cut_list(body, "tools", top["tools"])):
        parts.tools += cut[1]
        cuts.append(cut[0])
    if wire == Wire.COMPLETIONS and "prompt" in top:
        cuts += _cut_prompt(body, top["prompt"], prompt_ids, parts)
    if wire == Wire.CHAT and "prompt_token_ids" in top:
        cuts += _cut_ids(body, top["prompt_token_ids"], prompt_ids)
    rest, at = [], 0
    for start, end, marker in sorted(cuts):
        rest += [body[at:start], marker]
        at = end
    parts.envelope = b"".join([*rest, body[at:]])
    # A body that holds a marker of its own could not be told apart later.
    parts.exact = parts.envelope.count(MARK) == len(cuts) and _is_text(parts.envelope)
    return parts


Cut = tuple[int, int, bytes]


def _cut_list(body: bytes, key: str, raw: msgspec.Raw) -> tuple[Cut, list[msgspec.Raw]] | None:
    """A list joined by one separator, or None for anything laid out differently."""
    elements = parse_list(raw)
    if not elements:
        return None
    start = offset(body, raw)
    end = start + memoryview(raw).nbytes
    for separator in _SEPARATORS:
        joined = separator.join(elements)
        # In place: comparing views goes item by item, and copies of megabytes cost more than the rest.
        if len(joined) == end - start - 2 and body.startswith(joined, start + 1):
            return (start, end, b'"gyre:%s:%s"' % (key.encode(), separator)), elements
    return None


def _cut_alone(body: bytes, raw: msgspec.Raw, marker: bytes, start: bytes, parts: Parts) -> Cut:
    """A text, or a list of them, that becomes a message of its own."""
    parts.messages.append(wrapped(start, bytes(raw)))
    at = offset(body, raw)
    return at, at + memoryview(raw).nbytes, b'"gyre:%s"' % marker


def _cut_prompt(body: bytes, raw: msgspec.Raw, prompt_ids: Ids | None, parts: Parts) -> list[Cut]:
    text = bytes(raw)
    if text[:1] != b'"':
        return _cut_ids(body, raw, prompt_ids)
    parts.kind, parts.messages = "prompt", [text]
    start = offset(body, raw)
    return [(start, start + len(text), b'"gyre:prompt"')]


def _cut_ids(body: bytes, raw: msgspec.Raw, prompt_ids: Ids | None) -> list[Cut]:
    """A prompt given as ids, which the row has already."""
    text = bytes(raw)
    start = offset(body, raw)
    ids = parse_ids(text) if text[:1] == b"[" else None
    if (
        ids is None
        or prompt_ids is None
        or not len(ids)
        or len(ids) != len(prompt_ids)
        or (ids != prompt_ids).any()
    ):
        return []
    for separator in _SEPARATORS:
        if b"[%s]" % separator.join(b"%d" % i for i in ids.tolist()) == text:
            return [(start, start + len(text), b'"gyre:prompt_ids:%s"' % separator)]
    return []


def _is_text(data: bytes | msgspec.Raw) -> bool:
    try:
        str(data, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


class KnownMessages:
    """Addresses of messages that this worker has already written; the oldest are forgotten.

    Found by xxh3 (25 GB/s), so that only new bytes pay for a cryptographic digest.
    """

    def __init__(self, most: int = 200_000) -> None:
        self._most = most
        self._addresses: dict[bytes, bytes] = {}

    def addresses(self, bodies: list[msgspec.Raw | bytes], kind: str) -> tuple[list[bytes], list[NewMessage]]:
        """Address of every body, and those that are new. Nothing is remembered yet.

        Raises:
            UnicodeDecodeError: a new body is not UTF-8.
        """
        addresses, new = [], []
        for body in bodies:
            key = xxhash.xxh3_128_digest(body)
            address = self._addresses.get(key)
            if address is None:
                data = bytes(body)
                str(data, "utf-8")
                address = hashlib.sha256(data).digest()[:16]
                new.append(NewMessage(address, kind, data))
            addresses.append(address)
        return addresses, new

    def remember(self, new: list[NewMessage]) -> None:
        """The messages are on disk now."""
        for message in new:
            self._addresses[xxhash.xxh3_128_digest(message.body)] = message.hash
        while len(self._addresses) > self._most:
            del self._addresses[next(iter(self._addresses))]

    def forget(self) -> None:
        self._addresses.clear()
