"""Server-sent events from bytes that break anywhere."""

from __future__ import annotations


class EventTooLarge(Exception):
    """More bytes without an event's end than allowed: `pending`, after the whole `events` before them."""

    def __init__(self, events: list[bytes], pending: bytes) -> None:
        super().__init__(len(pending))
        self.events = events
        self.pending = pending


class EventSplitter:
    """Cuts a byte stream into whole events, each with the blank line that ends it.

    Time is linear in the bytes even when one event of megabytes arrives in small reads: only the
    last three bytes of what is pending can be part of an end.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0

    @property
    def size(self) -> int:
        """Bytes held back because their event is not complete."""
        return self._size

    def feed(self, data: bytes) -> list[bytes]:
        """Events completed by `data`.

        Raises:
            EventTooLarge: the pending event outgrew the limit.
        """
        if not self._pending:
            return self._split(data)
        # One character is searched for at memory speed, a pair is not; ids have no line ends at all.
        if (b"\n" not in data and b"\r" not in data) or not _may_end(self._pending[-1][-3:] + data):
            self._hold(data, [])
            return []
        whole = b"".join([*self._pending, data])
        self._pending, self._size = [], 0
        return self._split(whole)

    def rest(self) -> bytes:
        """What is left when the stream ends: an event without its blank line, or nothing."""
        rest = b"".join(self._pending)
        self._pending, self._size = [], 0
        return rest

    def _split(self, data: bytes) -> list[bytes]:
        if b"\r" in data:
            return self._split_any(data)
        events, start, at = [], 0, data.find(b"\n")
        while at >= 0:
            if data.startswith(b"\n", at + 1):
                events.append(data[start : at + 2])
                start = at = at + 2
            else:
                at += 1
            at = data.find(b"\n", at)
        if start < len(data):
            self._hold(data[start:] if start else data, events)
        return events

    def _split_any(self, data: bytes) -> list[bytes]:
        """The slow way, for senders that end lines with CR or CRLF."""
        events, at = [], 0
        while (end := _blank_line(data, at)) >= 0:
            events.append(data[at:end])
            at = end
        if at < len(data):
            self._hold(data[at:], events)
        return events

    def _hold(self, data: bytes, events: list[bytes]) -> None:
        self._pending.append(data)
        self._size += len(data)
        if self._size > self._limit:
            raise EventTooLarge(events, self.rest())


def _may_end(seam: bytes) -> bool:
    return b"\n\n" in seam or b"\n\r" in seam or b"\r\r" in seam


def _blank_line(data: bytes, start: int) -> int:
    ends = [at + len(mark) for mark in (b"\n\n", b"\r\n\r\n", b"\r\r") if (at := data.find(mark, start)) >= 0]
    return min(ends, default=-1)


def data_of(event: bytes) -> bytes | None:
    """The event's data lines joined, or None for comments and events without data."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2:
        return event[6:-2]
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    if not lines:
        return None
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def event_of(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def with_data(event: bytes, data: bytes) -> bytes:
    """The event with other data; its name and id stay."""
    if event.startswith(b"data: {") and event.find(b"\n") == len(event) - 2:
        return event_of(data)
    others = [line + b"\n" for line in event.splitlines() if line and not line.startswith(b"data:")]
    lines = [b"data: " + line + b"\n" for line in data.splitlines()]
    return b"".join([*others, *lines, b"\n"])
