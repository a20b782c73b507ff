"""What is broken in a log costs the executions that have it, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.calls import VersionSpan
from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.sealing.seal import seal
from gyre.treebuilder import read_trees
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError, TreeError
from gyre.treebuilder.online import Online
from tests.log.builders import LogBuilder, Worker, digest_of
from tests.trees.store.logs import build, damage, files_in, times_in, write_some, write_told

BROKEN: dict[str, tuple[Callable[[Worker], object], str]] = {}


def broken(text: str) -> Callable[[Callable[[Worker], object]], Callable[[Worker], object]]:
    def register(write: Callable[[Worker], object]) -> Callable[[Worker], object]:
        BROKEN[write.__name__] = (write, text)
        return write

    return register


def second(worker: Worker, **columns: Any) -> None:
    """Two calls, the second of which goes on from the first."""
    worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.call("x2", [1, 2, 3, 4, 5], [6], execution="x", parent=("x1", 0, 0), **columns)


@broken("`x2` cannot be rebuilt: `gone` is missing")
def missing_parent(worker: Worker) -> None:
    second(worker, parent_call_id="gone")


@broken("`x2` cannot be rebuilt: its parents form no chain")
def cycle(worker: Worker) -> None:
    second(worker, parent_call_id="x2")


@broken("`x2` shares 5 ids with `x1`, which has 4")
def shared_too_much(worker: Worker) -> None:
    second(worker, prompt_shared=5, prompt_tokens=6)


@broken("`x2` shares 9 messages with `x1`, which has 1")
def shared_messages(worker: Worker) -> None:
    second(worker, messages_shared=9)


@broken("`x1` shares with a parent and names none")
def no_parent_named(worker: Worker) -> None:
    worker.call("x1", [1, 2, 3], [4], execution="x", messages_shared=1)


@broken("its prompt ids are not those that were captured")
def digest(worker: Worker) -> None:
    second(worker, prompt_digest=digest_of([1]))


@broken("`x2` should have 7 prompt ids and has 5")
def length(worker: Worker) -> None:
    second(worker, prompt_tokens=7)


@broken("`x2` has a prompt length without ids")
def ids_without_length(worker: Worker) -> None:
    second(worker, prompt_suffix=None)


@broken("`x2` claims exact capture with 1 output ids and 0 log-probabilities")
def logprobs(worker: Worker) -> None:
    second(worker, logprobs=b"")


@broken("`x2` has a version span 0-9 over 1 output ids")
def spans(worker: Worker) -> None:
    second(worker, version_spans=[VersionSpan("1", 0, 9)])


@broken("`x1` is in the log twice, with different content")
def twins(worker: Worker) -> None:
    worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.call("x1", [1, 2, 3], [5], execution="x")


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_execution_is_skipped_by_name_and_stops_no_other(
    log: LogBuilder, out: Path, name: str, sealed: bool
) -> None:
    write, text = BROKEN[name]
    write_some(log, "ab")
    worker = log.worker()
    write(worker)
    worker.close()
    write_some(log, "c")
    if sealed:
        seal(log.root)
    report = build(log, out)
    assert not report.ok and list(report.skipped) == ["x"] and text in report.skipped["x"]
    assert report.totals["skipped"] == [
        {"execution_id": "x", "execution_attempt": 0, "reason": report.skipped["x"]}
    ]
    assert [summary.execution_id for summary, _ in read_trees(out)] == ["a", "b", "c"]
    with pytest.raises(TreeError, match="could not be rebuilt"):
        read_trees(out).tree("x")
    before = times_in(out)
    assert build(log, out).rebuilt == 1
    assert times_in(out) == before
    with pytest.raises(ExecutionError, match="execution `x`"):
        build(log, out.with_name("strict"), strict=True)


def test_a_row_that_was_written_twice_counts_once(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    record = worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.close()
    seal(log.root)
    other = log.worker("w1")
    other.segment.append([record])
    other.close()
    seal(log.root)
    assert build(log, out).ok
    assert len(read_trees(out).tree("x").links) == 1


def test_clocks_that_run_backwards_are_told(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    worker.call("x1", [1, 2, 3], [4], execution="x", started_ns=9_000_000_000, ended_ns=8_000_000_000)
    worker.call(
        "x2", [1, 2, 3, 4, 5], [6], execution="x", parent=("x1", 0, 0), started_ns=1_000, ended_ns=2_000
    )
    worker.close()
    report = build(log, out)
    assert report.ok
    texts = [each["text"] for each in report.totals["problems"]]
    assert any("`x1` ended before it started" in text for text in texts)
    assert any("`x2` started before `x1`" in text for text in texts)


def test_a_fault_of_the_builder_costs_the_execution_that_shows_it(
    log: LogBuilder, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(log, "abc")
    add = Builder.add

    def faulty(builder: Builder, call: Call) -> None:
        if call.key.call_id.startswith("b"):
            raise RecursionError("too deep")
        add(builder, call)

    monkeypatch.setattr(Builder, "add", faulty)
    report = build(log, out)
    assert report.skipped == {"b": "a fault of gyre's own: RecursionError: too deep"}
    with Online(log.root) as online:
        made = online.trees([(name, 0) for name in "abc"])
    assert [isinstance(made[name, 0], ExecutionError) for name in "abc"] == [False, True, False]
    monkeypatch.undo()
    assert build(log, out).ok


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


@pytest.mark.parametrize("column", ["call_id", "prompt_suffix_ids.list.element", "response"])
def test_a_damaged_page_costs_the_executions_that_have_rows_there(
    log: LogBuilder, out: Path, column: str
) -> None:
    write_some(log, "ab")
    seal(log.root)
    write_some(log, "z")
    seal(log.root)
    damage(newest(log.root / "calls"), column)
    report = build(log, out)
    assert list(report.skipped) == ["z"] and "cannot be read" in report.skipped["z"]
    assert {each.code for each in report.findings} == {"corrupt_file"}
    assert len(list(read_trees(out))) == 2
    with pytest.raises((ExecutionError, CorruptLogError)):
        build(log, out.with_name("strict"), strict=True)


def test_what_was_damaged_is_built_once_it_is_whole(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    seal(log.root)
    path = newest(log.root / "calls")
    whole = path.read_bytes()
    damage(path, "output_ids.list.element")
    assert list(build(log, out).skipped) == ["a", "b"]
    path.write_bytes(whole)
    assert build(log, out).ok
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_a_damaged_column_that_says_whose_rows_they_are_is_told(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    seal(log.root)
    damage(newest(log.root / "calls"), "execution_id")
    report = build(log, out)
    assert not report.ok and "corrupt_file" in {each.code for each in report.findings}
    with pytest.raises(CorruptLogError):
        build(log, out.with_name("strict"), strict=True)


def test_trees_of_what_a_damaged_log_has_lost_are_not_called_removed(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    for name in ("a", "b"):
        worker.call(f"{name}1", execution=name)
    worker.close()
    seal(log.root)
    build(log, out)
    newest(log.root / "calls").write_bytes(b"PAR1")
    before = files_in(out)
    with pytest.raises(TreeError, match=r"`a`, `b`; .*parquet: cannot be read") as refused:
        build(log, out)
    assert "--prune" not in refused.value.hint and "log check" in refused.value.hint
    assert files_in(out) == before


def test_a_message_that_is_missing_costs_those_who_need_it(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    seal(log.root)
    write_told(log)
    seal(log.root)
    newest(log.root / "messages").unlink()
    report = build(log, out)
    assert list(report.skipped) == ["told"] and "is not in the log" in report.skipped["told"]
