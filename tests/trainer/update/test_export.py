"""The final model: a folder of its own that is whole or not there."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from gyre.elastic.engine.models.tiny import save_tiny
from gyre.trainer.errors import TrainError
from gyre.trainer.update.export import export
from gyre.trainer.update.folder import RunFolder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    place = tmp_path / "checkpoints" / "update-000001"
    save_tiny(place / "model")
    return place


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_can_be_loaded_and_changed_without_harm_to_the_checkpoint(saved: Path, tmp_path: Path) -> None:
    export(saved, tmp_path / "final")
    assert names(tmp_path / "final") == names(saved / "model")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "final").config.model_type == "qwen3"
    (tmp_path / "final" / "config.json").write_text("changed")
    assert (saved / "model" / "config.json").read_text() != "changed"
    assert names(tmp_path) == ["checkpoints", "final"]


def test_weights_are_not_written_twice(saved: Path, tmp_path: Path) -> None:
    export(saved, tmp_path / "final")
    assert (tmp_path / "final" / "model.safetensors").samefile(saved / "model" / "model.safetensors")


def test_an_earlier_one_is_replaced(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "old.json").touch()
    (tmp_path / ".final.writing").mkdir()
    export(saved, tmp_path / "final")
    assert names(tmp_path / "final") == names(saved / "model")
    assert names(tmp_path) == ["checkpoints", "final"]


def test_a_full_disk_leaves_the_earlier_one(saved: Path, tmp_path: Path) -> None:
    export(saved, tmp_path / "final")
    (saved / "model" / "large.json").write_bytes(bytes(1 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, hard))
    try:
        with pytest.raises(TrainError, match="could not be written to"):
            export(saved, tmp_path / "final")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(tmp_path) == ["checkpoints", "final"]
    assert "large.json" not in names(tmp_path / "final")


def test_what_a_kill_left_is_swept(saved: Path, tmp_path: Path) -> None:
    for name in (".final.writing", ".final.removing"):
        (tmp_path / name / "deep").mkdir(parents=True)
    with RunFolder(tmp_path).locked():
        assert names(tmp_path) == ["checkpoints", "latest", "train.lock"]
