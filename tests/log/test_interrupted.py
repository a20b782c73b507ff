"""Attempts that began and never ended: one row each when their proxy is dead, none while it lives."""

from __future__ import annotations

from pathlib import Path

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder


def outcomes(log: Log) -> dict[str, str]:
    rows = log.calls.select(["call_id", "outcome"]).to_pylist()
    assert len(rows) == len({row["call_id"] for row in rows})
    return {row["call_id"]: row["outcome"] for row in rows}


def before_and_after_seal(root: Path) -> dict[str, str]:
    before = outcomes(read_log(root))
    seal(root)
    after = outcomes(read_log(root))
    assert before == after
    return after


def test_an_intent_of_a_dead_writer_is_interrupted(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.intent("done")
    worker.call("done")
    worker.intent("lost", execution="e2")
    worker.die()
    row = read_log(tmp_path, executions=["e2"]).calls.to_pylist()[0]
    assert (row["call_id"], row["outcome"], row["phase"]) == ("lost", "interrupted", "connect")
    assert row["ended_at"] is None
    assert row["started_at"] is not None
    assert before_and_after_seal(tmp_path) == {"done": "ok", "lost": "interrupted"}


def test_an_intent_of_a_live_writer_is_only_counted(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.intent("running")
    assert before_and_after_seal(tmp_path) == {}
    assert read_log(tmp_path).open == 1
    assert check(tmp_path).counts["open"] == 1


def test_an_intent_repeated_in_the_next_segment_ends_there(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    first, second = builder.worker(), builder.worker()
    first.intent("c1")
    second.intent("c1")
    first.close()
    assert before_and_after_seal(tmp_path) == {}
    second.call("c1")
    second.die()
    assert before_and_after_seal(tmp_path) == {"c1": "ok"}


def test_an_intent_repeated_and_then_lost_is_one_row(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    first, second = builder.worker(), builder.worker()
    first.intent("c1")
    second.intent("c1")
    first.close()
    second.die()
    assert before_and_after_seal(tmp_path) == {"c1": "interrupted"}


def test_an_intent_left_by_an_error_and_finished_in_another_segment_is_not_interrupted(
    tmp_path: Path,
) -> None:
    builder = LogBuilder(tmp_path)
    first, second = builder.worker(), builder.worker()
    first.intent("c1")
    first.die()
    second.call("c1")
    assert before_and_after_seal(tmp_path) == {"c1": "ok"}
    second.die()
    assert before_and_after_seal(tmp_path) == {"c1": "ok"}


def test_an_end_that_was_sealed_first_counts(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    first, second = builder.worker("w1"), builder.worker("w2")
    first.intent("c1")
    second.call("c1")
    second.die()
    seal(tmp_path)
    first.die()
    assert before_and_after_seal(tmp_path) == {"c1": "ok"}


def test_a_later_attempt_does_not_end_an_earlier_one(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.intent("c1", attempt=0)
    worker.intent("c1", attempt=1)
    worker.call("c1", attempt=1)
    worker.die()
    seal(tmp_path)
    rows = read_log(tmp_path).calls.select(["attempt", "outcome"]).to_pylist()
    assert rows == [{"attempt": 0, "outcome": "interrupted"}, {"attempt": 1, "outcome": "ok"}]


def test_interrupted_rows_are_counted_and_no_error(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    for i in range(3):
        worker.intent(f"c{i}")
    worker.die()
    seal(tmp_path)
    report = check(tmp_path)
    assert report.ok
    assert report.counts["interrupted"] == 3
