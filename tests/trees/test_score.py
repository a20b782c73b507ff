"""Rewards, advantages and files of scores."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.errors import ScoreError
from gyre.proxy.scores import Scored
from gyre.treebuilder.score import (
    Advantage,
    advantages,
    group_name,
    group_of,
    left_out,
    relative,
    reward,
    said_of,
)
from gyre.treebuilder.scores_file import read_scores
from gyre.treebuilder.summary import ExecutionSummary

FINITE = st.floats(allow_nan=False, allow_infinity=False)
USUAL = st.floats(-1e6, 1e6)
KINDS_OF_ADVANTAGE = st.sampled_from(Advantage)


def scored(name: str, score: float | None = None, **fields: Any) -> ExecutionSummary:
    return ExecutionSummary(name, score=score, **fields)


def test_the_formula_by_hand() -> None:
    # Mean 0.5; squares 0.25 + 0.25 + 0.0 = 0.5, over n - 1 = 2 gives 0.25, its root 0.5.
    found = advantages(scored(name, score, group="g") for name, score in [("a", 1.0), ("b", 0.0), ("c", 0.5)])
    assert found == pytest.approx({("a", 0): 0.5 / 0.5001, ("b", 0): -0.5 / 0.5001, ("c", 0): 0.0}, abs=1e-15)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        # Mean 2; squares 1 + 4 + 1 + 0 = 6, over n - 1 = 3 gives 2.
        (Advantage.GROUP, [each / (math.sqrt(2) + 1e-4) for each in (-1, 2, -1, 0)]),
        (Advantage.CENTERED, [-1, 2, -1, 0]),
        # Means of the others: 7/3, 4/3, 7/3, 2.
        (Advantage.LEAVE_ONE_OUT, [-4 / 3, 8 / 3, -4 / 3, 0]),
    ],
)
def test_each_kind_by_hand(how: Advantage, expected: list[float]) -> None:
    assert relative([1, 4, 1, 2], how) == pytest.approx(expected)
    found = advantages((scored(str(n), score, group="g") for n, score in enumerate([1, 4, 1, 2])), how)
    assert list(found.values()) == pytest.approx(expected)


def test_what_differs_little_gets_little() -> None:
    # Mean 1e-6; squares 2e-12 over n - 1 = 1, its root sqrt(2) * 1e-6, far below epsilon.
    assert relative([2e-6, 0.0])[0] == pytest.approx(1e-6 / (math.sqrt(2) * 1e-6 + 1e-4))


@settings(deadline=None)
@given(st.lists(USUAL, min_size=1, max_size=20), KINDS_OF_ADVANTAGE)
def test_a_group_has_mean_zero(rewards: list[float], how: Advantage) -> None:
    size = 1 if how is Advantage.GROUP else max(map(abs, rewards))
    assert math.fsum(relative(rewards, how)) == pytest.approx(0, abs=1e-9 * max(size, 1))


@settings(deadline=None)
@given(
    st.lists(FINITE, min_size=1, max_size=12).flatmap(lambda r: st.tuples(st.just(r), st.permutations(r))),
    KINDS_OF_ADVANTAGE,
)
def test_the_order_of_a_group_changes_no_bit(case: tuple[list[float], list[float]], how: Advantage) -> None:
    rewards, mixed = case
    assert dict(zip(rewards, relative(rewards, how), strict=True)) == dict(
        zip(mixed, relative(mixed, how), strict=True)
    )


@settings(deadline=None)
@given(st.lists(USUAL, min_size=2, max_size=12), USUAL, KINDS_OF_ADVANTAGE)
def test_what_all_have_in_common_is_no_advantage(rewards: list[float], more: float, how: Advantage) -> None:
    rewards = [float(round(each)) for each in rewards]
    moved = relative([each + round(more) for each in rewards], how)
    assert moved == pytest.approx(relative(rewards, how), rel=1e-6, abs=1e-6)


@settings(deadline=None)
@given(st.lists(USUAL, min_size=2, max_size=12))
def test_leaving_one_out_compares_with_the_mean_of_the_others(rewards: list[float]) -> None:
    if min(rewards) < max(rewards):
        others = [(math.fsum(rewards) - each) / (len(rewards) - 1) for each in rewards]
        expected = [each - mean for each, mean in zip(rewards, others, strict=True)]
        assert relative(rewards, Advantage.LEAVE_ONE_OUT) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=12))
def test_any_finite_rewards_give_finite_advantages(rewards: list[float]) -> None:
    assert all(abs(each) <= len(rewards) for each in relative(rewards))


@settings(deadline=None)
@given(FINITE, st.integers(1, 12), KINDS_OF_ADVANTAGE)
def test_equal_rewards_have_nothing_to_compare(score: float, count: int, how: Advantage) -> None:
    assert relative([score] * count, how) == [0.0] * count


@settings(deadline=None)
@given(st.lists(FINITE, max_size=5), st.sampled_from([math.inf, -math.inf, math.nan]), st.integers(0, 5))
def test_infinities_are_refused(rewards: list[float], bad: float, place: int) -> None:
    rewards.insert(place, bad)
    with pytest.raises(ScoreError):
        relative(rewards)
    with pytest.raises(ScoreError, match="`e1`"):
        Scored("e1", score=bad)


def test_a_group_is_of_executions_and_not_of_the_rows_they_are_cut_into() -> None:
    pair = [scored("a", 1.0, group="g"), scored("b", 0.0, group="g")]
    torn = [replace(pair[0], contexts=40, trajectories=5), pair[1]]
    assert advantages(pair) == advantages(torn)


def test_groups_do_not_mix() -> None:
    summaries = [
        scored("a", 1.0, group="x"),
        scored("b", 0.0, group="x"),
        scored("c", 5.0, task="x"),
        scored("d", 9.0, task="x"),
        scored("e", 7.0),
        scored("f", 3.0, group="x", task="other"),
    ]
    found = advantages(summaries)
    assert found["c", 0] == -found["d", 0] < 0
    assert found["e", 0] == 0
    assert found["f", 0] > 0 > found["b", 0]
    assert group_of(summaries[4]) == ("execution", "e")
    assert [group_name(summaries[n]) for n in (0, 2, 4)] == ["x", "task:x", "execution:e"]


def test_leaving_nothing_is_worth_nothing_and_a_timeout_is_scored() -> None:
    assert reward(scored("a", outcome="no_artifact")) == 0.0
    assert reward(scored("a", 0.25, outcome="no_artifact")) == 0.25
    assert reward(scored("a", 0.75, outcome="timed_out")) == 0.75
    assert reward(scored("a", outcome="timed_out")) is None
    assert left_out(scored("a", 0.75, outcome="timed_out")) is None
    assert left_out(scored("a", outcome="no_artifact")) is None


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        (scored("a"), "no_score"),
        (scored("a", outcome="failed"), "no_score"),
        (scored("a", 1.0, outcome="run_timeout"), "run_timeout"),
        (scored("a", outcome="scorer_failed"), "scorer_failed"),
        (scored("a", 1.0, evaluation=True), "evaluation"),
        (scored("a", 1.0, superseded=True), "superseded"),
        (scored("a", 1.0, skipped="a cycle"), "skipped"),
        (scored("a", math.nan), "score_not_finite"),
    ],
)
def test_who_is_left_out_counts_in_no_group(summary: ExecutionSummary, why: str) -> None:
    summary.group = "g"
    others = [scored("b", 1.0, group="g"), scored("c", 0.0, group="g")]
    assert left_out(summary) == why
    assert advantages([*others, summary]) == advantages(others)


def test_what_names_the_attempt_outweighs_what_is_said_of_the_last() -> None:
    scores = {("a", None): Scored("a", score=1.0), ("a", 1): Scored("a", 1, 0.0)}
    assert said_of(scores, "a", 0, last=False) is None
    assert said_of(scores, "a", 1, last=True) == Scored("a", 1, 0.0)
    assert said_of(scores, "a", 2, last=True) == Scored("a", score=1.0)
    assert said_of(scores, "b", 0, last=True) is None


def written(folder: Path, name: str, rows: list[dict[str, object]]) -> Path:
    """The same rows in the format that the name ends in."""
    path = folder / name
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows, pa.Table.from_pylist(rows[::-1]).schema), path)
    elif path.suffix == ".csv":
        cells = [["" if row.get(c) is None else str(row[c]) for c in columns] for row in rows]
        path.write_text("".join(",".join(line) + "\n" for line in [columns, *cells]))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


KINDS = ("scores.jsonl", "scores.csv", "scores.parquet")


@pytest.mark.parametrize("name", KINDS)
def test_each_format_says_the_same(tmp_path: Path, name: str) -> None:
    rows: list[dict[str, object]] = [
        {"execution_id": "e1", "score": 0.5, "group": "g"},
        {"execution_id": "e2", "attempt": 1, "score": 1, "outcome": "timed_out", "artifact": "w/e2"},
        {"execution_id": "e2", "attempt": 2, "outcome": "no_artifact", "reason": "empty folder", "task": "t"},
    ]
    columns = {key: None for row in rows for key in row}
    path = written(tmp_path, name, [columns | row for row in rows])
    assert read_scores(path) == {
        ("e1", None): Scored("e1", score=0.5, group="g"),
        ("e2", 1): Scored("e2", 1, 1.0, "timed_out", artifact="w/e2"),
        ("e2", 2): Scored("e2", 2, None, "no_artifact", task="t", reason="empty folder"),
    }


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("rows", "message", "hint"),
    [
        ([{"execution": "a", "scroe": 1}], "unknown column `scroe`", "did you mean `score`?"),
        ([{"execution": "a", "zzz": 1}], "unknown column `zzz`", "known columns"),
        ([{"execution": "a", "score": "good"}], "the score 'good' is no number", ""),
        ([{"execution": "a", "score": math.inf}], "", ""),
        ([{"execution": "a", "attempt": -1, "score": 1}], "no whole number from 0", ""),
        ([{"execution": "a", "outcome": "complete"}], "unknown outcome `complete`", "known outcomes"),
        ([{"execution": "a", "reason": "why not"}], "nothing is said of `a`", "give a score"),
        ([{"execution": "", "score": 1}], "`execution_id` is missing", ""),
        ([{"execution": "a", "execution_id": "a", "score": 1}], "are the same column", ""),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    tmp_path: Path, name: str, rows: list[dict[str, object]], message: str, hint: str
) -> None:
    path = written(tmp_path, name, rows)
    with pytest.raises(ScoreError) as caught:
        read_scores(path)
    assert message in str(caught.value) and str(path) in str(caught.value)
    assert hint in caught.value.hint
    place = {".csv": "line 2", ".jsonl": "line 1", ".parquet": "row 1"}[path.suffix]
    assert place in str(caught.value)


@pytest.mark.parametrize("name", KINDS)
def test_the_same_execution_twice_names_both_places(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, [{"execution_id": n, "score": 1} for n in ("a", "b", "a")])
    with pytest.raises(ScoreError, match=r"has `a` twice: (line 1 and line 3|line 2 and line 4|row 1 and)"):
        read_scores(path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("s.jsonl", b'{"execution": "a", "score": 1}\n\n[1]\n', "line 3 is no JSON object"),
        ("s.jsonl", b'{"execution": "a", "score": NaN}\n', "line 1 is no JSON"),
        ("s.jsonl", b'{"execution": "a", "score": true}\n', "the score True is no number"),
        ("s.jsonl", b'{"execution": 7, "score": 1}\n', "`execution_id` is 7, which is no text"),
        ("s.jsonl", b'{"execution": "a", "score": 1, "attempt": 0.5}\n', "no whole number"),
        ("s.csv", b"execution,score\na,1,2\n", "line 2 has more cells"),
        ("s.csv", b"execution,score,score\na,1,2\n", "names `score` twice"),
        ("s.csv", b'execution,score\n"a,1\n', "is no CSV"),
        ("s.csv", b"execution,score\n\xff,1\n", "cannot read"),
        ("s.parquet", b"PAR1", "is no Parquet"),
        ("s.txt", b"a 1\n", "no known kind"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ScoreError, match=message):
        read_scores(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScoreError, match=r"cannot read .*nothing.csv"):
        read_scores(tmp_path / "nothing.csv")


def test_an_excel_file_with_its_mark_and_short_rows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "s.csv"
    path.write_bytes("\ufeffexecution,score,group\r\na,1\r\n".encode())
    assert read_scores(path) == {("a", None): Scored("a", score=1.0)}
