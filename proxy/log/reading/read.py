"""Reading a log: sealed files and journal as one. `read_log` is the way in; nothing here writes.

A `Log` is a snapshot, loaded when asked for. For logs larger than memory
`gyre.proxy.log.reading.groups.read_groups` yields it in parts of whole executions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gyre.proxy.errors import CorruptLogError, LogError
from gyre.proxy.log.envelope import restore
from gyre.proxy.log.findings import Finding, note
from gyre.proxy.log.folder import Folder, open_folder
from gyre.proxy.log.reading.pending import Pending, read_pending
from gyre.proxy.log.reading.ragged import RaggedIds, addresses, packed, values_of
from gyre.proxy.log.reading.rebuild import Part, Rebuilder
from gyre.proxy.log.reading.sealed import Sealed, list_sealed, projected, read_sealed
from gyre.proxy.log.schema import COMMIT_ORDER, ROW_KEY
from gyre.proxy.log.sealing.widen import RowKey, calls_table, executions_table, messages_table

_PARTS = (
    *ROW_KEY,
    *("parent_call_id", "parent_attempt", "parent_choice"),
    *("prompt_tokens", "prompt_shared", "prompt_suffix_ids", "output_ids"),
    *("messages_shared", "message_hashes", "tool_hashes", "request", "raw_request"),
)
_TRIES = 10


def read_log(
    path: str | Path, *, executions: Collection[str] | None = None, columns: Sequence[str] | None = None
) -> Log:
    """A snapshot of a log folder, the journal of a running proxy included.

    Args:
        executions: keep the rows of these only.
        columns: what `Log.calls` holds; prompts and bodies can be rebuilt whatever it names.

    Raises:
        LogFormatError: no log, or one of a newer format.
    """
    folder = open_folder(path)
    names = None if executions is None else frozenset(executions)
    for _ in range(_TRIES):
        # Segments first: one that is sealed after this listing is then in the sealed list as well.
        segments = folder.segments()
        sealed = list_sealed(folder)
        try:
            waiting = [path for path in segments if path.name not in sealed.segments]
            pending = read_pending(waiting, sealed.calls, names)
        except FileNotFoundError:
            continue
        return Log(folder, sealed, pending, names, columns)
    raise LogError(f"`{path}` is being sealed faster than it can be read", "try again")


class Log:
    """A snapshot of a log; rows are in commit order, so a parent comes before its children."""

    def __init__(
        self,
        folder: Folder,
        sealed: Sealed,
        pending: Pending,
        executions: frozenset[str] | None,
        columns: Sequence[str] | None,
    ) -> None:
        self.folder = folder
        self.sealed = sealed
        self.open = pending.open
        """Attempts in flight of a proxy that runs."""
        self.problems: list[Finding] = [*sealed.problems, *pending.problems]
        self.problems += [note("foreign_file", str(p), "no file of the log") for p in folder.foreign()]
        self.pending = pending
        self._executions = executions
        self._columns = columns
        self._prompts = Rebuilder(self._prompt_part)
        self._lists = Rebuilder(self._list_part)

    @cached_property
    def calls(self) -> pa.Table:
        return self._load_calls(self._columns)

    @cached_property
    def executions(self) -> pa.Table:
        only = None if self._executions is None else ("execution_id", self._executions)
        sealed = read_sealed("executions", self.sealed.executions, self.problems, None, only)
        table = pa.concat_tables([sealed, executions_table(self.pending.executions)])
        return table.sort_by([("order", "ascending"), ("worker", "ascending")])

    @cached_property
    def messages(self) -> pa.Table:
        """Each message once; with `executions` those that their rows refer to."""
        only = None if self._executions is None else ("hash", self._referenced())
        sealed = read_sealed("messages", self.sealed.messages, self.problems, None, only)
        pending = messages_table(self.pending.messages)
        if only:
            wanted = pa.array(list(only[1]), pa.string())
            pending = pending.filter(pc.is_in(pending["hash"], value_set=wanted))
        return _first_of_each(pa.concat_tables([sealed, pending]), "hash")

    def row_keys(self) -> list[RowKey]:
        """(call_id, attempt, choice) of every row, in commit order."""
        return list(self._rows)

    def prompt_ids(self, call_id: str, attempt: int = 0, choice: int = 0) -> np.ndarray[Any, Any] | None:
        """The whole prompt as int32, or None for a row without ids.

        Raises:
            KeyError: no such row.
            CorruptLogError: a row it builds on is missing.
        """
        key = (call_id, attempt, choice)
        if self._suffixes[self._rows[key]] is None:
            return None
        return np.frombuffer(self._prompts.whole(key), "<i4")

    def output_ids(self, call_id: str, attempt: int = 0, choice: int = 0) -> np.ndarray[Any, Any] | None:
        return self._outputs[self._rows[call_id, attempt, choice]]

    def message_hashes(self, call_id: str, attempt: int = 0, choice: int = 0) -> list[str]:
        """Addresses of the row's whole message list."""
        whole = self._lists.whole((call_id, attempt, choice)).hex()
        return [whole[i : i + 32] for i in range(0, len(whole), 32)]

    def message_list(self, call_id: str, attempt: int = 0, choice: int = 0) -> list[bytes]:
        """The request's messages as the client sent them, JSON each."""
        return self._bodies(self.message_hashes(call_id, attempt, choice), call_id)

    def tools(self, call_id: str, attempt: int = 0, choice: int = 0) -> list[bytes]:
        row = self._rows[call_id, attempt, choice]
        return self._bodies(self._parts["tool_hashes"][row].as_py() or [], call_id)

    def is_raw(self, call_id: str, attempt: int = 0, choice: int = 0) -> bool:
        """Whether the body is kept as it came, and not in parts."""
        row = self._rows[call_id, attempt, choice]
        return bool(self._parts["raw_request"][row].is_valid)

    def request_body(self, call_id: str, attempt: int = 0, choice: int = 0) -> bytes | None:
        """The request body byte for byte; None where the log does not keep it."""
        row = self._rows[call_id, attempt, choice]
        raw: bytes | None = self._parts["raw_request"][row].as_py()
        if raw is not None:
            return raw
        envelope: str | None = self._parts["request"][row].as_py()
        if envelope is None:
            return None
        key = (call_id, attempt, choice)
        ids = self.prompt_ids(*key)
        listed = None if ids is None else ids.tolist() if '"gyre:prompt_ids' in envelope else None
        return restore(envelope.encode(), self.message_list(*key), self.tools(*key), listed)

    def _load_calls(self, columns: Sequence[str] | None) -> pa.Table:
        only = None if self._executions is None else ("execution_id", self._executions)
        wanted = None if columns is None else list(dict.fromkeys([*columns, *COMMIT_ORDER]))
        sealed = read_sealed("calls", self.sealed.calls, self.problems, wanted, only)
        pending = calls_table(self.pending.calls).select(projected("calls", wanted).names)
        table = _in_commit_order(pa.concat_tables([sealed, pending]))
        return table if columns is None else table.select(columns)

    @cached_property
    def _parts(self) -> pa.Table:
        return self._load_calls(_PARTS)

    @cached_property
    def _rows(self) -> dict[RowKey, int]:
        columns = [values_of(self._parts[name]) for name in ROW_KEY]
        rows: dict[RowKey, int] = {}
        for row, key in enumerate(zip(*columns, strict=True)):
            rows.setdefault(key, row)
        return rows

    @cached_property
    def _parents(self) -> list[RowKey | None]:
        columns = [values_of(self._parts[f"parent_{name}"]) for name in ROW_KEY]
        return [key if key[0] is not None else None for key in zip(*columns, strict=True)]

    @cached_property
    def _shared(self) -> tuple[list[int], list[int]]:
        return values_of(self._parts["prompt_shared"]), values_of(self._parts["messages_shared"])

    @cached_property
    def _suffixes(self) -> RaggedIds:
        return RaggedIds(self._parts["prompt_suffix_ids"])

    @cached_property
    def _outputs(self) -> RaggedIds:
        return RaggedIds(self._parts["output_ids"])

    @cached_property
    def _bodies_by_hash(self) -> dict[str, Any]:
        return dict(zip(values_of(self.messages["hash"]), self.messages["body"], strict=True))

    def _prompt_part(self, key: RowKey) -> Part | None:
        row = self._rows.get(key)
        if row is None:
            return None
        shared = 4 * self._shared[0][row]
        return Part(self._parents[row], shared, packed(self._suffixes[row]), packed(self._outputs[row]))

    def _list_part(self, key: RowKey) -> Part | None:
        row = self._rows.get(key)
        if row is None:
            return None
        suffix = addresses(self._parts["message_hashes"][row].as_py())
        return Part(self._parents[row], 16 * self._shared[1][row], suffix)

    def _bodies(self, hashes: Sequence[str], call_id: str) -> list[bytes]:
        known = self._bodies_by_hash
        try:
            return [bytes(known[digest].as_buffer()) for digest in hashes]
        except KeyError as missing:
            raise CorruptLogError(f"call `{call_id}`: its message {missing} is not in the log") from None

    def _referenced(self) -> set[str]:
        columns = [self._parts[name] for name in ("message_hashes", "tool_hashes")]
        return {digest for column in columns for digest in values_of(pc.unique(pc.list_flatten(column)))}


def _in_commit_order(table: pa.Table) -> pa.Table:
    orders = table["order"].to_numpy()
    if np.all(orders[1:] > orders[:-1]):
        return table
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in COMMIT_ORDER]))


def _first_of_each(table: pa.Table, column: str) -> pa.Table:
    values = values_of(table[column])
    if len(set(values)) == len(values):
        return table
    first: dict[str, int] = {}
    for row, value in enumerate(values):
        first.setdefault(value, row)
    return table.take(pa.array(list(first.values())))
