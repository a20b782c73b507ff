"""`gyre train RUN.toml`, `gyre train status`, `gyre config show`: which command one gets, what it prints, how
it ends. The loop itself is tested in tests/trainer/live/."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.cli import output
from gyre.cli.main import main
from gyre.trainer.live.config import load_run
from gyre.trainer.live.reports import Evaluated
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.live.setup import LIVE_MAY_CHANGE
from gyre.trainer.live.watch import LiveOutcome, LiveWatch
from gyre.trainer.update.ranks import Ranks

TASKS = Path(__file__).parents[1] / "examples" / "tasks"
RUN = """
model = "tiny"
unsafe_local = true
[harness]
command = ["python3", "./agent.py", "--url", "{base_url}", "{instruction}"]
[[tasks]]
folder = "TASKS"
weight = 2.0
[rollout]
batches = 5
group_size = 4
burst = 2
look_ahead = 1.0
[train]
groups_per_batch = 3
updates_per_batch = 2
"""


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "agent.py").touch()
    path = tmp_path / "toy.toml"
    path.write_text(RUN.replace("TASKS", str(TASKS)))
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in arguments])
    return int(end.value.code or 0)


def told(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> str:
    """What stands on stderr; nothing on stdout, no traceback."""
    assert run(*arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err
    return " ".join(shown.err.replace("│", " ").split())


# ---------------------------------------------------------------------------------------------- which command


def test_help_names_all_three_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    shown = capsys.readouterr().out
    for form in ("gyre train RUN.toml", "gyre train status RUN", "gyre train --trees DIR"):
        assert form in shown
    assert run("train", "status", "--help") == 0
    assert "Usage: gyre train status " in capsys.readouterr().out


def test_status_is_a_command_and_not_a_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no" in told(capsys, "train", "status", tmp_path / "nowhere", code=1)
    assert "Usage: gyre train status" in told(capsys, "train", "status", code=2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "give a run file, or stored trees: --trees, --model, --out missing"),
        (("--trees", "a"), "stored trees: --model, --out missing"),
        (("--trees", "a", "--model", "b", "--out", "c", "--batches", "2"), "`--batches` is for a run file"),
        (("--trees", "a", "--unsafe-local"), "`--unsafe-local` is for a run file"),
        (("FILE", "--trees", "a"), "`--trees` is for stored trees"),
        (("FILE", "--model", "a"), "`--model` is for stored trees"),
        (("FILE", "--config", "a"), "`--config` is for stored trees"),
        (("FILE", "--max-updates", "1"), "`--max-updates` is for stored trees"),
        (("FILE", "--batches", "0"), "--batches"),
        (("FILE", "--no-such-option"), "--no-such-option"),
    ],
)
def test_options_of_the_other_form_are_wrong_usage(
    file: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], why: str
) -> None:
    words = [str(file) if word == "FILE" else word for word in options]
    assert why in told(capsys, "train", *words, code=2)


# -------------------------------------------------------------------------------------------------- bad input


def test_a_mistake_in_a_run_file_is_a_message_and_a_hint(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(file.read_text() + "lr = 1.0\n")
    shown = told(capsys, "train", file, code=1)
    assert "unknown key `train.lr` hint: did you mean `train.optimizer.lr`?" in shown
    assert "did you mean `train.optimizer.lr`?" in told(capsys, "config", "show", file, code=1)
    assert "cannot read" in told(capsys, "train", file.with_name("no.toml"), code=1)


def test_a_folder_of_a_run_is_not_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.toml").touch()
    assert f"did you mean `{tmp_path / 'run.toml'}`?" in told(capsys, "train", tmp_path, code=1)


# ------------------------------------------------------------------------------------------------ config show


def test_what_is_shown_is_a_run_file_that_says_the_same(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("config", "show", file) == 0
    again = tmp_path / "elsewhere" / "again.toml"
    again.parent.mkdir()
    again.write_text(capsys.readouterr().out)
    assert load_run(again) == load_run(file)
    assert run("config", "show", file, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["settings"]["rollout"]["batches"]) == (1, 5)
    assert document["settings"]["out"] == str(tmp_path / "runs" / "toy")


# ---------------------------------------------------------------------------------------------------- dry run


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert run("train", file, "--dry-run") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert 'model = "tiny"' in shown
    assert f"{TASKS} 4 tasks, weight 2" in shown
    for text in (
        "batches 5, of 3 groups of 4 executions",
        "executions 60",
        "groups dispatched ahead, at most 9",
        "publications 3, one every 2 batches",
        "staleness, at most 1 publication",
        "updates, at most 10",
        "confinement ",
        "training in all",
    ):
        assert text in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_a_dry_run_as_one_document(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held_out = f'[[evaluation.tasks]]\nfolder = "{TASKS}/fix-the-sum"\n'
    limits = "[limits]\ncontext = 512\n[evaluation]\nepisodes = 8\ngreedy = true\nevery = 2\n"
    text = file.read_text().replace(f'"{TASKS}"', f'"{TASKS}/count-words"')
    file.write_text(text + limits + held_out)
    assert run("train", file, "--dry-run", "--json", "--batches", "9", "--out", "o") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["settings"]["out"] == str(Path.cwd() / "o")
    assert plan["tasks"] == {f"{TASKS}/count-words": 1}
    # Versions 0, 2, 4 and the last, 5: each at two temperatures.
    dispatch = plan["dispatch"]
    assert (dispatch["publications"], dispatch["evaluations"], dispatch["episodes"]) == (5, 8, 64)
    assert (dispatch["groups_ahead"], dispatch["executions"], dispatch["updates"]) == (9, 108, 18)
    assert plan["longest_path"] == 512
    assert plan["first"]["task"] == f"{TASKS}/count-words"
    argv = plan["first"]["argv"]
    assert argv[1:4] == [
        str(file.parent / "agent.py"),
        "--url",
        "http://127.0.0.1:PORT/x/g000000-count-words-0/v1",
    ]
    assert plan["confined"] is (plan["unconfined_because"] is None)


def test_a_task_that_cannot_be_scored_is_told_before_anything_starts(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "tasks" / "nameless"
    task.mkdir(parents=True)
    (task / "task.toml").touch()
    (task / "instruction.md").write_text("Do it.\n")
    file.write_text(file.read_text().replace(str(TASKS), str(task.parent)))
    for more in (("--dry-run",), ()):
        assert f"task `{task}` has no `tests/test.sh`" in told(capsys, "train", file, *more, code=1)
    assert not (tmp_path / "runs").exists()


# --------------------------------------------------------------------------------------------- how a run ends


def outcome_of(out: Path, **changed: Any) -> LiveOutcome:
    evaluated = [
        Evaluated(version=version, update=0, temperature=1.0, episodes=8, pass_rate=rate, mean_score=rate)
        for version, rate in (("0", 0.25), ("3", 0.5), ("5", 0.875))
    ]
    about: dict[str, Any] = {
        "batches": 5,
        "updates": 10,
        "interrupted": False,
        "checkpoint": out / "checkpoints" / "update-000010",
        "final": out / "final",
        "evaluations": evaluated,
    }
    return LiveOutcome(**about | changed)


def test_what_is_not_passed_but_better_is_seen_at_the_end(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(version: str, score: float) -> Evaluated:
        about: dict[str, Any] = {"update": 0, "temperature": 1.0, "episodes": 8, "pass_rate": 0.0}
        return Evaluated(version=version, mean_score=score, **about)

    outcome = outcome_of(tmp_path, evaluations=[at("0", 0.19), at("8", 0.4375)])
    loop_that(monkeypatch, lambda *_: outcome)
    assert run("train", file, "--out", tmp_path / "out") == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "0% of 8 (version 0) -> 0% of 8 (version 8) mean score 0.19 -> 0.438" in words


def loop_that(
    monkeypatch: pytest.MonkeyPatch, does: Callable[[RunSettings, LiveWatch, bool], LiveOutcome]
) -> None:
    """Stands for the real one, which starts engines and agents."""

    def fake(
        settings: RunSettings, root: Path, *, resume: bool, ranks: Ranks, watch: LiveWatch
    ) -> LiveOutcome:
        assert (str(root), ranks.size) == (settings.out, 1)
        return does(settings, watch, resume)

    monkeypatch.setattr("gyre.trainer.loop.run", fake)


def test_a_run_that_came_to_its_end(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    asked = []

    def does(settings: RunSettings, watch: LiveWatch, resume: bool) -> LiveOutcome:
        asked.append((settings.rollout.batches, settings.out, settings.unsafe_local, resume))
        watch.tell("it begins")
        return outcome_of(out)

    loop_that(monkeypatch, does)
    assert run("train", file, "--out", out, "--batches", "7", "--resume") == 0
    shown = capsys.readouterr()
    assert asked == [(7, str(out), True, True)]
    assert shown.err.splitlines()[0] == "it begins"
    assert f"serve it: gyre engine --model {out}/final" in shown.err
    words = " ".join(shown.out.split())
    assert "mean score" not in words  # it says the same
    assert "trained" in words and "batches 5 of 7" in words
    assert "evaluated at temperature 1 25% of 8 (version 0) -> 88% of 8 (version 5)" in words
    assert run("train", file, "--out", out, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["batches"], document["total_batches"]) == (1, 5, 5)
    assert document["model"] == str(out / "final")
    assert [each["pass_rate"] for each in document["evaluations"]] == [0.25, 0.5, 0.875]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    code: int,
) -> None:
    def does(settings: RunSettings, watch: LiveWatch, resume: bool) -> LiveOutcome:
        assert not watch.stop()
        os.kill(os.getpid(), number)
        assert watch.stop()
        return outcome_of(tmp_path, interrupted=True, batches=2, final=None, evaluations=[])

    loop_that(monkeypatch, does)
    assert run("train", file) == code
    shown = capsys.readouterr()
    assert "interrupted" in shown.out and "2 of 5" in shown.out
    assert "update-000010/model" in shown.out
    assert "go on: the same command with --resume" in shown.err


def test_a_run_whose_time_is_over_is_no_failure(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop_that(monkeypatch, lambda *_: outcome_of(tmp_path, interrupted=True, checkpoint=None, final=None))
    assert run("train", file) == 0
    assert "none yet" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- documentation


def test_what_may_be_changed_when_a_run_goes_on_is_documented() -> None:
    text = (TASKS.parents[1] / "docs" / "live.md").read_text()
    section = text.partition("These may be changed then:")[2].partition("Anything else")[0]
    told = {name.strip("[]") for name in re.findall(r"`([^`]+)`", section)} - {"train"}
    own = {name.removesuffix(".*") for name in LIVE_MAY_CHANGE if not name.startswith("train.")}
    assert told == own
