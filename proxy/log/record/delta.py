"""What of a prompt an earlier call of the execution already has. Pure; nothing here touches a disk.

A prompt is stored as (parent.prompt + parent.output)[:shared] + suffix. The parent is found by one
running xxh3-128 over the ids, looked up where earlier prompts and outputs ended and at every 1024th
token, so the work is linear in the prompt and a prompt that leaves an earlier one in its middle still
shares all but the last block. xxh3 only matches; what is stored is proven by the row's digest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import xxhash

BLOCK = 1024
_MOST_ENTRIES = 500_000
_MOST_LISTS = 256
_MOST_TEXTS = 8


@dataclass(frozen=True, slots=True)
class RowKey:
    """Names a row of the log."""

    call_id: str
    attempt: int
    choice: int


@dataclass(slots=True)
class Match:
    """A prompt against the execution's earlier calls."""

    parent: RowKey | None
    shared: int
    digest: bytes
    """xxh3-128 of the whole prompt."""
    marks: list[tuple[int, bytes]]
    """(length, digest of the prefix of that length), the prompt's end included."""
    hasher: xxhash.xxh3_128
    """State after the whole prompt, to go on with an output."""


@dataclass(slots=True)
class _Execution:
    prefixes: dict[bytes, tuple[RowKey, int]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    """Distinct lengths at which a prompt or an output ended, sorted."""
    last_end: int = 0
    """Where the last output, or a prompt without one, ended."""
    lists: OrderedDict[RowKey, list[bytes]] = field(default_factory=OrderedDict)
    chains: dict[bytes, tuple[RowKey, int]] = field(default_factory=dict)
    """The same for lists of message addresses."""
    texts: deque[tuple[list[int], bytes]] = field(default_factory=lambda: deque(maxlen=_MOST_TEXTS))
    """The last prompts given as text: where their pieces end, and the digest of it all."""


class DeltaIndex:
    """Prefixes of the rows that this worker has committed, per execution; idle executions go first."""

    def __init__(self, most: int = _MOST_ENTRIES) -> None:
        self._most = most
        self._entries = 0
        self._executions: OrderedDict[str, _Execution] = OrderedDict()

    def match(self, execution: str, prompt: bytes) -> Match:
        """`prompt` and outputs are little-endian int32 ids."""
        known = self._executions.get(execution) or _Execution()
        hasher = xxhash.xxh3_128()
        marks, parent, shared = [], None, 0
        view, whole, at = memoryview(prompt), len(prompt) // 4, 0
        last = known.last_end
        if 0 < last <= whole and (hit := known.prefixes.get(xxhash.xxh3_128_digest(view[: 4 * last]))):
            # The last call goes on, as nearly always: what ended before it is no better.
            parent, shared = hit
        for length in _probes(known.ends, shared, whole):
            hasher.update(view[4 * at : 4 * length])
            at = length
            digest = hasher.digest()
            if length > shared and (hit := known.prefixes.get(digest)):
                parent, shared = hit
            if length % BLOCK == 0 or length == whole:
                marks.append((length, digest))
        return Match(parent, shared, digest, marks, hasher)

    def match_messages(self, execution: str, addresses: list[bytes]) -> RowKey | None:
        """The row with the longest common beginning, for calls without ids."""
        known = self._executions.get(execution)
        parent = None
        for digest in _chain(addresses) if known else ():
            hit = known.chains.get(digest) if known else None
            if hit is None:
                break
            parent = hit[0]
        return parent

    def shared_messages(self, execution: str, parent: RowKey | None, addresses: list[bytes]) -> int:
        """How many leading messages the parent has too."""
        known = self._executions.get(execution)
        theirs = known.lists.get(parent, []) if known and parent else []
        shared = 0
        for mine, other in zip(addresses, theirs, strict=False):
            if mine != other:
                break
            shared += 1
        return shared

    def split_text(self, execution: str, literal: bytes) -> list[bytes]:
        """A JSON string in pieces, the first of them those of an earlier prompt that it extends.

        The closing quote is a piece of its own; without it an extended string begins with the other.
        """
        known = self._executions.get(execution)
        ends: list[int] = []
        for candidate, digest in known.texts if known else ():
            at = candidate[-1]
            if at > (ends[-1] if ends else 0) and xxhash.xxh3_128_digest(literal[:at]) == digest:
                ends = candidate
        cuts = sorted({0, *ends, len(literal) - 1, len(literal)})
        return [literal[start:end] for start, end in pairwise(cuts)]

    def add_text(self, execution: str, pieces: list[bytes]) -> None:
        """The pieces are on disk: a longer prompt may begin with them."""
        ends = list(accumulate(map(len, pieces[:-1])))
        digest = xxhash.xxh3_128_digest(b"".join(pieces[:-1]))
        self._executions.setdefault(execution, _Execution()).texts.append((ends, digest))

    def add(
        self, execution: str, row: RowKey, match: Match | None, output: bytes | None, addresses: list[bytes]
    ) -> None:
        """The row is committed: later prompts may refer to it."""
        known = self._executions.setdefault(execution, _Execution())
        self._executions.move_to_end(execution)
        before = len(known.prefixes) + len(known.chains)
        if match is not None:
            _add_prompt(known, row, match, output)
        else:
            for count, digest in enumerate(_chain(addresses), 1):
                known.chains.setdefault(digest, (row, count))
        known.lists[row] = addresses
        while len(known.lists) > _MOST_LISTS:
            known.lists.popitem(last=False)
        self._entries += len(known.prefixes) + len(known.chains) - before
        while self._entries > self._most and len(self._executions) > 1:
            _, oldest = self._executions.popitem(last=False)
            self._entries -= len(oldest.prefixes) + len(oldest.chains)

    def forget(self) -> None:
        self._executions.clear()
        self._entries = 0


def _probes(ends: list[int], shared: int, length: int) -> list[int]:
    """Lengths worth a look, ascending, the whole prompt last; `shared` is known to match."""
    points = {*ends[bisect_right(ends, shared) : bisect_left(ends, length)], *range(BLOCK, length, BLOCK)}
    return [*sorted(points), length]


def _add_prompt(known: _Execution, row: RowKey, match: Match, output: bytes | None) -> None:
    for length, digest in match.marks:
        known.prefixes.setdefault(digest, (row, length))
    end = match.marks[-1][0]
    _add_end(known.ends, end)
    known.last_end = end
    if not output:
        return
    hasher = match.hasher.copy()
    view = memoryview(output)
    whole = end + len(output) // 4
    at = end
    for length in [*range(-(-(end + 1) // BLOCK) * BLOCK, whole, BLOCK), whole]:
        hasher.update(view[4 * (at - end) : 4 * (length - end)])
        at = length
        known.prefixes.setdefault(hasher.digest(), (row, length))
    _add_end(known.ends, whole)
    known.last_end = whole


def _add_end(ends: list[int], length: int) -> None:
    at = bisect_left(ends, length)
    if at == len(ends) or ends[at] != length:
        insort(ends, length)


def _chain(addresses: list[bytes]) -> list[bytes]:
    hasher = xxhash.xxh3_128()
    digests = []
    for address in addresses:
        hasher.update(address)
        digests.append(hasher.digest())
    return digests
