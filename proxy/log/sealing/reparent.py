"""Better parents at seal: what one worker could not know, all of the log does. No I/O.

A worker stores a prompt whole when the execution's earlier calls went through another worker or
another run of the proxy. Here every such row is matched against all earlier rows of its execution:
digests of prefixes at block ends find a candidate, a comparison of bytes decides. What is recorded
never changes: the prompt put together from its new parent must have the digest taken at capture.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import xxhash

from gyre.proxy.calls import CallRecord
from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.reading.ragged import RaggedIds, addresses, packed
from gyre.proxy.log.reading.rebuild import Bytes, Part, Rebuilder
from gyre.proxy.log.sealing.widen import RowKey, row_key

ID = 4
ADDRESS = 16
_BLOCK_IDS = 128
_WHOLE_IDS = 256
"""A shorter prompt that stands alone is not worth a search."""
_NEW_IDS = 64
"""Fewer new ids than this cannot hide much that another worker has recorded."""
_CACHE_BYTES = 4 << 20
"""Per execution; the latest few wholes are kept however long they are."""

EARLIER = (
    *("execution_id", "order", "call_id", "attempt", "choice"),
    *("parent_call_id", "parent_attempt", "parent_choice"),
    *("prompt_shared", "prompt_suffix_ids", "output_ids", "messages_shared", "message_hashes"),
)
"""Columns of sealed rows that `Reparenter.learn` needs."""


@dataclass(slots=True)
class Census:
    """First pass over the rows to seal: which executions are worth an index."""

    rows: Counter[str] = field(default_factory=Counter)
    workers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    candidates: set[str] = field(default_factory=set)

    def count(self, record: CallRecord) -> None:
        name = record.identity.execution_id
        self.rows[name] += 1
        self.workers[name].add(record.worker)
        if record.parent_call_id is None and _stands_alone(record):
            self.candidates.add(name)

    def wanted(self) -> set[str]:
        shared = {name for name, workers in self.workers.items() if len(workers) > 1}
        return self.candidates | shared


class Prefixes:
    """Wholes of an execution's rows, findable by any prefix that ends at a block."""

    def __init__(self, unit: int, block: int) -> None:
        self._unit = unit
        self._block = block
        self._parts: dict[RowKey, Part] = {}
        self._ends: dict[int, RowKey] = {}
        self._built = Rebuilder(self._parts.get, _CACHE_BYTES)

    def add(self, key: RowKey, part: Part, whole: bytes) -> None:
        """Make a row findable; it stands for `whole` + its tail."""
        self._parts[key] = part
        self._built.remember(key, whole)
        known = part.shared // self._block * self._block
        hasher = xxhash.xxh3_64(memoryview(whole)[:known])
        new = b"".join([memoryview(whole)[known:], part.tail])
        for end in range(self._block, len(new) + 1, self._block):
            hasher.update(new[end - self._block : end])
            self._ends[hasher.intdigest()] = key

    def whole(self, part: Part) -> bytes:
        """Raises CorruptLogError when the row builds on one that is not here."""
        if part.parent is None:
            return bytes(part.suffix)
        return b"".join([*self._pieces(part.parent, 0, part.shared), part.suffix])

    def find(self, data: bytes, known: int) -> tuple[RowKey, int] | None:
        """The row with the longest common beginning, which is longer than `known`, and its length."""
        at = known // self._block * self._block
        hasher, best = xxhash.xxh3_64(memoryview(data)[:at]), None
        for end in range(at + self._block, len(data) + 1, self._block):
            hasher.update(data[end - self._block : end])
            key = self._ends.get(hasher.intdigest())
            if key is None:
                break
            best, at = key, end
        if best is None:
            return None
        # The next block differs somewhere, or the row ends in it.
        length = at + self.common(best, data, at, at + self._block)
        return (best, length) if length > known else None

    def common(self, key: RowKey, data: bytes, start: int, stop: int) -> int:
        """How much of data[start:stop] a row's whole + tail has at the same place."""
        if key not in self._parts:
            return 0
        theirs = b"".join(self._pieces(key, start, stop))
        return _common(theirs, data[start:stop]) // self._unit * self._unit

    def digest(self, parent: RowKey, shared: int, suffix: Bytes) -> bytes:
        """xxh3-128 of what a row with this parent would stand for."""
        hasher = xxhash.xxh3_128()
        for piece in (*self._pieces(parent, 0, shared), suffix):
            hasher.update(piece)
        return hasher.digest()

    def _pieces(self, key: RowKey, start: int, stop: int) -> tuple[Bytes, Bytes]:
        """(whole + tail)[start:stop] of a row, without copying what is long."""
        whole = self._built.whole(key)
        tail = self._parts[key].tail
        return memoryview(whole)[start:stop], tail[max(0, start - len(whole)) : max(0, stop - len(whole))]


@dataclass(slots=True)
class _Execution:
    ids: Prefixes = field(default_factory=lambda: Prefixes(ID, _BLOCK_IDS * ID))
    lists: Prefixes = field(default_factory=lambda: Prefixes(ADDRESS, ADDRESS))
    orders: dict[RowKey, int] = field(default_factory=dict)


class Reparenter:
    """Takes rows in commit order and gives those a better parent that have one."""

    def __init__(self, census: Census) -> None:
        self._census = census
        self._wanted = census.wanted()
        self._left = census.rows.copy()
        self._executions: dict[str, _Execution] = {}

    def learn(self, earlier: pa.Table) -> None:
        """Rows of `Census.wanted` executions that are sealed already, in commit order."""
        ids, outputs = RaggedIds(earlier["prompt_suffix_ids"]), RaggedIds(earlier["output_ids"])
        columns = earlier.drop_columns(["prompt_suffix_ids", "output_ids"]).to_pylist()
        for i, row in enumerate(columns):
            named = (row["parent_call_id"], row["parent_attempt"], row["parent_choice"])
            parent = named if named[0] is not None else None
            key = (row["call_id"], row["attempt"], row["choice"])
            suffix = ids[i]
            prompt = Part(parent, ID * row["prompt_shared"], packed(suffix), packed(outputs[i]))
            listed = Part(parent, ADDRESS * row["messages_shared"], addresses(row["message_hashes"]))
            execution = self._executions.setdefault(row["execution_id"], _Execution())
            _add(execution, key, row["order"], None if suffix is None else prompt, listed)

    def place(self, record: CallRecord) -> bool:
        """Look for a better parent, then make the row known to later ones; True when it was moved."""
        name = record.identity.execution_id
        self._left[name] -= 1
        if name not in self._wanted:
            return False
        execution = self._executions.setdefault(name, _Execution())
        moved = self._place(record, execution)
        if not self._left[name]:
            del self._executions[name]
        return moved

    def _place(self, record: CallRecord, execution: _Execution) -> bool:
        key = row_key(record)
        execution.orders[key] = record.order
        try:
            ids = execution.ids.whole(_prompt_part(record))
            messages = execution.lists.whole(_list_part(record))
        except CorruptLogError:
            # Its parent is damaged or was not loaded; the row stays as it is and helps nobody.
            return False
        moved = self._worth_it(record) and _move(record, execution, ids, messages)
        if record.prompt_suffix is not None:
            execution.ids.add(key, _prompt_part(record), ids)
        execution.lists.add(key, _list_part(record), messages)
        return moved

    def _worth_it(self, record: CallRecord) -> bool:
        if record.parent_call_id is None and _stands_alone(record):
            return True
        several = record.choice > 0 or len(self._census.workers[record.identity.execution_id]) > 1
        return several and len(record.prompt_suffix or b"") >= _NEW_IDS * ID


def _stands_alone(record: CallRecord) -> bool:
    if record.prompt_suffix is None:
        return len(record.message_suffix) >= 2
    return len(record.prompt_suffix) >= _WHOLE_IDS * ID


def _move(record: CallRecord, execution: _Execution, ids: bytes, messages: bytes) -> bool:
    """Give the row the best parent there is, if that makes it smaller."""
    old_ids, old_messages = ID * record.prompt_shared, ADDRESS * record.messages_shared
    if record.prompt_suffix is None:
        hit = execution.lists.find(messages, old_messages)
    else:
        hit = execution.ids.find(ids, old_ids)
    if hit is None or execution.orders[hit[0]] >= record.order:
        return False
    parent, length = hit
    by_ids = record.prompt_suffix is not None
    shared = length if by_ids else 0
    shared_messages = execution.lists.common(parent, messages, 0, len(messages)) if by_ids else length
    if shared + shared_messages <= old_ids + old_messages:
        return False
    if by_ids and execution.ids.digest(parent, shared, memoryview(ids)[shared:]) != record.prompt_digest:
        return False
    record.parent_call_id, record.parent_attempt, record.parent_choice = parent
    record.messages_shared = shared_messages // ADDRESS
    record.message_suffix = _split(messages[shared_messages:])
    if by_ids:
        record.prompt_shared, record.prompt_suffix = shared // ID, ids[shared:]
    return True


def _add(execution: _Execution, key: RowKey, order: int, ids: Part | None, listed: Part) -> None:
    execution.orders[key] = order
    try:
        if ids is not None:
            execution.ids.add(key, ids, execution.ids.whole(ids))
        execution.lists.add(key, listed, execution.lists.whole(listed))
    except CorruptLogError:
        # Its parent is damaged or was not loaded; the row stays as it is and helps nobody.
        return


def _prompt_part(record: CallRecord) -> Part:
    suffix, output = record.prompt_suffix or b"", record.output or b""
    return Part(_parent(record), ID * record.prompt_shared, suffix, output)


def _list_part(record: CallRecord) -> Part:
    return Part(_parent(record), ADDRESS * record.messages_shared, b"".join(record.message_suffix))


def _parent(record: CallRecord) -> RowKey | None:
    if record.parent_call_id is None:
        return None
    return record.parent_call_id, record.parent_attempt, record.parent_choice


def _split(joined: bytes) -> list[bytes]:
    return [joined[i : i + ADDRESS] for i in range(0, len(joined), ADDRESS)]


def _common(one: Bytes, other: Bytes) -> int:
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    left, right = np.frombuffer(one, np.uint8, length), np.frombuffer(other, np.uint8, length)
    differs = np.flatnonzero(left != right)
    return int(differs[0]) if len(differs) else length
