"""A live run in a process of its own, which may kill itself somewhere.

python -m tests.trainer.live.driver RUN.toml [--resume] [--kill-at POINT [NUMBER]]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch

from gyre.trainer.live.config import load_run
from gyre.trainer.live.watch import LiveWatch
from gyre.trainer.loop import run


class KillAt:
    """SIGKILL to this process, when the run comes to a point for the nth time."""

    def __init__(self, point: str, number: int) -> None:
        self._point = point
        self._left = number

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", default="")
    parser.add_argument("--number", type=int, default=1)
    told = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_run(told.run, {})
    assert settings.out is not None
    watch = LiveWatch(tell=lambda text: print(text, file=sys.stderr), at=KillAt(told.kill_at, told.number))
    outcome = run(settings, Path(settings.out), resume=told.resume, watch=watch)
    print(outcome.batches, outcome.updates, outcome.interrupted)


if __name__ == "__main__":
    main()
