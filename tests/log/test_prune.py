"""Pruning takes whole executions and what only they used, and nothing that is still needed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gyre.proxy.errors import ConfigError, CorruptLogError, LogBusyError
from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.prune import prune
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import SECOND, START, LogBuilder, growing_run, message

DAY = 86_400 * SECOND


def build(root: Path, names: tuple[str, ...] = ("e1", "e2", "e3")) -> LogBuilder:
    """A day between executions; all share one message; two files."""
    builder = LogBuilder(root)
    for name in names:
        worker = builder.worker()
        growing_run(worker, 3, execution=name)
        worker.call(f"{name}-shared", messages=[message("shared by all")], execution=name)
        worker.event("ended", execution=name)
        worker.die()
        if name != names[-1]:
            seal(root)
        builder.clock += DAY
    return builder


def size(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.parquet"))


def moment(days: float) -> datetime:
    return datetime.fromtimestamp(START // SECOND, UTC) + timedelta(days=days)


def test_named_executions_go_with_rows_events_and_messages(tmp_path: Path) -> None:
    builder = build(tmp_path)
    seal(tmp_path)
    before = size(tmp_path)
    report = prune(tmp_path, executions=["e1", "unknown"])
    assert (report.executions, report.kept) == (["e1"], [])
    assert (report.calls, report.events, report.messages) == (4, 1, 4)
    assert report.bytes_freed == before - size(tmp_path) > 0
    log = read_log(tmp_path)
    assert set(log.calls["execution_id"].to_pylist()) == {"e2", "e3"}
    assert set(log.executions["execution_id"].to_pylist()) == {"e2", "e3"}
    for key, truth in builder.truth.items():
        if not key[0].startswith("e1"):
            assert log.request_body(*key) == truth.body
    assert check(tmp_path).findings == []


def test_executions_go_by_their_last_sign_of_life(tmp_path: Path) -> None:
    build(tmp_path)
    assert prune(tmp_path, before=moment(-1)).executions == []
    assert prune(tmp_path, before=moment(1.5)).executions == ["e1", "e2"]
    assert set(read_log(tmp_path).calls["execution_id"].to_pylist()) == {"e3"}


def test_a_name_and_a_time_must_both_hold(tmp_path: Path) -> None:
    build(tmp_path)
    assert prune(tmp_path, before=moment(1.5), executions=["e2", "e3"]).executions == ["e2"]


def test_a_dry_run_says_what_would_go_and_changes_nothing(tmp_path: Path) -> None:
    build(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    report = prune(tmp_path, executions=["e1"], dry_run=True)
    assert (report.executions, report.calls, report.events) == (["e1"], 4, 1)
    assert report.bytes_freed > 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_what_to_prune_must_be_said(tmp_path: Path) -> None:
    build(tmp_path)
    with pytest.raises(ConfigError, match="nothing says what to prune"):
        prune(tmp_path)


def test_everything_may_go(tmp_path: Path) -> None:
    build(tmp_path)
    report = prune(tmp_path, before=moment(100))
    assert report.executions == ["e1", "e2", "e3"]
    assert list(tmp_path.rglob("*.parquet")) == []
    assert read_log(tmp_path).calls.num_rows == 0


def test_an_execution_of_a_running_proxy_is_kept(tmp_path: Path) -> None:
    builder = build(tmp_path)
    live = builder.worker("live")
    live.intent("now", execution="e1")
    report = prune(tmp_path, executions=["e1", "e2"])
    assert (report.executions, report.kept) == (["e2"], ["e1"])


def test_what_a_running_proxy_has_sealed_is_kept_until_it_forgets(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    first, second = builder.worker("w"), builder.worker("w")
    first.call("c1", execution="e1")
    first.close()
    second.call("c2", execution="e2")
    assert prune(tmp_path, executions=["e1"]).kept == ["e1"]
    assert prune(tmp_path, executions=["e1"], forgetful=True).executions == ["e1"]


def test_messages_stay_while_a_proxy_runs_that_may_refer_to_them(tmp_path: Path) -> None:
    builder = build(tmp_path)
    live = builder.worker("live")
    report = prune(tmp_path, executions=["e1"])
    assert (report.messages, report.messages_kept) == (0, True)
    # It has not written the message itself: to its knowledge the log holds it.
    live.call("again", messages=[message("e1 turn 0")], execution="e9", new_messages=[])
    assert read_log(tmp_path).message_list("again") == [message("e1 turn 0")]
    live.die()
    assert prune(tmp_path, executions=["e1"]).messages == 3
    assert read_log(tmp_path).message_list("again") == [message("e1 turn 0")]


def test_a_message_that_only_the_journal_refers_to_stays(tmp_path: Path) -> None:
    builder = build(tmp_path)
    live = builder.worker("live")
    live.call("again", messages=[message("e1 turn 0")], execution="e9", new_messages=[])
    assert prune(tmp_path, executions=["e1"], forgetful=True).messages == 3
    assert read_log(tmp_path).message_list("again") == [message("e1 turn 0")]


def test_a_damaged_file_stops_a_prune_before_it_starts(tmp_path: Path) -> None:
    build(tmp_path)
    seal(tmp_path)
    first, *_ = sorted((tmp_path / "calls").iterdir())
    first.write_bytes(b"")
    before = size(tmp_path)
    with pytest.raises(CorruptLogError, match=first.name):
        prune(tmp_path, executions=["e2"])
    assert size(tmp_path) == before


def test_columns_of_a_newer_gyre_survive(tmp_path: Path) -> None:
    build(tmp_path)
    seal(tmp_path)
    worker = LogBuilder(tmp_path).worker("both")
    worker.call("a", execution="e4")
    worker.call("b", execution="e5")
    worker.die()
    seal(tmp_path)
    (path,) = [p for p in (tmp_path / "calls").iterdir() if pq.read_metadata(p).num_rows == 2]
    table = pq.read_table(path)
    newer = table.append_column("mood", pa.array(["good", "bad"]))
    pq.write_table(newer.replace_schema_metadata(table.schema.metadata), path)
    prune(tmp_path, executions=["e4"])
    assert pq.read_table(path)["mood"].to_pylist() == ["bad"]
    assert set(read_log(tmp_path).calls["execution_id"].to_pylist()) == {"e1", "e2", "e3", "e5"}


def test_a_prune_waits_for_no_seal(tmp_path: Path) -> None:
    builder = build(tmp_path)
    with builder.folder.sealing(), pytest.raises(LogBusyError):
        prune(tmp_path, executions=["e1"])
