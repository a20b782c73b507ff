"""What processes that torchrun started say to each other, and what others hear of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.update.torchrun import begin, finish


@pytest.mark.slow
def test_all_hear_the_main_process_and_their_programs_nothing_of_torchrun(tmp_path: Path) -> None:
    """An engine with processes of its own would take its environment for theirs."""
    code, output = finish(begin("-m", "tests.trainer.update.telling", tmp_path))
    assert code == 0, output
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["heard"] == [[0, "first"], [0, "second"]]
        assert "PATH" in found["names"]
        told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        assert [name for name in found["names"] if name in told or name.startswith("TORCHELASTIC")] == []
