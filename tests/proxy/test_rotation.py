"""A journal segment is sealed when it is old enough, also when nothing more is written to it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from gyre.proxy import read_log
from tests.engines.fake import FakeEngine
from tests.proxy.running import RunningProxy


def test_an_idle_segment_is_sealed_by_age(tmp_path: Path) -> None:
    flags = {"log.sync_s": 0.05, "log.rotate_s": 1.0}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        assert proxy.chat().status_code == 200
        end = time.monotonic() + 15
        while not any((tmp_path / "calls").glob("*.parquet")):
            assert time.monotonic() < end, "the row stays in the journal"
            time.sleep(0.02)
        assert read_log(tmp_path).calls["outcome"].to_pylist() == ["ok"]


def test_a_segment_without_rows_is_left_alone(tmp_path: Path) -> None:
    flags = {"log.sync_s": 0.05, "log.rotate_s": 0.1}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        (before,) = (tmp_path / "journal").iterdir()
        end = time.monotonic() + 0.6
        while time.monotonic() < end:
            assert list((tmp_path / "journal").iterdir()) == [before]
            time.sleep(0.02)
        assert proxy.worker.recorder.problem is None


def test_a_seal_that_runs_at_the_end_is_waited_for(tmp_path: Path) -> None:
    flags = {"log.sync_s": 0.02, "log.rotate_s": 0.1}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        assert proxy.chat().status_code == 200
        end = time.monotonic() + 15
        while len(list((tmp_path / "journal").iterdir())) == 1:  # until the seal begins
            assert time.monotonic() < end
            time.sleep(0.005)
    assert any((tmp_path / "calls").glob("*.parquet"))


def test_a_seal_that_cannot_start_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"log.sync_s": 0.02, "log.rotate_s": 0.1}
    with FakeEngine() as engine, RunningProxy(tmp_path, engine, **flags) as proxy:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "executable", str(tmp_path / "no-python"))
            assert proxy.chat().status_code == 200
            end = time.monotonic() + 15
            while len(list((tmp_path / "journal").iterdir())) == 1:
                assert time.monotonic() < end
                time.sleep(0.005)
        assert proxy.chat().status_code == 200
        while not any((tmp_path / "calls").glob("*.parquet")):
            assert time.monotonic() < end, "nothing is sealed any more"
            time.sleep(0.02)
