"""Sealing: the same rows as the journal, once, whoever wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import OwnReport, Sampling, VersionSpan, WeightDigest
from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.sealing import files as sealing
from gyre.proxy.log.sealing.seal import main, seal
from tests.log.builders import LogBuilder, growing_run, message, packed

IDS = st.lists(st.integers(0, 3), max_size=12)
SLOW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_true(builder: LogBuilder, log: Log) -> None:
    """Everything rebuilt equals what was written."""
    assert log.problems == []
    assert set(log.row_keys()) >= builder.truth.keys()
    for key, truth in builder.truth.items():
        ids = log.prompt_ids(*key)
        assert (None if ids is None else ids.tolist()) == truth.prompt
        assert log.message_list(*key) == truth.messages
        assert log.request_body(*key) == truth.body


def assert_same(one: Log, other: Log) -> None:
    assert one.calls.equals(other.calls)
    assert one.executions.equals(other.executions)
    assert one.messages.sort_by("hash").equals(other.messages.sort_by("hash"))


def test_sealed_is_what_the_journal_was(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.event("started", task="t1", group="g1", evaluation=False)
    growing_run(worker, 12)
    worker.call("plain", None, None, capture_flags=["no_ids"], tools=[b'{"type":"function"}'])
    worker.event("scored", score=0.5, details=b'{"by":"tests"}')
    worker.close()
    before = read_log(tmp_path)
    assert_true(builder, before)
    report = seal(tmp_path)
    after = read_log(tmp_path)
    assert_true(builder, after)
    assert_same(before, after)
    assert (report.segments, report.calls, report.executions) == (1, 13, 2)
    assert list(builder.folder.segments()) == []


def test_every_column_survives_with_its_meaning(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.call(
        "c1",
        sampling=Sampling(temperature=0.5, top_k=7, seed=3),
        version_spans=[VersionSpan("v1", 0, 1), VersionSpan("v2", 1, 2)],
        error="it broke",
        held_s=1.5,
        raw_response=b"\xff\x00",
        response_digest=b"\x01" * 16,
        response_meta=b'{"id":"x"}',
        delivery_of="c0",
        cell="cell-1",
        upstream_model="m2",
        own=OwnReport(
            raw_logprobs=np.array([-2, -3], "<f4").tobytes(),
            kv_spans=[VersionSpan("v0", 0, 3), VersionSpan("v2", 3, 4)],
            weight_digests=[WeightDigest("v1", "ab"), WeightDigest("v2", "cd")],
            spliced_tokens=2,
        ),
    )
    worker.call("c2")
    worker.close()
    seal(tmp_path)
    row, other = read_log(tmp_path).calls.to_pylist()
    expected: dict[str, Any] = dict(
        temperature=0.5,
        top_p=None,
        top_k=7,
        seed=3,
        version_spans=[
            {"version": "v1", "start": 0, "end": 1},
            {"version": "v2", "start": 1, "end": 2},
        ],
        error="it broke",
        held_s=1.5,
        raw_response=b"\xff\x00",
        response_digest="01" * 16,
        response_meta='{"id":"x"}',
        delivery_of="c0",
        cell="cell-1",
        upstream_model="m2",
        prompt_suffix_ids=[1, 2, 3],
        output_ids=[4, 5],
        output_logprobs=[-1.0, 0.0],
        raw_logprobs=[-2.0, -3.0],
        kv_spans=[{"version": "v0", "start": 0, "end": 3}, {"version": "v2", "start": 3, "end": 4}],
        weight_digests=[{"version": "v1", "digest": "ab"}, {"version": "v2", "digest": "cd"}],
        spliced_tokens=2,
        usage_prompt_tokens=3,
        usage_completion_tokens=2,
        usage_cached_tokens=1,
        client="test/1",
        execution_source="url",
    )
    assert {name: row[name] for name in expected} == expected
    of_our_engine = ("raw_logprobs", "kv_spans", "weight_digests", "spliced_tokens")
    assert [other[name] for name in of_our_engine] == [None] * 4


def test_a_seed_no_column_can_hold_does_not_stop_the_seal(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1", sampling=Sampling(seed=2**64 - 1, top_k=5))
    worker.call("c2", sampling=Sampling(seed=8))
    worker.close()
    seal(tmp_path)
    rows = read_log(tmp_path).calls.to_pylist()
    assert [(row["seed"], row["top_k"]) for row in rows] == [(None, 5), (8, None)]


def test_a_body_that_is_no_text_is_kept_as_bytes(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1", request=b"\xff{", response=b"\xfe", usage=b"not json")
    worker.close()
    seal(tmp_path)
    row = read_log(tmp_path).calls.to_pylist()[0]
    assert (row["request"], row["raw_request"]) == (None, b"\xff{")
    assert (row["response"], row["raw_response"]) == (None, b"\xfe")
    assert (row["usage"], row["usage_prompt_tokens"]) == ("not json", None)


@st.composite
def runs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Calls of two workers in two executions; every one may extend any earlier one of its own."""
    calls: list[dict[str, Any]] = []
    for i in range(draw(st.integers(1, 10))):
        execution = draw(st.sampled_from(["e1", "e2"]))
        earlier = [c["call_id"] for c in calls if c["execution"] == execution]
        calls.append(
            dict(
                call_id=f"c{i}",
                worker=draw(st.integers(0, 1)),
                execution=execution,
                prompt=draw(st.one_of(st.none(), IDS)),
                output=draw(IDS),
                messages=[message(str(n)) for n in draw(st.lists(st.integers(0, 2), max_size=4))],
                parent=draw(st.sampled_from([None, *earlier])) if earlier else None,
            )
        )
    return calls


@SLOW
@given(runs(), st.lists(st.integers(0, 10), max_size=3))
def test_any_log_reads_the_same_before_and_after_any_seals(
    tmp_path_factory: Any, calls: list[dict[str, Any]], seals: list[int]
) -> None:
    root = tmp_path_factory.mktemp("log")
    builder = LogBuilder(root)
    workers = [builder.worker(f"w{i}") for i in range(2)]
    for i, call in enumerate(calls):
        if i in seals:
            for worker in workers:
                worker.close()
            seal(root)
            workers = [builder.worker(f"w{n}") for n in range(2)]
        fields = dict(call)
        parent = fields.pop("parent")
        worker = workers[fields.pop("worker")]
        worker.call(fields.pop("call_id"), parent=(parent, 0, 0) if parent else None, **fields)
    assert_true(builder, read_log(root))
    for worker in workers:
        worker.close()
    seal(root)
    after = read_log(root)
    assert_true(builder, after)
    assert [row[0] for row in after.row_keys()] == [call["call_id"] for call in calls]


def test_a_live_segment_stays_and_is_read_beside_the_sealed_ones(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    one, two = builder.worker("w1"), builder.worker("w2")
    one.call("a")
    two.call("b")
    one.die()
    report = seal(tmp_path)
    assert (report.segments, report.calls) == (1, 1)
    assert builder.folder.segments() == [two.path]
    two.call("c")
    assert [key[0] for key in read_log(tmp_path).row_keys()] == ["a", "b", "c"]


def test_rows_of_several_workers_are_in_commit_order(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    workers = [builder.worker(f"w{i}") for i in range(3)]
    for i in range(30):
        workers[(i * 7) % 3].call(f"c{i:02d}")
    for worker in workers:
        worker.die()
    seal(tmp_path)
    assert [key[0] for key in read_log(tmp_path).row_keys()] == [f"c{i:02d}" for i in range(30)]


def test_a_segment_out_of_order_is_sorted(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    late = builder.clock + 10**9
    worker.call("late", order=late)
    worker.call("early")
    worker.die()
    seal(tmp_path)
    assert [key[0] for key in read_log(tmp_path).row_keys()] == ["early", "late"]


def test_a_message_is_stored_once_over_workers_and_seals(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    for name in ("w1", "w2", "w3"):
        builder.known.clear()
        worker = builder.worker(name)
        worker.call(f"c-{name}", messages=[message("the same"), message(name)])
        worker.die()
        if name != "w1":
            seal(tmp_path)
    files = list((tmp_path / "messages").glob("*.parquet"))
    hashes = [h for file in files for h in pq.read_table(file)["hash"].to_pylist()]
    assert len(files) == 2
    assert len(hashes) == len(set(hashes)) == 4
    assert_true(builder, read_log(tmp_path))


def test_a_row_written_twice_after_an_error_counts_once(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    one, two, three = (builder.worker(name) for name in ("w1", "w2", "w3"))
    record = one.call("c1")
    two.segment.append([record])
    for worker in (one, two):
        worker.die()
    assert read_log(tmp_path).calls.num_rows == 1
    report = seal(tmp_path)
    assert (report.calls, report.duplicates) == (1, 1)
    three.segment.append([record])
    three.die()
    assert read_log(tmp_path).calls.num_rows == 1
    assert seal(tmp_path).duplicates == 1
    assert read_log(tmp_path).calls.num_rows == 1


def test_only_events_still_make_a_calls_file_as_the_commit_point(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.event("started")
    worker.close()
    seal(tmp_path)
    log = read_log(tmp_path)
    assert (log.calls.num_rows, log.executions.num_rows) == (0, 1)
    assert len(list((tmp_path / "calls").iterdir())) == 1
    assert list((tmp_path / "messages").iterdir()) == []


def test_large_logs_are_written_in_several_row_groups(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sealing, "ROW_GROUP_BYTES", 20_000)
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    growing_run(worker, 100)
    worker.die()
    seal(tmp_path)
    (file,) = (tmp_path / "calls").iterdir()
    assert pq.read_metadata(file).num_row_groups > 3
    assert_true(builder, read_log(tmp_path))


def test_a_hundred_segments_become_a_few_files(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    for i in range(100):
        worker = builder.worker(f"w{i}")
        worker.call(f"c{i}")
        worker.die()
    assert seal(tmp_path).segments == 100
    assert len(list((tmp_path / "calls").iterdir())) == 2
    assert_true(builder, read_log(tmp_path))


def test_the_command_of_the_proxy_prints_one_line_of_json(tmp_path: Path, capsys: Any) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    worker.call("c1")
    worker.die()
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out)["calls"] == 1
    assert main([str(tmp_path / "nowhere")]) == 1
    assert "error:" in capsys.readouterr().err


def test_parquet_has_plain_types_for_any_reader(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1", [1, 2, 70_000])
    worker.die()
    seal(tmp_path)
    (file,) = (tmp_path / "calls").iterdir()
    table = pq.read_table(file)
    assert table["prompt_suffix_ids"].to_pylist() == [[1, 2, 70_000]]
    assert packed(table["output_ids"].to_pylist()[0]) == np.array([4, 5], "<i4").tobytes()
    encodings = {
        pq.read_metadata(file).row_group(0).column(i).path_in_schema: pq.read_metadata(file)
        .row_group(0)
        .column(i)
        .encodings
        for i in range(pq.read_metadata(file).num_columns)
    }
    assert "BYTE_STREAM_SPLIT" in encodings["output_logprobs.list.element"]
