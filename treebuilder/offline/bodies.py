"""Messages and tools of a log by address, read when the first of them is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gyre.proxy.calls import NewMessage
from gyre.proxy.log.findings import Finding
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.sealed import SealedFile, conform, corrupt, projected
from gyre.proxy.log.sealing.widen import messages_table
from gyre.treebuilder.errors import ExecutionError

_COLUMNS = ("hash", "body")


class Bodies(Mapping[str, bytes]):
    def __init__(
        self,
        files: Sequence[SealedFile],
        pending: Sequence[NewMessage],
        calls: Sequence[pa.Table],
        findings: list[Finding],
    ) -> None:
        """Only what rows of `calls` refer to is kept; damaged files go to `findings`."""
        self._files = files
        self._pending = pending
        self._calls = calls
        self._findings = findings

    def __getitem__(self, address: str) -> bytes:
        """Raises ExecutionError for one that is missing: what it would have shown stays unknown."""
        try:
            body, row = self._found[address]
        except KeyError:
            raise ExecutionError(f"its message `{address}` is not in the log") from None
        return bytes(body[row].as_buffer())

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @cached_property
    def _found(self) -> dict[str, tuple[pa.Array, int]]:
        columns = [table[name] for table in self._calls for name in ("message_hashes", "tool_hashes")]
        wanted = {address for column in columns for address in values_of(pc.unique(pc.list_flatten(column)))}
        found: dict[str, tuple[pa.Array, int]] = {}
        for table in self._tables(wanted):
            for hashes, bodies in zip(table["hash"].chunks, table["body"].chunks, strict=True):
                rows = enumerate(hashes.to_pylist())
                found |= {address: (bodies, row) for row, address in rows if address in wanted}
        return found

    def _tables(self, wanted: set[str]) -> Iterator[pa.Table]:
        values = pa.array(list(wanted), pa.string())
        for file in self._files:
            for table in self._groups(file):
                mask = pc.is_in(table["hash"], value_set=values)
                # Of a log that is wanted as a whole nothing is copied.
                yield table if pc.all(mask).as_py() else table.filter(mask)
        pending = [one for one in self._pending if one.hash.hex() in wanted]
        yield messages_table(pending).select(list(_COLUMNS))

    def _groups(self, file: SealedFile) -> Iterator[pa.Table]:
        """Row groups that can be read; of a damaged one the messages are missing."""
        schema = projected("messages", _COLUMNS)
        with pq.ParquetFile(file.path, page_checksum_verification=True) as parquet:
            for group in range(parquet.num_row_groups):
                try:
                    table = parquet.read_row_group(group, list(_COLUMNS), use_threads=False)
                except (OSError, pa.ArrowException) as problem:
                    self._findings.append(corrupt(file.path, problem))
                else:
                    yield conform(table, schema)
