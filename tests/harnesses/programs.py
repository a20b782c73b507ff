"""The real programs, at the versions whose behaviour is known, installed by npm once and kept.

They are 900 MB together, and half a minute. Without node and npm the tests that need them are not run.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.trees.export.venvs import CACHE

PINS = {
    "claude": "@anthropic-ai/claude-code@2.1.220",
    "codex": "@openai/codex@0.171.0",
    "qwen": "@qwen-code/qwen-code@0.24.4",
    "opencode": "opencode-ai@1.18.33",
}
"""By command. Without a pin npm on Node 20 takes an older qwen."""


def program(command: str) -> Path:
    """Where the program is; installs it where it is not."""
    pin = PINS[command]
    place = CACHE / f"harness-{command}-{hashlib.sha256(pin.encode()).hexdigest()[:12]}"
    done = place / "installed"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(f"{place}.lock", "w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            _install(pin, place)
            done.touch()
    return place / "node_modules" / ".bin" / command


def _install(pin: str, place: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip(f"needs node and npm, to install {pin}")
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error"]
    command = [npm, "install", "--prefix", str(place), *quiet, pin]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
