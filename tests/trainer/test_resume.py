"""A run that is killed at any point and taken up again ends with the very bits of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gyre.elastic.engine.models.tiny import save_tiny
from tests.trainer.update.trees import trees_folder

ROOT = Path(__file__).parents[2]
POINTS = {
    "mid_update": "packed:1:piece:10",
    "optimizer_written": "packed:1:checkpoint optimizer:2",
    "before_rename": "packed:1:checkpoint before rename:2",
    "renamed": "packed:1:checkpoint renamed:2",
}
"""In the middle of the third update, inside the write of the second checkpoint, between the optimizer and the
rename, and right after it. There are four updates of four pieces each, a checkpoint every second one."""
BETWEEN = {"between_updates": "packed:2:step:4"}
"""Eight updates, two a batch, a checkpoint after each."""
MORE = {
    "before_step": "packed:1:step:3",
    "model_written": "packed:1:checkpoint model:2",
    "named": "packed:1:checkpoint named:1",
    "early": "packed:1:step:1",
    "first_of_two": "packed:2:step:3",
    "removing": "packed:2:checkpoint removing:2",
    "flat": "flat:1:step:3",
    "dfs": "dfs:1:step:3",
    "dfs_two": "dfs:2:step:6",
}


class Runs:
    """What `killed.py` left of some scenarios."""

    def __init__(self, folder: Path, scenarios: dict[str, str]) -> None:
        self.folder = folder
        trees_folder(folder / "trees")
        save_tiny(folder / "model")
        ways = sorted({tuple(what.split(":")[:2]) for what in scenarios.values()})
        wanted = [f"whole-{way}-{updates}:{way}:{updates}::0" for way, updates in ways]
        wanted += [f"{name}:{what}" for name, what in scenarios.items()]
        command = [sys.executable, "-m", "tests.trainer.update.killed", str(folder), *wanted]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=110)
        self.ends: dict[str, Any] = json.loads((folder / "ends.json").read_text())
        self.scenarios = scenarios

    def assert_like_the_whole(self, name: str) -> None:
        way, updates = self.scenarios[name].split(":")[:2]
        assert self.ends[name]["first"] == -9
        assert self.ends[name]["second"] == 0
        whole, resumed = self.folder / f"whole-{way}-{updates}", self.folder / name
        assert numbers(resumed) == numbers(whole)
        for file in ("model/model.safetensors", "batch.safetensors", "optimizer.safetensors"):
            assert (resumed / "latest" / file).read_bytes() == (whole / "latest" / file).read_bytes()
        assert (resumed / "latest").resolve().name == (whole / "latest").resolve().name
        assert [path.name for path in (resumed / "checkpoints").glob(".*")] == []


def numbers(out: Path) -> list[dict[str, Any]]:
    """Of every update, but for what a clock or the machine says."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = ("seconds/", "memory/peak", "tokens/per_s")
    return [{key: line[key] for key in line if not key.startswith(measured)} for line in lines]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("killed"), POINTS | BETWEEN)


@pytest.mark.parametrize("name", POINTS)
def test_a_killed_run_ends_as_if_it_had_not_been(killed: Runs, name: str) -> None:
    killed.assert_like_the_whole(name)


def test_old_log_probabilities_are_of_the_start_of_the_batch_after_a_kill_too(killed: Runs) -> None:
    killed.assert_like_the_whole("between_updates")


def test_a_checkpoint_is_seen_whole_or_not_at_all(killed: Runs) -> None:
    assert killed.ends["optimizer_written"]["left"] == [".update-000004.writing", "update-000002"]
    assert killed.ends["before_rename"]["left"] == [".update-000004.writing", "update-000002"]
    assert killed.ends["renamed"]["left"] == ["update-000002", "update-000004"]


@pytest.mark.slow
def test_more_points_and_passes(tmp_path: Path) -> None:
    runs = Runs(tmp_path, MORE)
    for name in MORE:
        runs.assert_like_the_whole(name)
