"""A client below HTTP libraries: any bytes, at any time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


@contextmanager
def connection(url: str) -> Iterator[socket.socket]:
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as sock:
        yield sock


def head(method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: proxy", *headers, "", ""]).encode("latin-1")


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """The status and the body: as long as it says, else until the other side closes."""
    got = b""
    while b"\r\n\r\n" not in got and (part := sock.recv(1 << 16)):
        got += part
    top, _, body = got.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in top.split(b"\r\n")[1:])
    length = int(fields.get(b"content-length", 1 << 40))
    while len(body) < length and (part := sock.recv(1 << 16)):
        body += part
    return int(top.split(b" ", 2)[1]), body


class HastyEngine:
    """Closes each connection as soon as a request begins to come, after `said`; counts them.

    After `lasts` of them nobody listens any more.
    """

    def __init__(self, said: bytes, lasts: int | None = None) -> None:
        self._said = said
        self._lasts = lasts
        self.calls = 0

    def __enter__(self) -> HastyEngine:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)

    def _serve(self) -> None:
        while True:
            if self.calls == self._lasts:
                self._listener.close()
                return
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with sock:
                probe = sock.recv(1 << 16).startswith(b"GET /v1/models")
                self.calls += not probe
                models = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"
                sock.sendall(models if probe else self._said)
