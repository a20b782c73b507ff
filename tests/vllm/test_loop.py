"""The loop with a real vLLM: three batches of a small agent's work, and three of Claude Code's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from gyre.elastic.engine.settings import Dtype
from gyre.elastic.engine.weights.digest import digest_of_folder
from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.trainer.live.settings import HarnessTable, RunSettings
from gyre.trainer.live.watch import LiveWatch
from gyre.trainer.loop import run
from gyre.trainer.rollout.harness import Harness
from gyre.trainer.update.metrics import read_lines
from gyre.treebuilder.verify import verify_trees
from tests.harnesses.programs import program
from tests.trainer.live.small_run import small_run
from tests.trainer.live.soundness import require_sound
from tests.vllm.install import model, vllm
from tests.vllm.served import engine_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
BATCHES = 3


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def with_vllm(root: Path, *flags: str, length: int, **changes: Any) -> RunSettings:
    settings, replace = small_run(root, batches=BATCHES, **changes), msgspec.structs.replace
    python = vllm()
    optimizer = replace(settings.train.optimizer, lr=1e-5)
    return replace(
        settings,
        model=str(model(python)),
        engine=engine_table(python, root, *flags, length=length),
        train=replace(settings.train, optimizer=optimizer, token_budget=2048),
    )


def batches_of(root: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(root / "out" / "metrics.jsonl") if line["kind"] == "batch"]


def test_three_batches_are_trained_of_what_vllm_sampled(tmp_path: Path) -> None:
    """Each with the weights that the batch before it made."""
    settings = with_vllm(tmp_path, length=2048)
    outcome = run(settings, tmp_path / "out")
    assert (outcome.batches, outcome.updates, outcome.interrupted) == (BATCHES, BATCHES, False)
    require_sound(settings)
    assert all(len(set(group["scores"])) > 1 for line in batches_of(tmp_path) for group in line["trained"])
    calls = read_log(tmp_path / "out" / "logs").calls.to_pylist()
    trained = [row for row in calls if row["execution_id"].startswith("g0")]
    assert {row["capture_quality"] for row in trained} == {"exact"}
    assert {version_of(row) for row in trained} == {
        (group, str(group // settings.train.groups_per_batch)) for group in range(6)
    }


def version_of(row: dict[str, Any]) -> tuple[int, str]:
    """(number of the group, version that sampled the call)"""
    (span,) = row["version_spans"]
    return int(row["execution_id"][1:7]), span["version"]


@pytest.mark.harness
def test_claude_code_that_does_no_task_is_told_of_and_changes_no_weight(tmp_path: Path) -> None:
    """SmolLM2 calls no tool, so nothing is ever written: all scores are 0."""
    settings = with_vllm(
        *(tmp_path, "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        length=8192,
        groups=1,
        size=2,
        episodes=1,
    )
    harness = HarnessTable(
        preset=Harness.CLAUDE_CODE,
        program=str(program("claude")),
        command=("--bare",),
        env={"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "40"},
    )
    said: list[str] = []
    settings, watch = msgspec.structs.replace(settings, harness=harness), LiveWatch(tell=said.append)
    outcome = run(settings, tmp_path / "out", watch=watch)
    assert (outcome.batches, outcome.updates) == (BATCHES, BATCHES)
    assert "for 3 batches (all 2 of the last batch are 0): nothing is learned" in " ".join(said)
    lines = read_lines(tmp_path / "out" / "metrics.jsonl")
    assert [line["skipped"] for line in lines if line["kind"] == "update"] == ["no_variance"] * BATCHES
    assert [line for line in lines if line["kind"] == "publication"] == []
    weights = (Path(settings.model), tmp_path / "out" / "final")
    assert len({digest_of_folder(folder, Dtype.FP32) for folder in weights}) == 1

    calls = read_log(tmp_path / "out" / "logs").calls.to_pylist()
    trained = [row for row in calls if row["execution_id"].startswith("g0")]
    assert len({row["execution_id"] for row in trained}) == 2 * BATCHES
    assert {(row["wire"], row["capture_quality"], version_of(row)[1]) for row in trained} == {
        ("messages", "exact", "0")
    }
    assert check(tmp_path / "out" / "logs").ok
    assert verify_trees(tmp_path / "out" / "trees") == []
