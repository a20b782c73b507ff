"""A port that a program can have again after it died."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_240
_TRIES = 200


def lasting_port(host: str = "127.0.0.1") -> int:
    """Free now, and below those that the system gives to connections that go out: none of these can take it
    between two starts of its owner. Where there are no such ports, any free one."""
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, max(_first_outgoing(), _LOWEST + 1))
        if _is_free(host, port):
            return port
    with socket.create_server((host, 0)) as found:
        return int(found.getsockname()[1])


def _first_outgoing() -> int:
    try:
        return int(_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
