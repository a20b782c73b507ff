"""TRL and verl themselves read what is exported, with the code of docs/exports.md.

Needs pip and a package index, and a minute for the environment when it is made. torch is installed
first, by its version alone: where a wheel for the CPU is at hand pip takes that one.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from tests.trees.export.builders import usual
from tests.trees.export.docs import code_of
from tests.trees.export.load import load, trained
from tests.trees.export.venvs import python_with

LOADERS = Path(__file__).parent / "loaders"
PINS = LOADERS / "requirements.txt"
# The first of them makes the environment.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def read_by(fmt: Format, out: Path) -> dict[str, Any]:
    """What the loader says of an export of the usual trees."""
    python = python_with("trainers", ["torch==2.13.0"], ["--no-deps", "-r", str(PINS)], pins=PINS.read_text())
    export_trees(usual(), fmt, out / "rows")
    (out / "code_of_the_docs.py").write_text(code_of(fmt))
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hf"), "TRL_EXPERIMENTAL_SILENCE": "1"}
    done = subprocess.run(
        [str(python), str(LOADERS / f"{fmt}_reads.py"), "rows"],
        cwd=out,
        env=os.environ | quiet | {"PYTHONPATH": str(out)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_trl_trains_each_target_once_and_shares_the_prefixes_again(tmp_path: Path) -> None:
    told = read_by(Format.TRL, tmp_path)
    rows = load(Format.TRL, tmp_path / "rows")
    expected = [
        (token, logprob, row["advantage"]) for row in rows for token, logprob in trained(Format.TRL, row)
    ]
    found = [tuple(target) for target in told["async"]["targets"]]
    assert found == [pytest.approx(target, abs=1e-6) for target in sorted(expected)]
    assert (told["async"]["samples"], told["async"]["row_tokens"]) == (8, 48)
    # Of the rows' 48 tokens: the tree's, and one more for each branch.
    assert told["async"]["tree_tokens"] == 23
    assert sorted(told["grpo"]["trained"]) == sorted(token for token, _, _ in expected)
    assert told["grpo"]["reward"] == pytest.approx(sum(row["reward"] for row in rows) / 8)
    assert abs(told["grpo"]["loss"]) < 10


def test_verl_computes_our_advantages_from_the_last_rows(tmp_path: Path) -> None:
    told = read_by(Format.VERL, tmp_path)
    rows = load(Format.VERL, tmp_path / "rows")
    assert told["keys"] == [row["key"] for row in rows]
    pairs = [pair for row in rows for pair in trained(Format.VERL, row)]
    assert list(zip(told["trained"], told["logprobs"], strict=True)) == pairs
    assert told["rewards"] == [row["reward_score"] for row in rows]
    assert told["steps"] == [row["extra_fields"]["min_global_steps"] for row in rows]
    ours = [row["extra_fields"]["advantage"] for row in rows]
    # In a group of one verl takes the score itself.
    ours[-1] = rows[-1]["reward_score"]
    assert told["advantages"] == pytest.approx(ours, rel=1e-3)
