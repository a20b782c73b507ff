"""`gyre train` in two processes ends where it ends in one, also when their number changes on the way.

With the same number a resumed run has the very bits of one that went through.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gyre.elastic.engine.models.tiny import save_tiny
from gyre.trainer.config import load_config
from gyre.trainer.train import train
from tests.trainer.update.torchrun import begin, finish
from tests.trainer.update.trees import trees_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
[train]
epochs = 2
groups_per_batch = 2
updates_per_batch = 2
token_budget = 20
device = "cpu"
pass = "{name}"

[train.optimizer]
lr = 1e-3

[train.checkpoint]
every = 1
"""


@dataclass(frozen=True, slots=True)
class Runs:
    folder: Path
    name: str
    """Of the pass."""

    @property
    def config(self) -> Path:
        path = self.folder / f"{self.name}.toml"
        path.write_text(CONFIG.format(name=self.name))
        return path

    def options(self, out: str, *more: str) -> list[str]:
        places = ["--trees", str(self.folder / "trees"), "--model", str(self.folder / "model")]
        return [*places, "--config", str(self.config), "--out", str(self.folder / out), *more]

    def in_one(self, out: str, updates: int | None = None, *, resume: bool = False) -> None:
        settings = load_config(self.config, {"max_updates": updates})
        train(self.folder / "trees", str(self.folder / "model"), self.folder / out, settings, resume=resume)

    def in_two(self, out: str, *more: str) -> None:
        code, output = finish(begin("-m", "gyre.cli.main", "train", *self.options(out, *more)))
        assert code == 0, output
        assert (output.count("trained"), "Warning" in output) == (1, False), output

    def weights(self, out: str) -> torch.Tensor:
        """All of the newest checkpoint's, one after the other."""
        return flat(self.folder / out / "latest" / "model")

    def assert_same(self, out: str, whole: str) -> None:
        start, end = flat(self.folder / "model"), self.weights(whole)
        moved = float((end - start).norm())
        assert moved > 0
        assert float((self.weights(out) - end).norm()) <= 1e-5 * moved
        assert updates(self.folder / out) == updates(self.folder / whole)


def flat(model: Path) -> torch.Tensor:
    tensors = load_file(model / "model.safetensors")
    return torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])


def updates(out: Path) -> str:
    return (out / "latest").resolve().name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("two")
    trees_folder(root / "trees")
    save_tiny(root / "model")
    return root


@pytest.mark.parametrize("name", ["packed", "dfs"])
def test_a_run_in_two_processes_ends_where_one_does(folder: Path, name: str) -> None:
    runs = Runs(folder, name)
    runs.in_one(f"one-{name}")
    runs.in_two(f"two-{name}")
    runs.assert_same(f"two-{name}", f"one-{name}")
    files = {path.name for path in (folder / f"one-{name}" / "latest" / "model").iterdir()}
    assert {path.name for path in (folder / f"two-{name}" / "latest" / "model").iterdir()} == files


def test_one_goes_on_where_two_stopped_and_two_where_one_did(folder: Path) -> None:
    runs = Runs(folder, "flat")
    runs.in_one("one")
    runs.in_one("one-two", 3)
    runs.in_two("one-two", "--resume")
    runs.assert_same("one-two", "one")
    runs.in_two("two-one", "--max-updates", "3")
    assert updates(folder / "two-one") == "update-000003"
    runs.in_one("two-one", resume=True)
    runs.assert_same("two-one", "one")


@pytest.mark.parametrize("name", ["packed", "dfs"])
def test_a_resumed_run_of_two_has_the_bits_of_one_that_went_through(folder: Path, name: str) -> None:
    runs = Runs(folder, name)
    runs.in_two(f"whole-{name}")
    runs.in_two(f"halves-{name}", "--max-updates", "3")
    runs.in_two(f"halves-{name}", "--resume")
    for file in ("model/model.safetensors", "optimizer.safetensors"):
        one, other = (load_file(folder / f"{out}-{name}" / "latest" / file) for out in ("whole", "halves"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), file


def test_an_error_that_both_meet_is_told_once(folder: Path) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "mine").touch()
    code, output = finish(begin("-m", "gyre.cli.main", "train", *Runs(folder, "dfs").options("taken")))
    assert (code, output.count("error: `")) == (1, 1), output


def test_ctrl_c_ends_both_with_a_checkpoint(folder: Path) -> None:
    runs = Runs(folder, "dfs")
    run = begin("-m", "gyre.cli.main", "train", *runs.options("stopped"))
    assert run.stdout is not None
    for line in run.stdout:
        if "update 1/" in line:
            break
    run.send_signal(signal.SIGINT)
    code, output = finish(run)
    assert code != 0
    assert "interrupted" in output, output
    newest = updates(folder / "stopped")
    runs.in_one("stopped", resume=True)
    assert newest < updates(folder / "stopped")
