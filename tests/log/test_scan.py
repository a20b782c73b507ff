"""Segments after kills and bad disks: what is whole is read, the rest is counted, nothing crashes."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from gyre.proxy.calls import CallRecord, OwnReport, Record
from gyre.proxy.errors import LogFormatError
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.reading.scan import Damage, Tail, scan
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, Worker, growing_run


def segment(root: Path, calls: int = 8) -> Worker:
    worker = LogBuilder(root).worker()
    growing_run(worker, calls)
    worker.die()
    return worker


def read(path: Path) -> tuple[list[Record], Damage]:
    damage = Damage()
    return list(scan(path, damage)), damage


def test_every_cut_keeps_what_was_whole(tmp_path: Path) -> None:
    path = segment(tmp_path).path
    data = path.read_bytes()
    whole, _ = read(path)
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at])
        records, damage = read(path)
        assert records == whole[: len(records)]
        assert damage.torn_bytes <= at
    assert len(records) == len(whole) - 1


def test_a_zeroed_page_ends_the_segment_and_is_counted(tmp_path: Path) -> None:
    path = segment(tmp_path, 30).path
    data = bytearray(path.read_bytes())
    whole, _ = read(path)
    data[8192 : 8192 + 4096] = bytes(4096)
    path.write_bytes(data)
    records, damage = read(path)
    assert 0 < len(records) < len(whole)
    assert records == whole[: len(records)]
    assert damage.torn_bytes + damage.bad_rows > 0


def test_a_row_that_lost_a_bit_is_left_out_and_an_error(tmp_path: Path) -> None:
    path = segment(tmp_path).path
    data = path.read_bytes()
    path.write_bytes(data.replace(b"e1-00003", b"e1-00004", 1))
    log = read_log(tmp_path)
    assert [finding.code for finding in log.problems] == ["bad_rows"]
    assert log.calls.num_rows == 7


def test_no_single_flaw_crashes_or_invents_a_row(tmp_path: Path) -> None:
    path = segment(tmp_path).path
    data = path.read_bytes()
    whole, _ = read(path)
    draw = random.Random(7)
    for _ in range(600):
        broken = bytearray(data)
        at, length = draw.randrange(len(data)), draw.choice([1, 8, 64, 512])
        broken[at : at + length] = draw.choice([bytes(length), b"\xff" * length])[: len(data) - at]
        path.write_bytes(broken)
        records, _ = read(path)
        assert all(record in whole for record in records)


@pytest.mark.parametrize("flaw", [b"", b"\0" * 100, b"no journal at all" * 10])
def test_a_segment_without_a_header_holds_nothing(tmp_path: Path, flaw: bytes) -> None:
    path = segment(tmp_path).path
    path.write_bytes(flaw)
    records, damage = read(path)
    assert records == []
    assert damage.torn_bytes == len(flaw)


def test_a_torn_tail_is_reported_and_sealed_without_it(tmp_path: Path) -> None:
    path = segment(tmp_path).path
    path.write_bytes(path.read_bytes()[:-100])
    log = read_log(tmp_path)
    assert [(f.severity, f.code, f.where) for f in log.problems] == [("note", "torn_tail", str(path))]
    report = seal(tmp_path)
    assert report.calls == log.calls.num_rows == 7
    assert [finding.code for finding in report.problems] == ["torn_tail"]


def test_a_live_segment_is_not_called_torn(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1")
    with worker.path.open("ab") as file:
        file.write(b"\xff\xff\xff\xff half a batch")
    assert read_log(tmp_path).problems == []
    assert read_log(tmp_path).calls.num_rows == 1


def test_a_growing_segment_is_read_piece_by_piece(tmp_path: Path) -> None:
    worker = segment(tmp_path)
    data = worker.path.read_bytes()
    whole, _ = read(worker.path)
    grown = tmp_path / "grown"
    grown.touch()
    tail = Tail(grown)
    records: list[Record] = []
    for at in range(0, len(data), 999):
        with grown.open("ab") as file:
            file.write(data[at : at + 999])
        records += tail.poll()
    grown.unlink()
    records += tail.poll()
    tail.close()
    assert records == whole
    assert isinstance(records[0], CallRecord)


def test_a_row_of_an_older_gyre_lacks_what_was_added_since(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    record = worker.call("new", own=OwnReport(spliced_tokens=7))
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(fields[:-1]), type=Record)
    assert isinstance(older, CallRecord)
    assert (older.own, older.output) == (None, record.output)
    newer = msgspec.msgpack.decode(msgspec.msgpack.encode([*fields, "unknown"]), type=Record)
    assert newer == record


def test_a_segment_of_a_newer_gyre_is_refused_and_kept(tmp_path: Path) -> None:
    path = LogBuilder(tmp_path).folder.segment(1, "w")
    path.write_bytes(b"gyre-journal" + (9).to_bytes(4, "little"))
    for use in (read_log, seal):
        with pytest.raises(LogFormatError, match="newer gyre"):
            use(tmp_path)
    assert path.exists()
