"""The whole product: a model gets better at a task, through real agents, a proxy, a log and trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from gyre.trainer.live.config import load_run
from gyre.trainer.live.watch import LiveOutcome
from gyre.trainer.loop import run

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart"


@pytest.mark.timeout(400)
def test_the_quickstart_learns_in_a_few_updates(tmp_path: Path) -> None:
    """`demo.toml`: less of `tiny.toml`, and a bar to match."""
    outcome = trained(tmp_path, "demo.toml")
    before, greedy_before, after, greedy_after = [one.mean_score or 0.0 for one in outcome.evaluations]
    assert greedy_before <= 0.25 and before <= 0.50
    assert after >= before + 0.15
    assert greedy_after >= greedy_before + 0.30


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_quickstart_learns(tmp_path: Path, seed: int) -> None:
    outcome = trained(tmp_path, seed=seed)
    before, greedy_before, after, greedy_after = [one.pass_rate or 0.0 for one in outcome.evaluations]
    assert 0.10 <= before <= 0.40 and greedy_before <= 0.15
    assert after >= 0.80 and greedy_after >= 0.90


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_shuffled_advantages_do_not_teach(tmp_path: Path) -> None:
    outcome = trained(tmp_path, shuffle=True)
    before, _, after, _ = [one.pass_rate or 0.0 for one in outcome.evaluations]
    assert after <= before + 0.10


def trained(out: Path, file: str = "tiny.toml", *, seed: int = 0, shuffle: bool = False) -> LiveOutcome:
    torch.set_num_threads(1)
    subprocess.run([sys.executable, QUICKSTART / "tasks.py", "tiny"], check=True, stdout=subprocess.DEVNULL)
    settings, replace = load_run(QUICKSTART / file, {"out": str(out / "run")}), msgspec.structs.replace
    settings = replace(
        settings,
        evaluation=replace(settings.evaluation, greedy=True),
        train=replace(settings.train, seed=seed, shuffle_advantages=shuffle),
    )
    return run(settings, out / "run")
