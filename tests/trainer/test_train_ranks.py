"""`gyre train` in two processes: one writes, all stop together, and a resumed run has the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from gyre.elastic.engine.models.tiny import save_tiny
from tests.trainer.update.trees import trees_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CONFIG = """
[train]
pass = "{way}"
epochs = {epochs}
groups_per_batch = 2
updates_per_batch = 2
token_budget = 20
device = "cpu"
[train.optimizer]
lr = 1e-3
schedule = "{schedule}"
[train.checkpoint]
every = 0
"""


def command(root: Path, out: Path, way: str, *, epochs: int = 1, schedule: str = "constant") -> list[str]:
    config = root / f"{way}-{epochs}.toml"
    config.write_text(CONFIG.format(way=way, epochs=epochs, schedule=schedule))
    options = {"trees": root / "trees", "model": root / "model", "out": out, "config": config}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    return [*run, sys.executable, "-m", "gyre.cli.main", "train", *words, "--json"]


def start(words: list[str]) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    trees_folder(place / "trees")
    save_tiny(place / "model")
    return place


@pytest.mark.parametrize("way", ["packed", "dfs"])
def test_a_resumed_run_of_two_has_the_bits_of_one_that_went_through(
    root: Path, tmp_path: Path, way: str
) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for out, more in ((whole, []), (halves, ["--max-updates", "3"]), (halves, ["--resume"])):
        with start([*command(root, out, way), *more]) as process:
            told, said = process.communicate(timeout=150)
        assert process.returncode == 0, said
        summary = json.loads(told)
        assert summary["interrupted"] is False
    assert (summary["updates"], summary["total_updates"]) == (4, 4)
    lines = [json.loads(line) for line in (halves / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2, 3, 4]
    for file in ("model/model.safetensors", "optimizer.safetensors"):
        one, other = load_file(whole / "latest" / file), load_file(halves / "latest" / file)
        assert one.keys() == other.keys()
        assert all(bool((one[name] == other[name]).all()) for name in one), file
    before = load_file(root / "model" / "model.safetensors")
    assert before.keys() == load_file(whole / "latest" / "model" / "model.safetensors").keys()


def test_an_interrupt_reaches_all_and_leaves_a_checkpoint(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with start(command(root, out, "dfs", epochs=1000)) as process:
        end = time.monotonic() + 150
        while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_bytes().count(b"\n") < 2:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert process.returncode != 0
    updates = (out / "metrics.jsonl").read_bytes().count(b"\n")
    assert (out / "latest").resolve().name == f"update-{updates:06d}", said


def test_an_error_that_all_meet_is_told_once(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("")
    with start(command(root, out, "dfs")) as process:
        told, said = process.communicate(timeout=150)
    assert (process.returncode, told) == (1, "")
    assert said.count("error: `") == 1
