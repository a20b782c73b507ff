"""Real recorded runs are trained on: a published agent, SmolLM2 in gyre's engine, trees, three updates."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from gyre.elastic.engine.models.smollm2 import rebuilt
from gyre.elastic.engine.server.app import serve
from gyre.elastic.engine.settings import EngineSettings
from gyre.proxy.log.check import check
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import Trees, read_trees
from gyre.treebuilder.verify import verify_trees
from tests.harnesses.agents import mini_swe_agent
from tests.proxy.running import RunningProxy
from tests.test_engine import GYRE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = {"keeper": "Say in one sentence what a lighthouse keeper does.", "sea": "Name two seas."}
EXECUTIONS = [(task, number) for task in TASKS for number in range(2)]
TOLERANCE = 1e-4
UPDATES = 3
CONFIG = f"""
[train]
epochs = {UPDATES}
groups_per_batch = {len(TASKS)}

[train.optimizer]
lr = 1e-5
"""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trees]:
    """Four executions of mini-swe-agent; each round of its conversation is sampled by the model."""
    folder = tmp_path_factory.mktemp("recorded")
    with serve(EngineSettings(model="smollm2", threads=2)) as engine:
        with RunningProxy(folder / "logs", engine.url) as proxy:
            for task, number in EXECUTIONS:
                home, url = folder / f"{task}-{number}", f"{proxy.url}/x/{task}-{number}"
                # The model calls no tool, so the agent gives up after some answers.
                short = ("-c", "mini.yaml", "-c", "model.model_kwargs.max_tokens=40")
                ran = mini_swe_agent(home, url, *short, model="smollm2").run(TASKS[task], timeout=600)
                assert "RepeatedFormatError" in ran.out, ran
        assert check(folder / "logs", engine=engine.url).findings == []
    for task, number in EXECUTIONS:
        score = [GYRE, "log", "score", str(folder / "logs"), "--execution", f"{task}-{number}"]
        subprocess.run([*score, "--score", str(number), "--group", task], check=True, capture_output=True)
    assert build_trees(folder / "logs", folder / "trees", strict=True).ok
    assert verify_trees(folder / "trees") == []
    yield read_trees(folder / "trees")


def recomputed(model: Any, trees: Trees) -> tuple[np.ndarray, np.ndarray]:
    """(recorded, recomputed) log-probabilities of every target of every path.

    By transformers alone and packed otherwise than gyre does: all paths of an execution as one batch,
    padded on the left.
    """
    recorded, found = [], []
    for _, tree in trees:
        paths = [tree.path(each.leaf_node) for each in tree.trajectories]
        ids = [np.concatenate([node.token_ids for node in path]) for path in paths]
        width = max(map(len, ids))
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in ids])
        batch = torch.tensor([[0] * (width - len(row)) + row.tolist() for row in ids])
        places = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            logits = model(batch, attention_mask=mask, position_ids=places, use_cache=False).logits
        each = logits[:, :-1].log_softmax(-1).gather(2, batch[:, 1:, None])[..., 0]
        for row, path in enumerate(paths):
            for node in (node for node in path if node.target):
                assert node.logprobs is not None
                start = width - len(ids[row]) + node.depth - 1
                found.append(each[row, start : start + len(node.token_ids)].numpy())
                recorded.append(node.logprobs)
    return np.concatenate(recorded), np.concatenate(found)


def test_another_forward_pass_finds_what_was_recorded_and_other_weights_do_not(trees: Trees) -> None:
    model = AutoModelForCausalLM.from_pretrained(rebuilt(lambda _: None), dtype=torch.float32)
    recorded, found = recomputed(model, trees)
    assert len(recorded) == sum(tree.kept_targets for _, tree in trees) > 300
    assert np.abs(recorded - found).max() <= TOLERANCE
    with torch.no_grad():
        model.model.layers[3].mlp.down_proj.weight *= 1.01
    _, wrong = recomputed(model, trees)
    assert np.abs(recorded - wrong).max() > 10 * TOLERANCE


def test_three_updates_from_end_to_end(trees: Trees, tmp_path: Path) -> None:
    config, out = tmp_path / "run.toml", tmp_path / "run"
    config.write_text(CONFIG)
    command = [GYRE, "train", "--trees", str(trees.path), "--model", "smollm2", "--out", str(out)]
    done = subprocess.run([*command, "--config", str(config), "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == UPDATES
    # The trainer's own forward pass, packed as trees, on the weights that sampled.
    assert lines[0]["behaviour/gap_max"] <= TOLERANCE
    assert all(np.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)
    assert lines[0]["tokens/tree"] < lines[0]["tokens/flat"] / 2
    before = AutoModelForCausalLM.from_pretrained(rebuilt(lambda _: None), dtype=torch.float32)
    after = AutoModelForCausalLM.from_pretrained(out / "latest" / "model", dtype=torch.float32)
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)
