"""Lines and events of a live run, what is taken back of them, and that the documentation has all of them."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.hooks import Hooks
from gyre.trainer.live.metrics import LiveMetrics, batch_lines, live_metrics
from gyre.trainer.live.numbers import batch_numbers, evaluation_numbers, evaluations, publication_numbers
from gyre.trainer.live.split import split, split_of
from gyre.trainer.update.folder import RunFolder
from gyre.trainer.update.report import Skipped, Tokens, UpdateReport
from tests.trainer.live.told import SECONDS, evaluated, publication, report, trained

DOCS = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def update(number: int) -> UpdateReport:
    return UpdateReport(
        update=number,
        skipped=Skipped.NO,
        loss=0.5,
        grad_norm=1.5,
        lr=1e-3,
        entropy=2.0,
        executions=6,
        no_variance=0.5,
        rewards=None,
        targets=80,
        tokens=Tokens(tree=120, flat=200),
        seconds={"pass": 1.0},
        peak_memory=1000,
        token_budget=4096,
        halved=0,
        versions={"3": 80},
        objective=None,
    )


def batch(told: LiveMetrics, number: int) -> None:
    """Of two updates."""
    for part in (0, 1):
        told.update(update(2 * number + part + 1), {"batch": number, "part": part})
    told.batch(report(number))


def lines_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def kinds(folder: Path) -> list[tuple[object, object]]:
    return [(line["kind"], line["update"]) for line in lines_of(folder)]


def test_a_line_of_each_kind(tmp_path: Path) -> None:
    with live_metrics(RunFolder(tmp_path), 0) as told:
        told.evaluation(evaluated(0))
        batch(told, 0)
        told.publication(publication(2))
        told.evaluation(evaluated(2, temperature=0.0))
    first, one, _, whole, published, greedy = lines_of(tmp_path)
    assert (one["kind"], one["update"], one["batch"], one["part"], one["loss"]) == ("update", 1, 0, 0, 0.5)
    assert (whole["kind"], whole["update"], whole["batch"], whole["burst"]) == ("batch", 2, 0, 3)
    assert (whole["version"], whole["pass_rate"], whole["groups"]) == ("3", 2 / 6, 2)
    assert whole["outcome/timed_out"] == 2
    assert whole["left_out/no_score"] == 2
    assert whole["seconds/total"] == 10.0
    assert (published["kind"], published["version"], published["held"]) == ("publication", "2", 3)
    assert (first["update"], first["temperature"], first["pass_rate"]) == (0, 1.0, 0.75)
    assert (greedy["update"], greedy["temperature"]) == (2, 0.0)


def test_a_batch_says_which_groups_it_trained(tmp_path: Path) -> None:
    with live_metrics(RunFolder(tmp_path), 0) as told:
        told.batch(report(0))
    (line,) = lines_of(tmp_path)
    assert line["trained"] == [
        {
            "group": "g000000",
            "task": "write-apple",
            "burst": 2,
            "staleness": 0,
            "update_staleness": 0,
            "scores": [1.0, 0.0, 1.0],
        },
        {
            "group": "g000001",
            "task": "write-apple",
            "burst": 2,
            "staleness": 1,
            "update_staleness": 4,
            "scores": [0.0, 0.0, 0.0],
        },
    ]


def test_numbers_of_a_batch_are_of_all_of_its_groups() -> None:
    numbers = batch_numbers(report(0))
    assert (numbers["kept_share"], numbers["tree_savings"]) == (0.8, 0.4)
    assert (numbers["targets/sampled"], numbers["targets/kept"]) == (100, 80)
    assert (numbers["staleness/mean"], numbers["staleness/max"]) == (0.5, 1)
    assert (numbers["staleness/updates_mean"], numbers["staleness/updates_max"]) == (2.0, 4)
    assert (numbers["groups"], numbers["groups_varied"], numbers["executions"]) == (2, 1, 8)


def test_what_is_not_known_is_left_out() -> None:
    numbers = batch_numbers(report(0, groups=[trained(scores=(), left_out={})], tokens=(0, 0)))
    assert not {"pass_rate", "mean_score", "tree_savings"} & set(numbers)
    assert not [name for name in numbers if name.startswith("left_out/")]
    assert "pass_rate" not in evaluation_numbers(evaluated(0, pass_rate=None))


def test_events_stand_under_their_kind_at_the_update(tmp_path: Path) -> None:
    with live_metrics(RunFolder(tmp_path), 0) as told:
        told.evaluation(evaluated(0))
        batch(told, 0)
        batch(told, 1)
        told.publication(publication(4))
        told.evaluation(evaluated(4))
        told.evaluation(evaluated(4, temperature=0.0))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def steps(name: str) -> list[int]:
        return [event.step for event in events.Scalars(name)]

    assert steps("loss") == [1, 2, 3, 4]
    assert steps("batch/pass_rate") == [2, 4]
    assert steps("publication/seconds") == [4]
    assert (steps("evaluation/pass_rate"), steps("evaluation_greedy/pass_rate")) == ([0, 4], [4])


def test_what_was_written_after_the_checkpoint_is_taken_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with live_metrics(folder, 0) as told:
        told.evaluation(evaluated(0))
        batch(told, 0)
        told.publication(publication(2))
        told.evaluation(evaluated(2))
        batch(told, 1)  # its checkpoint was never written
        told.publication(publication(4))
    time.sleep(1.05 - time.time() % 1)  # files of one second are read in the order of their numbers' letters
    with live_metrics(folder, 2) as told:
        kept = [("evaluation", 0), ("update", 1), ("update", 2), ("batch", 2)]
        kept += [("publication", 2), ("evaluation", 2)]
        assert [(line["kind"], line["update"]) for line in told.lines] == kept
        batch(told, 1)
    assert kinds(tmp_path) == [*kept, ("update", 3), ("update", 4), ("batch", 4)]
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("batch/pass_rate")] == [2, 4]
    assert [event.step for event in events.Scalars("publication/seconds")] == [2]


def test_a_batch_all_of_whose_updates_were_before_stands_at_the_last_one(tmp_path: Path) -> None:
    with live_metrics(RunFolder(tmp_path), 7) as told:
        told.batch(report(3))
    assert kinds(tmp_path) == [("batch", 7)]


def test_evaluations_are_read_back_as_they_were(tmp_path: Path) -> None:
    given = [evaluated(0), evaluated(2, pass_rate=None), evaluated(2, temperature=0.0)]
    with live_metrics(RunFolder(tmp_path), 0) as told:
        for one in given:
            told.evaluation(one)
    with live_metrics(RunFolder(tmp_path), 2) as told:
        assert evaluations(told.lines) == given


def test_a_run_that_goes_on_shows_what_it_was_before(tmp_path: Path) -> None:
    before, after = (Board(tmp_path, batches=9, clock=lambda: 1000.0) for _ in range(2))
    short = report(1, seconds={"wait": 1.0}, burst=4)
    with live_metrics(RunFolder(tmp_path), 0) as told:
        told.evaluation(evaluated(0))
        batch(told, 0)
        told.update(update(3), {"batch": 1, "part": 0})
        told.batch(short)
    before.evaluation(evaluated(0))
    before.batch(report(0))
    before.batch(short)
    before.update(3)
    with live_metrics(RunFolder(tmp_path), 3) as told:
        after.go_on_with(told.lines)
        after.go_on_with(told.lines)  # before the model is read, and after
    assert after.status(Counts()) == before.status(Counts())
    assert after.status(Counts()).seconds_in_all == {**SECONDS, "wait": SECONDS["wait"] + 1.0}


class Heard:
    name = "heard"

    def __init__(self) -> None:
        self.told: list[tuple[int, set[str]]] = []

    def log(self, numbers: dict[str, float], update: int) -> None:
        self.told.append((update, set(numbers)))

    def close(self) -> None:
        raise AssertionError("whoever opened it closes it")


def test_trackers_hear_what_tensorboard_shows(tmp_path: Path) -> None:
    heard = Heard()
    with live_metrics(RunFolder(tmp_path), 0, Hooks([heard])) as told:
        told.update(replace(update(1), loss=math.nan), {"batch": 0, "part": 0})
        told.batch(report(0))
        told.evaluation(evaluated(1))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert set.union(*(names for _, names in heard.told)) == set(events.Tags()["scalars"])
    assert "loss" not in events.Tags()["scalars"]
    assert [number for number, _ in heard.told] == [1, 1, 1]


def section(title: str) -> list[str]:
    """Names in the first column of its table."""
    text = DOCS.partition(f"### {title}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def as_documented(numbers: dict[str, float], *families: str) -> set[str]:
    """A name of a family stands for all of it: `outcome/NAME`."""
    return {
        next((family for family in families if name.startswith(family.partition("/")[0] + "/")), name)
        for name in numbers
    }


@pytest.mark.parametrize(
    ("title", "numbers", "families"),
    [
        ("Batches", batch_numbers(report(0)), ("outcome/NAME", "left_out/REASON")),
        ("Publications", publication_numbers(publication()), ()),
        ("Evaluations", evaluation_numbers(evaluated()), ("outcome/NAME",)),
    ],
)
def test_every_number_is_documented_and_nothing_else(
    title: str, numbers: dict[str, float], families: tuple[str, ...]
) -> None:
    phases = {"seconds/evaluate"} if title == "Batches" else set()
    assert as_documented(numbers, *families) | phases == set(section(title))


def test_every_field_beside_the_numbers_is_documented(tmp_path: Path) -> None:
    with live_metrics(RunFolder(tmp_path), 0) as told:
        batch(told, 0)
        told.publication(publication(2))
        told.evaluation(evaluated(2))
    one, _, whole, published, tested = lines_of(tmp_path)
    text = DOCS.partition("## Live training")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`([^`]+)`", text))
    for line, numbers in (
        (one, update(1).metrics()),
        (whole, batch_numbers(report(0))),
        (published, publication_numbers(publication())),
        (tested, evaluation_numbers(evaluated())),
    ):
        assert set(line) - set(numbers) <= documented | {"skipped", "versions"}


def test_the_split_of_time_adds_up(tmp_path: Path) -> None:
    reports = [report(0), report(1, seconds={"wait": 2.0, "evaluate": 8.0})]
    found = split(reports)
    assert found.seconds == {"wait": 8.0, "tree": 0.5, "train": 3.0, "publish": 0.5, "evaluate": 8.0}
    assert found.total == 20.0
    assert found.shares["wait"] == pytest.approx(0.4)
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert (found.batches, found.rollout_s, found.scoring_s, found.tree_s) == (2, 5.0, 6.0, 1.0)
    with live_metrics(RunFolder(tmp_path), 0) as told:
        for one in reports:
            told.update(update(one.batch + 1), {"batch": one.batch, "part": 0})
            told.batch(one)
    assert split_of(batch_lines(tmp_path / "metrics.jsonl")) == found


def test_a_run_without_a_batch_has_no_split() -> None:
    found = split([])
    assert (found.total, found.shares, found.rollout_s) == (0.0, {}, 0.0)
