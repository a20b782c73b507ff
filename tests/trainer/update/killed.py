"""Runs of training that are killed and taken up again, each in a process of its own.

    python -m tests.trainer.update.killed FOLDER SCENARIO ...

torch is imported once; every run is a fork of this process, which itself computes nothing. A scenario is
`name:pass:updates:point:n`: SIGKILL comes when the run reaches the point for the n-th time. Then the run is
resumed. Without a point it just runs. Outcomes are in FOLDER/<name>.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from gyre.trainer.settings import CheckpointSettings, OptimizerSettings, PassName, Schedule, TrainSettings
from gyre.trainer.train import Watch, train
from gyre.trainer.update.report import UpdateReport

torch.set_num_threads(1)


def settings(tree_pass: str, updates: int) -> TrainSettings:
    return TrainSettings(
        epochs=2,
        groups_per_batch=2,
        updates_per_batch=updates,
        tree_pass=PassName(tree_pass),
        token_budget=20,
        optimizer=OptimizerSettings(
            lr=1e-3, weight_decay=0.1, schedule=Schedule.COSINE, warmup_updates=2, clip_norm=0.5
        ),
        checkpoint=CheckpointSettings(every=1 if updates == 2 else 2, keep=2),
    )


def run(folder: Path, out: Path, told: TrainSettings, *, resume: bool, at: Callable[[str], None]) -> None:
    torch.seed()  # as a process of its own begins
    watch = Watch(at=at, tell=lambda text: print(text, flush=True), updated=_nothing)
    train(folder / "trees", str(folder / "model"), out, told, resume=resume, watch=watch)


def _nothing(report: UpdateReport, total: int) -> None:
    pass


def killer(point: str, times: int) -> Callable[[str], None]:
    left = times

    def at(where: str) -> None:
        nonlocal left
        left -= where == point
        if point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return at


def forked(work: Callable[[], None]) -> int:
    """How the process that does it ends: its exit code, or minus the signal."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def play(folder: Path, scenario: str) -> tuple[str, dict[str, object]]:
    name, tree_pass, updates, point, times = scenario.split(":")
    told, out = settings(tree_pass, int(updates)), folder / name
    first = forked(lambda: run(folder, out, told, resume=False, at=killer(point, int(times))))
    left = sorted(path.name for path in (out / "checkpoints").glob("*"))
    second = forked(lambda: run(folder, out, told, resume=True, at=lambda _: None)) if point else 0
    return name, {"first": first, "left": left, "second": second}


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "ends.json").write_text(json.dumps(dict(play(place, each) for each in sys.argv[2:])))
