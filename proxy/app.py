"""ENTRY: settings in, one ASGI application out.

A request's way: relay -> exchange (identity, body, backend) -> answer (capture, record, client).
"""

from __future__ import annotations

from gyre.proxy.control.api import control_app
from gyre.proxy.control.plane import ControlPlane
from gyre.proxy.relay import Relay
from gyre.proxy.worker import Worker


def build(worker: Worker, plane: ControlPlane) -> Relay:
    """The application of one worker: relay in front, control API behind it."""
    return Relay(worker, control_app(worker, plane))
