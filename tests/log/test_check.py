"""`check` finds what is missing or altered, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gyre.proxy.calls import NewMessage, OwnReport, VersionSpan
from gyre.proxy.errors import ConfigError
from gyre.proxy.log.check import Report, check
from gyre.proxy.log.reading.groups import read_groups
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, Worker, address, digest_of, growing_run, message

READERS = [False, True]
"""Checked in the journal, and sealed."""


def found(root: Path, sealed: bool) -> Report:
    if sealed:
        seal(root)
    return check(root)


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize("sealed", READERS)
def test_a_whole_log_is_ok_and_counted(tmp_path: Path, sealed: bool) -> None:
    worker = LogBuilder(tmp_path).worker()
    growing_run(worker, 5)
    growing_run(worker, 3, execution="e2")
    worker.die()
    report = found(tmp_path, sealed)
    assert report.ok
    assert report.findings == []
    expected = {"calls": 8, "executions": 2, "prompts": 8, "bodies": 8, "messages": 10, "open": 0}
    assert {name: report.counts[name] for name in expected} == expected


def wrong_prompt(worker: Worker) -> None:
    worker.call("c1", [1, 2, 3], prompt_digest=digest_of([1, 2, 4]))


def wrong_length(worker: Worker) -> None:
    worker.call("c1", [1, 2, 3], prompt_tokens=4)


def lost_prompt(worker: Worker) -> None:
    worker.call("c1", None, None, prompt_tokens=4)


def wrong_body(worker: Worker) -> None:
    worker.call("c1", request_digest=b"\x01" * 16)


def lost_message(worker: Worker) -> None:
    worker.call("c1", messages=[message("never seen")], new_messages=[])


def altered_message(worker: Worker) -> None:
    worker.call("c1", [1], messages=[], request=None)
    forged = NewMessage(address(message("real")), "message", message("forged"))
    worker.call("c2", [1], messages=[], request=None, new_messages=[forged])


def lost_parent(worker: Worker) -> None:
    worker.call("c1", [1, 2, 3], parent_call_id="gone", messages=[], request=None)


def parent_of_another_execution(worker: Worker) -> None:
    worker.call("c0", [9], execution="other")
    worker.call("c1", [1, 2, 3], parent_call_id="c0", messages=[], request=None)


def parent_that_is_later(worker: Worker) -> None:
    worker.call("c1", [1, 2, 3], parent_call_id="c2", messages=[], request=None)
    worker.call("c2", [1, 2, 3], messages=[], request=None)


def few_logprobs(worker: Worker) -> None:
    worker.call("c1", output=[4, 5], logprobs=np.zeros(1, "<f4").tobytes())


def few_raw_logprobs(worker: Worker) -> None:
    worker.call("c1", output=[4, 5], own=OwnReport(raw_logprobs=np.zeros(3, "<f4").tobytes()))


@pytest.mark.parametrize("sealed", READERS)
@pytest.mark.parametrize(
    ("spans", "whole"),
    [
        ([], True),
        ([("1", 0, 3)], True),
        ([("1", 0, 1), ("2", 1, 1), ("2", 1, 3)], True),
        ([("1", 0, 2)], False),
        ([("1", 0, 4)], False),
        ([("1", 1, 3)], False),
        ([("1", 0, 1), ("2", 2, 3)], False),
        ([("1", 0, 2), ("2", 1, 3)], False),
        ([("2", 1, 3), ("1", 0, 1)], False),
    ],
)
def test_versions_cover_all_that_was_sampled_in_order(
    tmp_path: Path, spans: list[tuple[str, int, int]], whole: bool, sealed: bool
) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1", [1, 2], [4, 5, 6], version_spans=[VersionSpan(*span) for span in spans])
    worker.die()
    assert codes(found(tmp_path, sealed)) == ([] if whole else ["version_spans"])


@pytest.mark.parametrize(
    ("spans", "outcome", "whole"),
    [
        ([("1", 0, 4)], "ok", True),
        ([("1", 0, 5)], "ok", True),
        ([("0", 0, 1), ("1", 1, 2)], "ok", True),
        ([("0", 0, 1)], "ok", False),
        ([("0", 0, 1)], "client_gone", True),
        ([], "upstream_cut", True),
        ([("1", 0, 6)], "ok", False),
        ([("0", 0, 1), ("1", 2, 4)], "ok", False),
    ],
)
def test_kv_spans_cover_the_prompt_and_at_most_the_output(
    tmp_path: Path, spans: list[tuple[str, int, int]], outcome: str, whole: bool
) -> None:
    worker = LogBuilder(tmp_path).worker()
    own = OwnReport(kv_spans=[VersionSpan(*span) for span in spans])
    worker.call("c1", [1, 2], [4, 5, 6], outcome=outcome, own=own)
    worker.die()
    assert codes(found(tmp_path, sealed=True)) == ([] if whole else ["kv_spans"])


def same_key_other_payload(worker: Worker) -> None:
    worker.call("c1", output=[4])
    worker.call("c1", output=[5])


@pytest.mark.parametrize("sealed", READERS)
@pytest.mark.parametrize(
    ("flaw", "code", "where"),
    [
        (wrong_prompt, "prompt_digest", "c1"),
        (wrong_length, "prompt_length", "c1"),
        (lost_prompt, "prompt_missing", "c1"),
        (wrong_body, "request_digest", "c1"),
        (lost_message, "cannot_rebuild", "c1"),
        (altered_message, "message_hash", None),
        (lost_parent, "bad_parent", "c1"),
        (parent_of_another_execution, "bad_parent", "c1"),
        (parent_that_is_later, "bad_parent", "c1"),
        (few_logprobs, "logprobs_length", "c1"),
        (few_raw_logprobs, "logprobs_length", "c1"),
        (same_key_other_payload, "conflicting_rows", "c1"),
    ],
)
def test_every_flaw_is_an_error_that_names_the_call(
    tmp_path: Path, flaw: Callable[[Worker], None], code: str, where: str | None, sealed: bool
) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("fine")
    flaw(worker)
    worker.die()
    report = found(tmp_path, sealed)
    assert not report.ok
    assert codes(report) == [code]
    assert where in (None, report.findings[0].where)


def test_rows_of_one_key_with_other_content_are_both_kept(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    same_key_other_payload(worker)
    worker.die()
    seal(tmp_path)
    assert sorted(read_log(tmp_path).calls["output_ids"].to_pylist()) == [[4], [5]]


def test_a_raw_body_is_checked_and_a_shortened_one_is_counted(tmp_path: Path) -> None:
    import xxhash

    worker = LogBuilder(tmp_path).worker()
    body = b'{"odd" : true}'
    worker.call("raw", raw_request=body, request_bytes=len(body), request_digest=xxhash.xxh3_128_digest(body))
    worker.call("long", raw_request=body, request_bytes=1000, request_digest=b"\x05" * 16)
    worker.call("bad", raw_request=body, request_bytes=len(body), request_digest=b"\x05" * 16)
    worker.die()
    report = check(tmp_path)
    assert [(f.code, f.where) for f in report.findings] == [("request_digest", "bad")]
    assert report.counts["bodies_shortened"] == 1


def test_answered_calls_are_looked_up_one_by_one(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("good")
    worker.call("retried", outcome="upstream_error")
    worker.call("retried", attempt=1)
    worker.call("failed", outcome="client_gone")
    worker.intent("lost")
    worker.die()
    listed = tmp_path / "ids"
    listed.write_text('good\n{"call_id": "retried", "status": 200}\n\nfailed\nlost\nnever\n')
    report = check(tmp_path, answered=listed)
    assert [(f.code, f.where) for f in report.findings] == [
        ("answered_not_ok", "failed"),
        ("answered_not_ok", "lost"),
        ("answered_missing", "never"),
    ]
    assert (report.counts["answered"], report.counts["answered_complete"]) == (5, 2)
    assert not report.ok


def test_an_answered_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    LogBuilder(tmp_path)
    with pytest.raises(ConfigError, match="nowhere"):
        check(tmp_path, answered=tmp_path / "nowhere")
    (tmp_path / "odd").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError, match="no `call_id`"):
        check(tmp_path, answered=tmp_path / "odd")


def two_seals(root: Path) -> list[Path]:
    builder = LogBuilder(root)
    for name in ("e1", "e2"):
        worker = builder.worker()
        growing_run(worker, 3, execution=name)
        worker.event("ended", execution=name)
        worker.die()
        seal(root)
    return sorted((root / "calls").iterdir())


@pytest.mark.parametrize("damage", ["empty", "cut", "page"])
def test_a_damaged_parquet_file_is_named_and_the_rest_is_read(tmp_path: Path, damage: str) -> None:
    first, _ = two_seals(tmp_path)
    data = first.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 8] ^= 0xFF
    first.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "page": bytes(flipped)}[damage])
    log = read_log(tmp_path)
    assert log.calls["execution_id"].to_pylist() == ["e2"] * 3
    assert [(f.code, f.where) for f in log.problems] == [("corrupt_file", str(first))]
    report = check(tmp_path)
    assert {(f.code, f.where) for f in report.findings} == {("corrupt_file", str(first))}
    assert not report.ok


def test_a_damaged_messages_file_is_named_and_its_bodies_cannot_be_rebuilt(tmp_path: Path) -> None:
    two_seals(tmp_path)
    first, _ = sorted((tmp_path / "messages").iterdir())
    first.write_bytes(b"PAR1 nonsense PAR1")
    report = check(tmp_path)
    assert report.findings[0].where == str(first)
    assert [f.where for f in report.findings[1:]] == ["e1-00000", "e1-00001", "e1-00002"]


def test_a_seal_beside_a_damaged_file_still_works(tmp_path: Path) -> None:
    first, _ = two_seals(tmp_path)
    first.write_bytes(b"")
    worker = LogBuilder(tmp_path).worker("later")
    growing_run(worker, 2, execution="e3")
    worker.die()
    assert seal(tmp_path).calls == 2
    assert first.exists()
    assert set(read_log(tmp_path).calls["execution_id"].to_pylist()) == {"e2", "e3"}


def test_foreign_files_are_ignored_and_noted(tmp_path: Path) -> None:
    two_seals(tmp_path)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "calls" / "mine.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "calls" / f"{1:016x}-{2:016x}.parquet")
    (tmp_path / "journal" / "x.tmp").write_text("x")
    report = check(tmp_path)
    assert report.ok
    assert sorted(Path(f.where).name for f in report.findings) == sorted(
        ["mine.parquet", f"{1:016x}-{2:016x}.parquet", "x.tmp"]
    )
    assert {f.code for f in report.findings} == {"foreign_file"}


def test_a_parquet_file_of_a_newer_format_is_an_error_and_not_read(tmp_path: Path) -> None:
    first, _ = two_seals(tmp_path)
    table = pq.read_table(first)
    newer = {**(table.schema.metadata or {}), b"gyre_format": b"2"}
    pq.write_table(table.replace_schema_metadata(newer), first)
    report = check(tmp_path)
    assert codes(report) == ["newer_format"]
    assert report.counts["calls"] == 3


def test_columns_of_a_newer_schema_are_ignored_and_missing_ones_are_null(tmp_path: Path) -> None:
    first, _ = two_seals(tmp_path)
    table = pq.read_table(first)
    changed = table.drop_columns(["cell", "seed", "kv_spans", "raw_logprobs"]).append_column(
        "mood", pa.array(["good"] * 3)
    )
    pq.write_table(changed.replace_schema_metadata(table.schema.metadata), first)
    calls = read_log(tmp_path).calls
    assert "mood" not in calls.schema.names
    assert calls["cell"].to_pylist() == calls["kv_spans"].to_pylist() == [None] * 6
    assert check(tmp_path).ok


def test_a_log_in_small_groups_is_checked_like_one(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    for i in range(6):
        worker = builder.worker()
        growing_run(worker, 3, execution=f"e{i}")
        worker.call(f"mixed-{i}", execution=f"e{(i + 1) % 6}")
        worker.die()
        if i != 5:
            seal(tmp_path)
    groups = list(read_groups(tmp_path, most_bytes=1))
    assert len(groups) == 6
    assert sum(group.calls.num_rows for group in groups) == 24
    assert all(len(set(group.calls["execution_id"].to_pylist())) == 1 for group in groups)
    for group in groups:
        assert [group.request_body(*key) for key in group.row_keys()] == [
            builder.truth[key].body for key in group.row_keys()
        ]
