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
from gyre.proxy.log.ragged import RaggedIds, addresses, packed
from gyre.proxy.log.rebuild import Bytes, Part, Rebuilder
from gyre.proxy.log.widen import RowKey, row_key

ID = 4
ADDRESS = 16
_BLOCK_IDS = 128
_WHOLE_IDS = 256
"""A shorter prompt that stands alone is not worth a search."""
_NEW_IDS = 64
"""Fewer new ids than this cannot hide much that another worker has recorded."""
_CACHE_BYTES = 4 << 20
"""Per execution; the latest whole is kept however long it is."""

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

    def __contains__(self, key: RowKey) -> bool:
        return key in self._parts

    def add(self, key: RowKey, part: Part) -> None:
        """Raises CorruptLogError when the row builds on one that is not here."""
        data = self.whole(part) + part.tail
        self._parts[key] = part
        known = part.shared // self._block * self._block
        hasher = xxhash.xxh3_64(data[:known])
        for end in range(known + self._block, len(data) + 1, self._block):
            hasher.update(data[end - self._block : end])
            self._ends[hasher.intdigest()] = key

    def whole(self, part: Part) -> bytes:
        return self.prefix(part.parent, part.shared) + part.suffix if part.parent else bytes(part.suffix)

    def prefix(self, key: RowKey, length: int) -> bytes:
        if key in self._parts:
            self._built.whole(key)
        return self._built.prefix(key, length)

    def find(self, data: bytes, known: int) -> tuple[RowKey, int] | None:
        """The row with the longest common beginning, which is longer than `known`, and its length."""
        start = known // self._block * self._block
        hasher, best = xxhash.xxh3_64(data[:start]), None
        for end in range(start + self._block, len(data) + 1, self._block):
            hasher.update(data[end - self._block : end])
            key = self._ends.get(hasher.intdigest())
            if key is None:
                break
            best = key
        if best is None:
            return None
        length = self.common(best, data)
        return (best, length) if length > known else None

    def common(self, key: RowKey, data: bytes) -> int:
        """How long a beginning `data` shares with a row's whole + tail."""
        part = self._parts.get(key)
        if part is None:
            return 0
        theirs = self.prefix(key, min(len(data), part.length + len(part.tail)))
        return _common(theirs, data) // self._unit * self._unit


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
        moved = self._worth_it(record) and _move(record, execution)
        ids = None if record.prompt_suffix is None else _prompt_part(record)
        _add(execution, row_key(record), record.order, ids, _list_part(record))
        if not self._left[name]:
            del self._executions[name]
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


def _move(record: CallRecord, execution: _Execution) -> bool:
    prompt, listed = _prompt_part(record), _list_part(record)
    try:
        ids = execution.ids.whole(prompt)
        messages = execution.lists.whole(listed)
        hit = (
            execution.lists.find(messages, listed.shared)
            if record.prompt_suffix is None
            else execution.ids.find(ids, prompt.shared)
        )
        if hit is None or execution.orders[hit[0]] >= record.order:
            return False
        parent = hit[0]
        shared = execution.ids.common(parent, ids)
        shared_messages = execution.lists.common(parent, messages)
        whole = execution.ids.prefix(parent, shared) + ids[shared:] if shared else ids
    except CorruptLogError:
        return False
    smaller = shared + shared_messages > prompt.shared + listed.shared
    same = record.prompt_digest is None or xxhash.xxh3_128_digest(whole) == record.prompt_digest
    if not smaller or not same:
        return False
    record.parent_call_id, record.parent_attempt, record.parent_choice = parent
    record.messages_shared = shared_messages // ADDRESS
    record.message_suffix = _split(messages[shared_messages:])
    record.prompt_shared = shared // ID
    record.prompt_suffix = None if record.prompt_suffix is None else ids[shared:]
    return True


def _add(execution: _Execution, key: RowKey, order: int, ids: Part | None, listed: Part) -> None:
    execution.orders[key] = order
    try:
        if ids is not None:
            execution.ids.add(key, ids)
        execution.lists.add(key, listed)
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
    left, right = np.frombuffer(one, np.uint8, length), np.frombuffer(other, np.uint8, length)
    differs = np.flatnonzero(left != right)
    return int(differs[0]) if len(differs) else length
