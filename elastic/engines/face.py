"""What a run asks of an engine, whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine says it serves."""

    version: str | None
    digest: str | None = None
    """xxh3_128 of the policy, in hex, where the engine tells it: see `elastic.engine.weights.staged`."""


class Engine(Protocol):
    """One addressable instance. Methods may raise EngineError: what is wrong, and what to do about it."""

    @property
    def name(self) -> str:
        """Of the backend, at the proxy and in the log."""
        ...

    @property
    def url(self) -> str:
        """Without `/v1`. The same after it was started again."""
        ...

    @property
    def profile(self) -> str:
        """How the proxy captures tokens from it: `gyre`, `vllm`, `sglang`."""
        ...

    @property
    def key(self) -> str | None:
        """What it asks everybody for; None: it lets all in."""
        ...

    @property
    def owned(self) -> bool:
        """Whether `start` starts its process. One that runs already is somebody else's."""
        ...

    def start(self, folder: Path, version: str) -> None:
        """Serve the weights in `folder` under the name of `version`; returns when it answers.

        A process of ours is started, in place of the one before; one of somebody else has them published.
        """
        ...

    def alive(self) -> bool:
        """Whether its process runs and it answers; one that is merely slow does."""
        ...

    def publish(self, folder: Path, version: str) -> None:
        """Weights of `folder` from the next token on, while requests go on.

        Returns when whatever is sampled from now on is of that version. One that was paused stays so; after
        a failure it may be frozen with half of them, and has to be started again.
        """
        ...

    def pause(self) -> None:
        """Freeze running requests; what arrives waits."""
        ...

    def resume(self) -> None: ...

    def weights(self) -> Weights: ...

    def stop(self) -> None:
        """End it, if it was started here. Never raises."""
        ...
