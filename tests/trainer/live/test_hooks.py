"""W&B and trackio, as small modules that keep what they are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.errors import ConfigError
from gyre.trainer.errors import TrainError
from gyre.trainer.live.hooks import Hooks, hooks, require_trackers
from gyre.trainer.live.settings import ReportTable

FAKE = """
import json, os
class Run:
    def __getattr__(self, name):
        def told(*args, **kwargs):
            if name == os.environ.get("FAKE_FAILS"):
                raise ConnectionError("the server\\nis gone")
            print("chatter of the tracker")
            with open(os.environ["FAKE_TOLD"], "a") as file:
                file.write(json.dumps([__name__, name, args, kwargs]) + "\\n")
            return self
        return told
def init(**kwargs):
    return Run().init(**kwargs)
def finish():
    Run().finish()
"""


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """What both were told, call by call."""
    for name in ("wandb", "trackio"):
        (tmp_path / f"{name}.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FAKE_TOLD", str(tmp_path / "told"))
    yield tmp_path / "told"
    for name in ("wandb", "trackio"):
        sys.modules.pop(name, None)


def calls(told: Path, module: str) -> list[list[Any]]:
    every = [json.loads(line) for line in told.read_text().splitlines()] if told.exists() else []
    return [call[1:] for call in every if call[0] == module]


def start(report: ReportTable, warnings: list[str]) -> Any:
    return hooks(report, name="tiny", identity="a1b2", config={"seed": 7}, warn=warnings.append)


def test_wandb_is_told_numbers_by_update_and_goes_on_with_the_run(told: Path) -> None:
    with start(ReportTable(wandb="agents"), []) as made:
        made.log({"loss": 0.5}, 3)
    begun = {"project": "agents", "name": "tiny", "id": "a1b2", "resume": "allow", "config": {"seed": 7}}
    assert calls(told, "wandb") == [
        ["init", [], begun],
        ["define_metric", ["update"], {}],
        ["define_metric", ["*"], {"step_metric": "update"}],
        ["log", [{"loss": 0.5, "update": 3}], {}],
        ["finish", [], {}],
    ]
    assert calls(told, "trackio") == []


def test_trackio_is_told_numbers_by_update_and_goes_on_with_the_run(told: Path) -> None:
    with start(ReportTable(trackio="agents"), []) as made:
        made.log({"loss": 0.5}, 3)
    (_, _, begun), *rest = calls(told, "trackio")
    assert (begun["project"], begun["name"], begun["resume"]) == ("agents", "tiny-a1b2", "allow")
    assert rest == [["log", [{"loss": 0.5}], {"step": 3}], ["finish", [], {}]]


def test_who_asks_for_none_imports_none(told: Path) -> None:
    with start(ReportTable(), []) as made:
        made.log({"loss": 0.5}, 3)
    assert not {"wandb", "trackio"} & set(sys.modules)
    assert not told.exists()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_one_that_is_not_installed_is_named_with_the_command_that_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [])
    report = ReportTable(**{name: "agents"})
    with pytest.raises(ConfigError, match=f"needs the package `{name}`") as caught:
        require_trackers(report)
    assert f"pip install {name}" in caught.value.hint
    with pytest.raises(ConfigError), start(report, []):
        pass


def test_one_that_does_not_start_ends_the_run_before_it_begins(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", "init")
    with (
        pytest.raises(
            TrainError, match="wandb does not start: ConnectionError: the server is gone"
        ) as caught,
        start(ReportTable(wandb="agents"), []),
    ):
        pass
    assert "[report] wandb" in caught.value.hint


def test_one_that_fails_is_told_of_once_and_the_other_goes_on(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    with start(ReportTable(wandb="agents", trackio="agents"), warnings) as made:
        made.log({"loss": 0.5}, 1)
        broken = Broken()
        made.trackers = [broken, *made.trackers]
        for update in (2, 3, 4):
            made.log({"loss": 0.5}, update)
    assert warnings == ["no more metrics to broken: RuntimeError: out of order"]
    assert broken.asked == 1
    for module in ("wandb", "trackio"):
        assert [call[0] for call in calls(told, module)].count("log") == 4


class Broken:
    name = "broken"
    asked = 0

    def log(self, numbers: object, update: int) -> None:
        self.asked += 1
        raise RuntimeError("out\nof order")

    def close(self) -> None:
        raise AssertionError("it was left out")


def test_one_that_fails_at_the_end_is_told_of(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    monkeypatch.setenv("FAKE_FAILS", "finish")
    with start(ReportTable(wandb="agents"), warnings):
        pass
    assert warnings == ["no more metrics to wandb: ConnectionError: the server is gone"]


def test_what_they_print_is_no_data(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with start(ReportTable(wandb="agents", trackio="agents"), []) as made:
        made.log({"loss": 0.5}, 1)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("chatter of the tracker") == 8


def test_a_run_without_trackers_has_hooks_all_the_same() -> None:
    quiet = Hooks()
    quiet.log({"loss": 0.5}, 1)
    quiet.close()


def test_they_are_closed_when_the_run_fails(told: Path) -> None:
    with pytest.raises(TrainError), start(ReportTable(trackio="agents"), []):
        raise TrainError("no more")
    assert calls(told, "trackio")[-1][0] == "finish"
