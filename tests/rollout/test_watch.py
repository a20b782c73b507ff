"""Time and room of an execution."""

from __future__ import annotations

import os
from pathlib import Path

from gyre.trainer.rollout.place import bytes_below, size
from gyre.trainer.rollout.watch import Clock, Quota


class Time:
    """A clock in the hand; `held_s` is what the proxy would say."""

    def __init__(self) -> None:
        self.now = 100.0
        self.held_s = 0.0
        self.asked = 0

    def held(self) -> float:
        self.asked += 1
        return self.held_s

    def clock(self, limit_s: float) -> Clock:
        return Clock(limit_s, self.held, lambda: self.now)


def test_the_time_is_over_when_the_limit_is_reached() -> None:
    time = Time()
    clock = time.clock(10)
    time.now = 109.9
    assert not clock.over() and time.asked == 0
    time.now = 110.0
    assert clock.over()


def test_time_that_the_proxy_held_calls_does_not_count() -> None:
    time = Time()
    clock = time.clock(10)
    time.now, time.held_s = 110.0, 4.5
    assert not clock.over()
    time.now = 114.4
    assert not clock.over() and time.asked == 1
    time.now = 114.5
    assert clock.over()


def test_a_call_that_is_held_for_long_is_not_asked_after_all_the_time() -> None:
    time = Time()
    clock = time.clock(10)
    for tenth in range(1000):
        time.now = 100 + tenth / 10
        time.held_s = max(0.0, time.now - 105)
        assert not clock.over()
    assert time.asked <= 91
    # Given free: five seconds are left of ten.
    end = time.held_s + 110
    time.now = end - 0.1
    assert not clock.over()
    time.now = end + 1
    assert clock.over()


def test_room_is_what_files_take_each_once_and_without_what_links_lead_to(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "outside").write_bytes(b"x" * (1 << 20))
    (folder / "deep" / "file").write_bytes(b"x" * (1 << 20))
    os.link(folder / "deep" / "file", folder / "same")
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder)
    with (folder / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    assert 1 << 20 <= bytes_below(folder) < 1.2 * (1 << 20)
    assert bytes_below(tmp_path / "none") == 0


def test_files_without_anything_in_them_take_room_as_well(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / f"{number}").touch()
    assert bytes_below(tmp_path) == 1000 * 4096


def test_a_quota_is_measured_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    quota = Quota(1000, [tmp_path])
    (tmp_path / "file").write_bytes(b"x" * 20_000)
    assert not quota.exceeded()  # it has just begun
    assert quota.exceeded(at_once=True)


def test_sizes_are_written_for_people() -> None:
    assert [size(n) for n in (5, 2048, 3 << 20, 5 << 29)] == ["5 bytes", "2 KB", "3 MB", "2.50 GB"]
