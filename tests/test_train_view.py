"""What a person sees of a live run: in a terminal, in a log, and from another terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cli.train_rows import (
    batch_line,
    duration,
    evaluation_line,
    publication_line,
    rows,
    sparkline,
    status_line,
    times,
)
from gyre.cli.train_view import View, view
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.status import Phase, Status
from tests.terminal import in_terminal
from tests.trainer.live.told import START, evaluated, publication, report, status, trained


def shown(of: Status, *, at: float = START, gone: bool = False) -> dict[str, str]:
    return dict(rows(of, at, gone=gone))


def test_where_a_run_stands_in_rows() -> None:
    assert shown(status(), at=START + 12) == {
        "run": "runs/tiny",
        "state": "training for 12 s · running for 12 s",
        "batch": "━━━━━━────────────────── 2 of 8 · 4 updates · version 2",
        "pass rate": "▃▃ 33% · 1 group with variance",
        "evaluation": "25% (version 0) → 75% (version 2) · best 90% (version 1)",
        "greedy evaluation": "95% (version 2)",
        "executions": "7 running · 1,200 waiting · 32 done · 3 timed out",
        "groups": "3 under way · 1 ready",
        "staleness": "0.5 publications, at most 1 · 2 updates, at most 4",
        "trees": "80% of targets kept · 40% of tokens saved",
        "time, last batch": "10 s: wait 60%, tree 5%, train 30%, publish 5%",
        "time, all batches": "20 s: wait 60%, tree 5%, train 30%, publish 5%",
        "restarted": "engine 2x",
    }


def test_a_batch_with_nothing_to_learn_says_so() -> None:
    told = Board(Path("runs/tiny"), batches=8, clock=lambda: START)
    told.batch(report(0, groups=[trained(scores=(0.0, 0.0))], tokens=(0, 0)))
    of = told.status(Counts())
    assert of.tree_savings is None
    assert shown(of)["pass rate"].endswith("0% · 0 groups with variance")
    assert shown(of)["trees"] == "80% of targets kept"


def test_a_run_that_has_only_begun_has_few_rows() -> None:
    new = Board(Path("runs/tiny"), batches=8, clock=lambda: START).status(Counts())
    assert list(shown(new)) == ["run", "state", "batch", "executions", "groups"]
    assert shown(new)["state"] == "starting for 0.0 s · running for 0.0 s"


def test_tokens_a_second_are_shown_once_they_are_known() -> None:
    assert shown(msgspec.structs.replace(status(), tokens_per_s=1234.5))["sampled"] == "1,234 tokens/s"


def test_a_run_that_says_nothing_is_told() -> None:
    assert "said nothing for 1m 40s" in shown(status(), at=START + 100)["state"]


def test_a_run_that_is_over_stands_still() -> None:
    ended = msgspec.structs.replace(status(), phase=Phase.ENDED, updated_at=START + 90)
    assert shown(ended, at=START + 10_000)["state"] == "ended after 1m 30s"


def test_a_process_that_is_gone_is_told_and_what_to_do() -> None:
    assert shown(status(), gone=True)["state"].startswith(f"gone: process {os.getpid()} ended while training")
    assert "--resume" in shown(status(), gone=True)["state"]


def test_why_a_run_failed_is_shown() -> None:
    told = Board(Path("runs/tiny"), batches=8)
    told.warn("the engine was started again")
    told.failed("the disk is full", "make room")
    found = shown(told.status(Counts()))
    assert (found["warning"], found["error"]) == ("the engine was started again", "the disk is full")
    assert found["hint"] == "make room"


def test_a_line_of_each_kind() -> None:
    assert batch_line(report(1), 20) == (
        "batch 2/20 · pass rate 33% · 8 executions · 2 timed out · 2 left out · variance in 1 of 2 groups · "
        "80% of targets kept · 40% of tokens saved · 10 s: wait 60%, tree 5%, train 30%, publish 5%"
    )
    assert publication_line(publication(1)) == "version 2 published after 1 update · 0.5 s · 3 open requests"
    assert evaluation_line(evaluated()) == (
        "evaluation of version 2, temperature 1 · pass rate 75% · 64 episodes · 12 s"
    )
    assert "greedy" in evaluation_line(evaluated(temperature=0.0))
    assert status_line(status()) == "batch 2/8 · training · pass rate 33% · 7 running · 1200 waiting"


def test_a_mean_score_is_told_where_it_says_more_than_the_pass_rate() -> None:
    partly = report(0, groups=[trained(scores=(0.5, 1.0))])
    assert "pass rate 50%, mean score 0.75" in batch_line(partly, 1)


def test_a_batch_of_which_nothing_was_left_has_a_line() -> None:
    nothing = report(0, groups=[trained(scores=(), outcomes={"failed": 4})], tokens=(0, 0))
    assert batch_line(nothing, 1).startswith(
        "batch 1/1 · 4 executions · 1 left out · variance in 0 of 1 group"
    )
    assert batch_line(report(0, groups=[], seconds={}), 1).endswith("0.0 s")


@given(st.lists(st.none() | st.floats(0, 1), max_size=60))
def test_a_higher_rate_is_no_lower_bar(rates: list[float | None]) -> None:
    drawn = sparkline(rates)
    assert len(drawn) == len(rates)
    known = sorted((rate, bar) for rate, bar in zip(rates, drawn, strict=True) if rate is not None)
    assert [bar for _, bar in known] == sorted(bar for _, bar in known)
    assert all(bar == "·" for rate, bar in zip(rates, drawn, strict=True) if rate is None)


def test_the_ends_of_a_sparkline() -> None:
    assert sparkline([0.0, 1.0]) == "▁█"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (1.24, "1.2 s"), (59.4, "59 s"), (59.6, "1m 00s"), (185, "3m 05s"), (7380, "2h 03m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_phases_that_took_no_time_are_left_out() -> None:
    assert times({"wait": 99.9, "tree": 0.01, "train": 0.09}) == "1m 40s: wait 100%"
    assert times({}) == "0.0 s"


def tell(to: View) -> None:
    to.tell("the engine was started again")
    to.status(status())
    to.batch(report(1), 20)
    to.publication(publication())
    to.evaluation(evaluated())


def test_a_log_gets_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    with view() as to:
        tell(to)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "the engine was started again",
        batch_line(report(1), 20),
        publication_line(publication()),
        evaluation_line(evaluated()),
    ]


IN_TERMINAL = """
from gyre.cli.train_view import view
from tests.test_train_view import tell
with view() as to:
    tell(to)
    print("data")
"""


def test_a_terminal_shows_a_table_below_what_is_said() -> None:
    out, screen = in_terminal(sys.executable, "-c", IN_TERMINAL)
    assert out == "data\n"
    last = screen[screen.rindex("runs/tiny") :]
    assert "7 running · 1,200 waiting · 32 done · 3 timed out" in last
    assert "25% (version 0) → 75% (version 2)" in last
    assert "the engine was started again" in screen.replace(last, "")
    assert evaluation_line(evaluated()) in screen
    assert "batch 2/20" not in screen  # the table has it
