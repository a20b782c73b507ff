"""Several processes come to what a single one does, however unequal their shares."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gyre.trainer.pack.segments import segments
from gyre.trainer.settings import Dtype
from gyre.trainer.update.ranks import OneProcess
from tests.trainer.update.shared import CASES, MORE, Case, batch, compute, divide
from tests.trainer.update.torchrun import begin, finish

QUICK = [case for case in CASES if case.deal == "uneven" or case.name.startswith("dfs-none")]


def run(folder: Path, cases: list[Case]) -> None:
    names = [case.name for case in cases]
    code, output = finish(begin("-m", "tests.trainer.update.shared", folder, *names))
    assert code == 0, output


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def assert_same(folder: Path, case: Case, tolerance: float) -> None:
    got = load_file(folder / f"{case.name}.safetensors")
    wanted = compute(case, OneProcess())
    assert got.keys() == wanted.keys()
    assert got.pop("clipped").tolist() == wanted.pop("clipped").tolist(), case.name
    for name, tensor in wanted.items():
        assert difference(got[name], tensor) <= tolerance, f"{case.name}: {name}"


def test_the_shares_are_unequal() -> None:
    packed = batch()
    sizes = [[len(segments(piece)) for piece in divide(packed, "uneven", rank)] for rank in range(2)]
    assert sizes == [[1], [29]]
    assert divide(packed, "none", 0) == []
    assert [len(divide(packed, "many", rank)) for rank in range(2)] == [1, 2]


def test_two_processes_have_the_gradients_and_clips_of_one(tmp_path: Path) -> None:
    run(tmp_path, QUICK)
    for case in QUICK:
        assert_same(tmp_path, case, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_so_they_have_for_every_pass_model_and_choice_of_parameters(tmp_path: Path) -> None:
    cases = [case for case in CASES + MORE if case not in QUICK]
    run(tmp_path, cases)
    for case in cases:
        # Layers are gathered in bf16, norms included: one process keeps those in fp32.
        assert_same(tmp_path, case, 1e-5 if case.dtype is Dtype.FP32 else 0.2)
