"""One of several processes is out of memory, or has an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from gyre.trainer.update.ranks import OneProcess
from tests.trainer.update.failing import updated
from tests.trainer.update.test_ranks import difference
from tests.trainer.update.torchrun import begin, finish

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def run(folder: Path, what: str, name: str) -> tuple[int, str]:
    return finish(begin("-m", "tests.trainer.update.failing", folder, what, name))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_dfs_is_done_again_by_all_when_one_is_out_of_memory(tmp_path: Path, where: str) -> None:
    code, output = run(tmp_path, where, "dfs")
    assert code == 0, output
    found, wanted = load_file(tmp_path / f"{where}-dfs.safetensors"), updated("dfs", "nothing", OneProcess())
    for name, tensor in wanted.items():
        assert difference(found[name], tensor) <= 1e-6, name


def test_sharded_passes_say_what_to_do_and_all_end(tmp_path: Path) -> None:
    code, output = run(tmp_path, "backward", "packed")
    assert code != 0
    assert "memory does not suffice for `token_budget` = 40" in output
    assert "--resume" in output
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["flat", "dfs"])
def test_an_error_in_one_ends_all(tmp_path: Path, name: str) -> None:
    code, output = run(tmp_path, "error", name)
    assert code != 0
    assert "as planted" in output
    assert not any(tmp_path.iterdir())
