"""vLLM as the engine of a live run."""

from __future__ import annotations

from pathlib import Path

from gyre.elastic.engines.transfer import EXTENSION
from gyre.trainer.live.settings import EngineKind, EngineTable
from tests.vllm.install import HERE, environment

NAME = "policy"
_KEPT = ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "OMP_NUM_THREADS", "OMP_WAIT_POLICY")


def engine_table(python: Path, root: Path, *flags: str, length: int = 2048) -> EngineTable:
    """The interpreter's vLLM, started by the run; its caches lie in `root`."""
    command = (
        *(str(python.with_name("vllm")), "serve", "{model}", "--host", "{host}", "--port", "{port}"),
        *("--max-model-len", str(length), "--enforce-eager", "--served-model-name", NAME),
        *("--worker-extension-cls", EXTENSION, "--chat-template", str(HERE / "chatml.jinja"), *flags),
    )
    env = {name: value for name, value in environment().items() if name in _KEPT or name.startswith("VLLM_")}
    return EngineTable(
        kind=EngineKind.VLLM,
        command=command,
        env=env | {"VLLM_CACHE_ROOT": str(root / "cache")},
        start_timeout="10m",
    )
