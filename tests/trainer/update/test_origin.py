"""What a run was made of is told apart by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from gyre.trainer.update.origin import inputs
from gyre.treebuilder.store.folder import MANIFEST


def model(folder: Path, weights: np.ndarray) -> str:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    save_file({"w": weights}, folder / "model.safetensors")
    return str(folder)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / MANIFEST).write_text("{}")
    return tmp_path / "trees"


@pytest.mark.parametrize("place", [0, 999_999, 2_345_678, 3_999_999])
def test_weights_of_the_same_sizes_are_told_apart(trees: Path, tmp_path: Path, place: int) -> None:
    """Training changes whole matrices: here a twentieth of them."""
    before = np.zeros(4_000_000, np.float32)
    after = before.copy()
    after[max(0, place - 200_000) : place + 1] = 1e-3
    first, same, other = (
        model(tmp_path / name, own) for name, own in (("a", before), ("b", before), ("c", after))
    )
    assert inputs(trees, first) == inputs(trees, same)
    assert inputs(trees, first)["model"] != inputs(trees, other)["model"]


def test_of_a_small_file_every_byte_counts(trees: Path, tmp_path: Path) -> None:
    base = np.zeros(1_000_000, np.float32)
    found = {inputs(trees, model(tmp_path / "0", base))["model"]}
    for place in (1, 333_333, 999_999):
        own = base.copy()
        own[place] = 1
        found.add(inputs(trees, model(tmp_path / str(place), own))["model"])
    assert len(found) == 4


def test_a_tokenizer_of_the_same_size_is_another(trees: Path, tmp_path: Path) -> None:
    ours, theirs = (model(tmp_path / name, np.zeros(2, np.float32)) for name in "ab")
    assert inputs(trees, ours) == inputs(trees, theirs)
    (Path(theirs) / "tokenizer.json").write_text("[]")
    assert inputs(trees, ours) != inputs(trees, theirs)


def test_a_reference_model_of_its_own_is_an_input(trees: Path, tmp_path: Path) -> None:
    first, second = (model(tmp_path / name, np.full(2, index, np.float32)) for index, name in enumerate("ab"))
    assert set(inputs(trees, "tiny")) == {"trees", "model"}
    found = inputs(trees, "tiny", first)
    assert found.keys() == {"trees", "model", "reference"}
    assert inputs(trees, "tiny", second)["reference"] != found["reference"]
