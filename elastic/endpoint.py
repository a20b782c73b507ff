"""Where an engine of ours listens: a loopback address and a port nobody has. Both runtimes use it."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from gyre.proxy.errors import EngineError


@dataclass(kw_only=True, slots=True, frozen=True)
class Engine:
    """A running engine."""

    url: str
    model: str
    """The name to use in requests."""


def require_loopback(host: str) -> None:
    """EngineError for any address that others can reach: the engines have no authentication."""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise EngineError(
            f"the engine does not listen on `{host}`",
            "it has no authentication: use a loopback address and put the proxy in front of it",
        )


def require_free(host: str, port: int) -> None:
    """EngineError for a port in use, before a model is loaded in vain. Port 0 is always free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            hint = "`--port 0` takes a free one"
            raise EngineError(f"cannot listen on {host}:{port}: {error.strerror}", hint) from error
