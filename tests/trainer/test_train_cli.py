"""`gyre train` from the command line: what it prints, writes and refuses, and how it is stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gyre.cli import output
from gyre.cli.main import main
from gyre.elastic.engine.models.tiny import make_tiny, save_tiny
from tests.trainer.data.folders import stored
from tests.trainer.models import tiny_model
from tests.trainer.update.trees import trees_folder
from tests.trees.export.builders import Folder

CONFIG = """
[train]
pass = "packed"
groups_per_batch = 2
[train.optimizer]
lr = 1e-3
[train.checkpoint]
every = 1
"""


class Ground:
    """Trees, a model and a configuration."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trees = trees_folder(root / "trees", alike=(3,))
        self.model = root / "model"
        save_tiny(self.model)
        self.config = root / "train.toml"
        self.config.write_text(CONFIG)

    def arguments(self, out: Path, **replaced: object) -> list[str]:
        options = {"trees": self.trees, "model": self.model, "out": out, "config": self.config} | replaced
        return ["train", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("ground"))


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def files(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Its message: exit code 1, nothing on stdout, no traceback."""
    assert run(*arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return shown.err


def test_it_trains_and_says_where_the_model_is(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(*ground.arguments(out), "--json") == 0
    shown = capsys.readouterr()
    told = json.loads(shown.out)
    assert (told["schema"], told["updates"], told["total_updates"], told["interrupted"]) == (1, 2, 2, False)
    assert Path(told["model"]) == out / "checkpoints" / "update-000002" / "model"
    assert (out / "latest").resolve() == Path(told["checkpoint"]).resolve()
    assert told["last"]["targets"] > 0
    assert [line.split(" · ")[0] for line in shown.err.splitlines()] == ["update 1/2", "update 2/2"]
    trained = AutoModelForCausalLM.from_pretrained(told["model"]).state_dict()
    before = make_tiny().model.state_dict()
    assert trained.keys() == before.keys()
    assert not torch.equal(trained["model.norm.weight"], before["model.norm.weight"])
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2]
    about = json.loads((out / "run.json").read_text())
    assert about["trees"] == str(ground.trees)
    assert set(about["inputs"]) == {"trees", "model"}
    assert {"gyre", "torch", "transformers", "revision"} <= set(about["versions"])
    assert "lr = 0.001" in (out / "train.toml").read_text()


def test_the_same_as_a_table_and_quietly(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*ground.arguments(tmp_path / "out"), "--max-updates", "1", "--quiet") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "latest/model" in shown.out and "1 of 1" in shown.out


def test_what_is_next_is_said(ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, config = tmp_path / "an out", tmp_path / "wide.toml"
    wild = CONFIG.replace("groups_per_batch = 2", "groups_per_batch = 4\nupdates_per_batch = 2")
    config.write_text(wild)
    assert run(*ground.arguments(out, config=config), "--max-updates", "2") == 0
    first, second, *rest = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"update 1/2 · reward 0\.5 · loss \S+ · gradient \S+ · \S+ tokens/s", first)
    assert re.search(r"· ratio 0\.\d{4} to \d\.\d{4} · clipped \d+% · \S+ tokens/s$", second)
    assert rest == [
        f"serve it: gyre engine --model '{out}/latest/model'",
        f"watch it: tensorboard --logdir '{out}/tensorboard'",
    ]
    assert run(*ground.arguments(out, config=config), "--max-updates", "1", "--resume") == 0
    shown = capsys.readouterr().out
    assert "nothing left to do" in shown and "of 1" not in shown


def test_help_names_the_table_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    assert "`train`" in capsys.readouterr().out


def test_a_run_is_extended_and_a_folder_that_holds_one_is_not_overwritten(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(*ground.arguments(out), "--max-updates", "1") == 0
    capsys.readouterr()
    before = files(out)
    told = refusal(capsys, *ground.arguments(out))
    assert "is not empty, and nothing in it is overwritten" in told and "`--resume`" in told
    assert files(out) == before
    assert run(*ground.arguments(out), "--resume", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["updates"] == 2
    assert "`max_updates` is None from here on; it was 1" in shown.err
    assert run(*ground.arguments(out), "--resume", "--json") == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["updates"], again["last"]) == (2, None)


def test_a_run_is_not_resumed_as_another(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(*ground.arguments(out), "--max-updates", "1") == 0
    capsys.readouterr()
    before = files(out / "checkpoints")
    other = tmp_path / "other.toml"
    other.write_text(CONFIG.replace("groups_per_batch = 2", "groups_per_batch = 3"))
    told = refusal(capsys, *ground.arguments(out, config=other), "--resume")
    assert "started with `groups_per_batch` = 2, not 3" in told
    trees = trees_folder(tmp_path / "trees", groups=2)
    told = refusal(capsys, *ground.arguments(out, trees=trees), "--resume")
    assert "started with other trees" in told
    told = refusal(capsys, *ground.arguments(out, model=out / "latest" / "model"), "--resume")
    assert "started with other model" in told
    assert files(out / "checkpoints") == before


def test_a_dry_run_writes_nothing(ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(ground.root)
    assert run(*ground.arguments(tmp_path / "out"), "--dry-run") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("[train]\n")
    for text in ("groups_per_batch = 2", "without variance", "saved", "optimizer"):
        assert text in shown.out
    rows = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", shown.out, re.MULTILINE))
    assert rows["batches of an epoch"] == "2, of up to 2 groups"
    assert (rows["updates"], rows["pass"], rows["device"]) == (
        "2",
        "packed",
        "cuda" if torch.cuda.is_available() else "cpu",
    )
    assert rows["parameters"] == rows["of them trained"] == f"{parameters_of_tiny():,}"
    assert " 0 MiB" not in shown.out and "logits" in rows
    assert run(*ground.arguments(tmp_path / "out"), "--dry-run", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["updates"], told["data"]["alike"]) == (1, 2, 1)
    assert told["settings"]["optimizer"]["lr"] == 1e-3
    assert told["tokens_per_epoch"]["shared"] > 0.3
    assert told["model"]["parameters"] == parameters_of_tiny()
    assert files(ground.root) == before
    assert not (tmp_path / "out").exists()


def test_a_run_on_a_gpu_is_planned_without_one(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "gpu.toml"
    config.write_text('[train]\ndevice = "cuda"\n')
    assert run(*ground.arguments(tmp_path / "out", config=config), "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out)["device"] == "cuda"


def parameters_of_tiny() -> int:
    return sum(own.numel() for own in make_tiny().model.parameters())


def test_nothing_to_go_on_with(ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no run in" in refusal(capsys, *ground.arguments(tmp_path / "out"), "--resume")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ bad input


def test_bad_inputs_are_told_and_write_nothing(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[train]\ngroups_per_bach = 2\n")
    frozen = tmp_path / "frozen.toml"
    frozen.write_text('[train]\npass = "packed"\ntrain = ["*.q_porj.*"]\n')
    cases: dict[str, dict[str, object]] = {
        "no folder of trees": {"trees": tmp_path / "empty"},
        "there are no executions": {"trees": stored(tmp_path / "none", Folder())},
        "another tokenizer or vocabulary": {"trees": trees_folder(tmp_path / "vocab", vocab=50_000)},
        "no such model": {"model": tmp_path / "nowhere"},
        "has no config.json": {"model": tmp_path / "empty"},
        "did you mean `train.groups_per_batch`?": {"config": wrong},
        "self_attn.q_proj": {"config": frozen},
    }
    for message, replaced in cases.items():
        out = tmp_path / "out"
        assert message in refusal(capsys, *ground.arguments(out, **replaced)), message
        assert not out.exists(), message


def test_trees_of_another_model_are_told_before_anything_is_trained(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "stranger", seed=5)
    told = refusal(capsys, *ground.arguments(tmp_path / "out", model=tmp_path / "stranger"))
    assert "sampled by another model or tokenizer" in told
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert run(*ground.arguments(tmp_path / "out"), "--max-updates", "1") == 0


def test_a_reference_model_has_to_know_the_ids_too(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_model().save_pretrained(tmp_path / "small")
    capsys.readouterr()
    config = tmp_path / "reference.toml"
    for reference, message in (
        (tmp_path / "small", "the reference model's vocabulary is 97 ids"),
        (tmp_path / "nowhere", "no such model"),
    ):
        config.write_text(CONFIG + f'[train.loss]\nkl = 0.1\nreference = "{reference}"\n')
        for more in ([], ["--dry-run"]):
            told = refusal(capsys, *ground.arguments(tmp_path / "out", config=config), *more)
            assert message in told
            assert not (tmp_path / "out").exists()


def test_wrong_usage_is_exit_code_2(ground: Ground, tmp_path: Path) -> None:
    assert run("train", "--trees", str(ground.trees)) == 2
    assert run(*ground.arguments(tmp_path / "out"), "--max-updates", "0") == 2


def test_a_run_that_is_not_finite_any_more_stops_with_a_checkpoint(
    ground: Ground, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "wild.toml"
    config.write_text(
        '[train]\npass = "packed"\nepochs = 9\nmax_bad_updates = 2\n[train.optimizer]\nlr = 1e30\n'
    )
    out = tmp_path / "out"
    told = refusal(capsys, *ground.arguments(out, config=config))
    assert "were not finite in 2 updates in a row" in told and "hint: " in told
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["skipped"] for line in lines] == ["no", "not_finite", "not_finite"]
    assert (out / "latest").resolve().name == "update-000003"


# --------------------------------------------------------------------------------------------------- signals


def test_ctrl_c_leaves_a_checkpoint_from_which_the_run_goes_on(ground: Ground, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = tmp_path / "long.toml"
    config.write_text(
        CONFIG.replace("[train]\n", "[train]\nepochs = 1000\n").replace("every = 1", "every = 0")
    )
    command = [sys.executable, "-m", "gyre.cli.main", *ground.arguments(out, config=config), "--json"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        until(lambda: lines_in(out / "metrics.jsonl") >= 2)
        process.send_signal(signal.SIGINT)
        told, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    summary: dict[str, Any] = json.loads(told)
    assert summary["interrupted"] is True
    assert summary["updates"] == lines_in(out / "metrics.jsonl")
    assert (out / "latest").resolve().name == f"update-{summary['updates']:06d}"
    assert b"stopping" in said and b"Traceback" not in said
    more = ["--resume", "--max-updates", str(summary["updates"] + 1)]
    assert run(*ground.arguments(out, config=config), *more) == 0
    assert lines_in(out / "metrics.jsonl") == summary["updates"] + 1


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(true: Any, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)
