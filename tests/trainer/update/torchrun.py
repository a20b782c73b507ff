"""Two processes that torchrun starts, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def command(*args: str | Path) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *map(str, args),
    ]


def begin(*args: str | Path) -> subprocess.Popen[str]:
    """`-m MODULE ...` in two processes; what both say goes to `stdout`."""
    return subprocess.Popen(
        command(*args),
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(run: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """Exit code and output. After so many seconds without an end the test fails: a deadlock."""
    try:
        output, _ = run.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        run.terminate()  # torchrun then ends what it started, which is in sessions of their own
        output, _ = run.communicate(timeout=40)
        raise AssertionError(f"no end after {seconds} s:\n{output}") from None
    return run.returncode, output
