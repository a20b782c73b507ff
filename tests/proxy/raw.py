"""A client below HTTP libraries: any bytes, at any time."""

from __future__ import annotations

import socket
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
