"""A live run in a process of its own, which may kill itself somewhere, or one of its processes.

python -m tests.trainer.live.driver RUN.toml [--resume] [--kill-at POINT [--number N] [--victim NAME]]
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from gyre.trainer.live.config import load_run
from gyre.trainer.live.watch import LiveWatch
from gyre.trainer.loop import run

VICTIMS = ("trainer", "engine", "proxy", "agent", "group")
"""Processes of a run; the group is all of them."""


class KillAt:
    """SIGKILL to a process of the run, when the run comes to a point for the nth time."""

    def __init__(self, point: str, number: int, victim: str) -> None:
        self._point = point
        self._left = number
        self._victim = victim

    def __call__(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if not self._left:
                kill(psutil.Process(), self._victim)


def kill(trainer: psutil.Process, victim: str) -> None:
    """An agent or a service may be about to begin: it is waited for."""
    if victim == "group":
        os.killpg(trainer.pid, signal.SIGKILL)
    elif victim == "trainer":
        trainer.kill()
    else:
        _child(trainer, victim).kill()
        print(f"killed {victim}", file=sys.stderr, flush=True)


def _child(trainer: psutil.Process, victim: str) -> psutil.Process:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for each in trainer.children(recursive=True):
            with suppress(psutil.Error):
                if _is(victim, each.cmdline()):
                    return each
        time.sleep(0.02)
    raise AssertionError(f"there is no {victim}")


def _is(victim: str, line: list[str]) -> bool:
    if victim == "agent":
        return any(word.endswith("agent.py") for word in line)
    return line[2:4] == ["gyre.cli.main", victim]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", default="")
    parser.add_argument("--number", type=int, default=1)
    parser.add_argument("--victim", choices=VICTIMS, default="trainer")
    told = parser.parse_args()
    torch.set_num_threads(1)
    settings = load_run(told.run, {})
    assert settings.out is not None
    at = KillAt(told.kill_at, told.number, told.victim)
    watch = LiveWatch(tell=lambda text: print(text, file=sys.stderr), at=at)
    outcome = run(settings, Path(settings.out), resume=told.resume, watch=watch)
    print(outcome.batches, outcome.updates, outcome.interrupted)


if __name__ == "__main__":
    main()
