"""Messages of a log by their address: the newest at hand, others looked for where they most likely are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from gyre.proxy.calls import CallRecord, NewMessage
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.reading.sealed import SealedFile, open_sealed, projected, row_groups

MOST_BYTES = 256 << 20


class RecentBodies:
    """Bodies that came or were referred to last. A message is written once, whoever else sends it later."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._most = most_bytes

    def add(self, messages: Iterable[NewMessage]) -> None:
        for message in messages:
            self.put(message.hash.hex(), message.body)

    def put(self, address: str, body: bytes) -> None:
        if address in self._known:
            self._known.move_to_end(address)
            return
        self._known[address] = body
        self._bytes += len(body)
        while self._bytes > self._most and len(self._known) > 1:
            self._bytes -= len(self._known.popitem(last=False)[1])

    def touch(self, addresses: Iterable[str]) -> None:
        """Somebody refers to them: system prompts and tools, which every execution sends, thus stay."""
        for address in addresses:
            if address in self._known:
                self._known.move_to_end(address)

    def get(self, address: str) -> bytes | None:
        return self._known.get(address)


def find_bodies(folder: Folder, addresses: Iterable[str]) -> dict[str, bytes]:
    """Those of them that the log has, read from the newest on until all are found."""
    wanted = set(addresses)
    found: dict[str, bytes] = {}
    for some in _bodies(folder, wanted):
        found |= some
        wanted -= some.keys()
        if not wanted:
            break
    return found


def _bodies(folder: Folder, wanted: set[str]) -> Iterator[Mapping[str, bytes]]:
    """`wanted` shrinks meanwhile."""
    for path in reversed(folder.segments()):
        try:
            records = (each for each in scan(path, Damage()) if isinstance(each, CallRecord))
            messages = (message for record in records for message in record.new_messages)
            yield {each.hash.hex(): each.body for each in messages if each.hash.hex() in wanted}
        except FileNotFoundError:
            # Sealed just now, so it is among those that are listed now.
            continue
    for path in reversed(folder.sealed("messages")):
        file = open_sealed(path, [])
        if file is not None:
            yield from _in_file(file, wanted)


def _in_file(file: SealedFile, wanted: set[str]) -> Iterator[Mapping[str, bytes]]:
    try:
        for table in row_groups(file, projected("messages", ("hash", "body")), ("hash", set(wanted))):
            yield dict(zip(values_of(table["hash"]), values_of(table["body"].cast(pa.binary())), strict=True))
    except (OSError, pa.ArrowException):
        # What is damaged is missing, and for `gyre log check` to tell.
        return
