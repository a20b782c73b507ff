"""Which backend serves a call: pure decisions over a table of backends.

An execution stays with its backend as long as that is up and not overloaded: backends are ranked by
rendezvous hashing of (execution, backend), and the best-ranked one whose open calls are within 1.25
times the mean takes the call (consistent hashing with bounded loads, arXiv 1608.01350). Workers agree
without talking, and a backend that comes or goes moves only the executions that it concerns.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import xxhash

from gyre.proxy.calls import Sampling
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.commands import DrainBackend, RemoveBackend, SetVersion
from gyre.proxy.settings import Backend

_SLACK = 1.25


@dataclass(slots=True)
class BackendState:
    """One backend as a worker sees it."""

    settings: Backend
    engine: Engine | None = None
    """None until a probe has answered (profile `auto`)."""
    ready: bool = False
    draining: bool = False
    """Open calls finish; no new ones come."""
    problem: str | None = None
    """Why it is not ready."""
    defaults: Sampling = field(default_factory=Sampling)
    """Its sampling where a request leaves it open, as far as it says."""
    version: str | None = None
    """Policy version, from the control API."""
    folds_system: bool = False
    """Its template has refused a system message that is not the first."""
    open: int = 0
    calls: int = 0
    """Attempts sent to it so far."""
    failures: int = 0

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def serves(self) -> bool:
        return self.ready and not self.draining


class Router:
    """The table of backends of one worker."""

    def __init__(self, backends: Collection[Backend] = ()) -> None:
        self.backends: dict[str, BackendState] = {}
        for backend in backends:
            self.add(backend)

    def add(self, backend: Backend) -> BackendState:
        """Add a backend, or give a known one new settings; it must be probed before it serves."""
        state = BackendState(backend, draining=backend.draining, version=backend.version)
        self.backends[backend.name] = state
        return state

    def remove(self, name: str) -> None:
        """Forget a backend; calls that are open on it go on."""
        del self.backends[name]

    def apply(self, command: DrainBackend | RemoveBackend | SetVersion) -> None:
        """Carry out a command; a name that is not known changes nothing."""
        match command:
            case DrainBackend(name, draining) if name in self.backends:
                self.backends[name].draining = draining
            case RemoveBackend(name) if name in self.backends:
                self.remove(name)
            case SetVersion(name, version):
                for backend in self.backends.values():
                    if name in (None, backend.name):
                        backend.version = version
            case _:
                pass

    def pick(self, execution: str, exclude: Collection[str] = ()) -> BackendState | None:
        """The backend for the next attempt of `execution`; None when no ready one is left."""
        ready = [b for b in self.backends.values() if b.serves and b.name not in exclude]
        if len(ready) <= 1:
            return ready[0] if ready else None
        bound = math.ceil(_SLACK * (sum(b.open for b in ready) + 1) / len(ready))
        ranked = sorted(ready, key=lambda b: _rank(execution, b.name), reverse=True)
        return next((b for b in ranked if b.open < bound), ranked[0])

    def any_ready(self) -> bool:
        return any(b.serves for b in self.backends.values())

    def why_not(self) -> str:
        """Every backend that does not serve, with its reason, for the error a client gets."""
        if not self.backends:
            return "there are no backends"
        return "; ".join(
            f"`{b.name}` {'is draining' if b.draining else b.problem or 'has not answered yet'}"
            for b in self.backends.values()
            if not b.serves
        )


def _rank(execution: str, backend: str) -> int:
    return xxhash.xxh3_64_intdigest(f"{execution}\0{backend}".encode())
