"""Virtual environments for the real loaders, made once and kept: they are a gigabyte and a minute each."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gyre-tests"


def python_with(name: str, *installs: list[str], pins: str) -> Path:
    """The interpreter of an environment in which pip has run with each list of arguments.

    `pins` is what the installs depend on: other pins, another environment.
    """
    digest = hashlib.sha256(repr((installs, pins, sys.version)).encode()).hexdigest()[:12]
    place = CACHE / f"{name}-{digest}"
    python, done = place / "bin" / "python", place / "installed"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)])
        for arguments in installs:
            _run([str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *arguments])
        done.touch()
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
