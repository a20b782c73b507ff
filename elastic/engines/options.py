"""How engines are started and told of new weights. Values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

InFlight = Literal["keep", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Those of `gyre engine` mean nothing to the others, which have a command of their own."""

    model: str
    """The name that an embedded engine serves its model under, whatever folder it is from."""
    chat_template: Path | None = None
    context: int | None = None
    """Tokens of a prompt and its answer; unset: what the model has."""
    slots: int = 16
    threads: int | None = None
    kv_memory: int = 2048
    """MiB"""
    device: str = "auto"
    dtype: str = "fp32"
    in_flight: InFlight = "keep"
    """What a publication does with keys and values of answers that are being sampled."""
    start_timeout_s: float = 300.0
    publish_timeout_s: float = 300.0
