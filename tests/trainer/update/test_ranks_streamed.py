"""Several processes compute groups as they come, and come to what a single one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gyre.trainer.update.ranks import OneProcess
from tests.trainer.update.streaming import updated
from tests.trainer.update.test_ranks import difference
from tests.trainer.update.torchrun import begin, finish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(folder: Path, what: str, name: str) -> dict[str, torch.Tensor]:
    code, output = finish(begin("-m", "tests.trainer.update.streaming", folder, what, name))
    assert code == 0, output
    return load_file(folder / f"{what}-{name}.safetensors")


@pytest.mark.parametrize("name", ["flat", "packed", "dfs"])
def test_gradients_of_groups_add_up_over_processes(tmp_path: Path, name: str) -> None:
    found, wanted = run(tmp_path, "nothing", name), updated(name, "nothing", OneProcess())
    for parameter, tensor in wanted.items():
        assert difference(found[parameter], tensor) <= 1e-6, parameter


def test_all_compute_anew_when_the_memory_of_one_ends(tmp_path: Path) -> None:
    found, wanted = run(tmp_path, "memory", "dfs"), updated("dfs", "nothing", OneProcess())
    for parameter, tensor in wanted.items():
        assert difference(found[parameter], tensor) <= 1e-6, parameter
