"""Prompts in text, remembered so that of a growing one only what is new gets parsed."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import xxhash

from gyre.proxy.capture.reply import Ids, parse_ids

_MOST_BYTES = 16 << 20
_SHORT = 1024
"""Texts below this are as quickly read as remembered."""


@dataclass(frozen=True, slots=True)
class _Known:
    length: int
    """Of the text without its closing bracket."""
    digest: bytes
    ids: Ids


class PromptTexts:
    """The last prompt of each execution; the oldest are forgotten.

    An agent's next prompt extends its last one, and the engine writes the same ids in the same way
    again. Hashing them is fifty times faster than reading half a million numbers.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._known: OrderedDict[str, _Known] = OrderedDict()

    def parse(self, execution: str, text: bytes) -> Ids | None:
        """The ids of a JSON array, as `parse_ids` would read it."""
        if len(text) < _SHORT:
            return parse_ids(text)
        known = self._known.get(execution)
        ids = _extended(known, text) if known else None
        if ids is None:
            ids = parse_ids(text)
        if ids is not None:
            self._remember(execution, text, ids)
        return ids

    def _remember(self, execution: str, text: bytes, ids: Ids) -> None:
        if old := self._known.pop(execution, None):
            self._bytes -= old.ids.nbytes
        digest = xxhash.xxh3_128_digest(memoryview(text)[:-1])
        self._known[execution] = _Known(len(text) - 1, digest, ids)
        self._bytes += ids.nbytes
        while self._bytes > self._most:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.ids.nbytes


def _extended(known: _Known, text: bytes) -> Ids | None:
    """The known ids and those that follow them in `text`; None when it does not begin with them."""
    end = known.length
    if text[end : end + 1] not in (b",", b"]"):
        return None
    if xxhash.xxh3_128_digest(memoryview(text)[:end]) != known.digest:
        return None
    if end == len(text) - 1:
        return known.ids
    more = parse_ids(b"[" + text[end + 1 :])
    return np.concatenate([known.ids, more]) if more is not None and len(more) else None
