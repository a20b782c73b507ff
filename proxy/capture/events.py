"""A streamed answer on its way through the proxy: as it is, read as it passes, or translated."""

from __future__ import annotations

from typing import Protocol

from gyre.proxy.capture.captured import Captured


class Events(Protocol):
    """Feed it the engine's events; it gives the client's, and at the end what was captured."""

    @property
    def done(self) -> bool:
        """The terminal event was seen; it is held back until the row is recorded."""

    @property
    def given_up(self) -> bool:
        """Nothing more is read of it."""

    @property
    def failed(self) -> bytes | None:
        """The engine's own error event, if it sent one."""

    @property
    def passes_bytes(self) -> bool:
        """What cannot be read as events may go to the client as it is."""

    @property
    def finished(self) -> bool:
        """The answer is whole, even if no terminal event follows."""

    def forward(self, event: bytes) -> bytes:
        """What the client shall see of the event; may be nothing."""

    def give_up(self) -> None:
        """The rest goes past unread, or not at all where it cannot."""

    def finish(self, complete: bool) -> Captured:
        """Close the capture. `complete`: the wire's own end was seen."""

    def end(self) -> bytes:
        """What ends the stream, once the row is recorded."""

    def broken(self, status: int, message: str, code: str) -> bytes:
        """What ends it instead when the engine broke off."""
