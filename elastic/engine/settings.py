"""What `gyre engine` is asked for when the model runs on transformers. No torch here: `--help` reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

MIB = 1 << 20
KEY_ENV = "GYRE_ENGINE_KEY"
"""The environment variable with the key that clients have to send; no option, which all could read."""


class Device(StrEnum):
    """Where the model computes."""

    AUTO = "auto"
    """CUDA where there is one, else the CPU. Apple's MPS only when asked for: it was never run."""
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class Dtype(StrEnum):
    """What the weights are kept and computed in."""

    FP32 = "fp32"
    BF16 = "bf16"


@dataclass(kw_only=True, slots=True, frozen=True)
class EngineSettings:
    """One engine: its model, its address and what it may use of the machine."""

    model: str
    """`smollm2`, `tiny`, or the path of a Hugging Face folder."""
    name: str | None = None
    """To serve it under. None: its own."""
    host: str = "127.0.0.1"
    """A loopback address: with a key or without, what is said can be read on the way."""
    port: int = 0
    """0 takes a free one."""
    key: str | None = field(default=None, repr=False)
    """What clients send with each request; None: all of this machine may ask."""
    device: Device = Device.AUTO
    dtype: Dtype = Dtype.FP32
    """bf16 rounds differently in each batch: 0.03 to 0.15 in log-probabilities against 1e-5."""
    chat_template: Path | None = None
    """Jinja file to use instead of the model's own template."""
    ctx: int | None = None
    """Most tokens of prompt and output together. None: as many as the model has positions."""
    slots: int = 16
    """Requests that are computed at the same time; more wait."""
    queue: int = 256
    """Requests that may wait; one more is refused as overload."""
    kv_bytes: int = 2048 * MIB
    """KV of running and of finished requests together, the latter kept to be reused."""
    threads: int | None = None
    """Threads of torch. None: its own choice, cores or `OMP_NUM_THREADS`."""
    splice: bool = True
    """Put the ids of the engine's own earlier answers into a prompt that repeats their text."""
    seed: int = 0
    """Of the weights of `tiny`; requests have seeds of their own."""
