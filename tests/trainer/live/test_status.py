"""Where a run stands: put together, written, read by somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.process import born
from gyre.trainer.errors import TrainError
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import HISTORY, WARNINGS, Board, Rate, notable
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.reports import Evaluated
from gyre.trainer.live.status import (
    Phase,
    Point,
    Staleness,
    Status,
    StatusFile,
    is_running,
    read_status,
)
from gyre.trainer.live.ticker import Ticker
from tests.trainer.live.told import SECONDS, evaluated, publication, report


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def board(run: Path = Path("runs/tiny")) -> tuple[Board, Clock]:
    clock = Clock()
    return Board(run, batches=20, clock=clock), clock


def test_what_is_told_is_what_stands_in_the_file(tmp_path: Path) -> None:
    told, clock = board(tmp_path)
    told.enter(Phase.ROLLOUT, burst=3)
    told.evaluation(evaluated(0, pass_rate=0.25))
    told.update(1)
    told.update(2)
    told.batch(report(0))
    told.publication(publication(2, "1"))
    told.restarts("engine", 1)
    told.restarts("engine", 2)
    told.warn("all scores are equal")
    clock.now = 1007.0
    counts = Counts(running=3, waiting=2, done=5, timed_out=1, outcomes={"completed": 4, "timed_out": 1})
    status = told.status(counts, groups_waiting=4, groups_ready=1)
    StatusFile(tmp_path / "status.json").write(status)
    assert read_status(tmp_path) == msgspec.convert(msgspec.to_builtins(status), Status)
    assert (status.run, status.pid, status.started_at, status.updated_at) == (
        str(tmp_path),
        os.getpid(),
        1000.0,
        1007.0,
    )
    assert (status.phase, status.phase_at, status.burst) == (Phase.ROLLOUT, 1000.0, 3)
    assert (status.batches, status.batches_done, status.updates, status.version) == (20, 1, 2, "1")
    assert status.history == [Point(batch=0, pass_rate=2 / 6, mean_score=2 / 6)]
    assert status.staleness == Staleness(mean=0.5, max=1, updates_mean=2.0, updates_max=4)
    assert (status.kept_share, status.tree_savings, status.groups_varied) == (0.8, 0.4, 1)
    assert status.seconds == status.seconds_in_all == SECONDS
    assert status.evaluations == [evaluated(0, pass_rate=0.25)]
    assert (status.restarts, status.warnings) == ({"engine": 2}, ["all scores are equal"])
    assert (status.executions, status.groups_waiting, status.groups_ready) == (counts, 4, 1)


def test_a_batch_of_which_nothing_was_left_says_so() -> None:
    told, _ = board()
    told.batch(report(0, groups=[], seconds={}))
    status = told.status(Counts())
    assert status.history == [Point(batch=0, pass_rate=None, mean_score=None)]
    assert (status.staleness, status.kept_share, status.tree_savings) == (None, None, None)


def test_what_grows_without_end_is_kept_short() -> None:
    told, _ = board()
    for number in range(200):
        told.batch(report(number))
        told.warn(f"warning {number}")
        told.evaluation(evaluated(number, pass_rate=0.9 if number == 50 else 0.5))
    status = told.status(Counts())
    assert [point.batch for point in status.history] == list(range(200 - HISTORY, 200))
    assert status.warnings == [f"warning {number}" for number in range(200 - WARNINGS, 200)]
    assert [one.update for one in status.evaluations] == [0, 50, 199]
    assert status.batches_done == 200


def test_why_a_run_failed_is_told() -> None:
    told, clock = board()
    clock.now += 5
    told.failed("the disk is full", "make room")
    status = told.status(Counts())
    assert (status.phase, status.phase_at) == (Phase.FAILED, 1005.0)
    assert (status.error, status.hint) == ("the disk is full", "make room")


def test_a_warning_is_passed_on() -> None:
    heard: list[str] = []
    Board(Path("runs/tiny"), batches=1, warn=heard.append).warn("the engine died")
    assert heard == ["the engine died"]


def test_a_phase_begins_when_it_is_another_one() -> None:
    told, clock = board()
    told.enter(Phase.TRAINING)
    clock.now += 3
    told.enter(Phase.TRAINING, burst=2)
    status = told.status(Counts())
    assert (status.phase_at, status.burst) == (1000.0, 2)


@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.none() | st.floats(0, 1)), max_size=12))
def test_the_first_the_best_and_the_last_evaluation_of_each_temperature_are_kept(
    told: list[tuple[float, float | None]],
) -> None:
    every = [
        evaluated(number, pass_rate=rate, temperature=temperature)
        for number, (temperature, rate) in enumerate(told)
    ]
    grown: list[Evaluated] = []
    for one in every:
        grown = notable([*grown, one])
    assert grown == notable(every)
    for temperature in (0.0, 1.0):
        alike = [one for one in every if one.temperature == temperature]
        kept = [one for one in grown if one.temperature == temperature]
        assert len(kept) <= 3
        assert (kept[:1], kept[-1:]) == (alike[:1], alike[-1:])
        rates = [one.pass_rate or 0.0 for one in alike]
        assert max(rates, default=0.0) == max((one.pass_rate or 0.0 for one in kept), default=0.0)


def test_tokens_a_second_are_of_the_last_minute() -> None:
    rate = Rate(0.0)
    assert rate.per_s(1.0) is None
    for second in range(1, 301):
        rate.at(float(second), 10 * second if second <= 200 else 2000 + 50 * (second - 200))
    assert rate.per_s(300.0) == pytest.approx(50.0)


def test_tokens_that_come_by_leaps_are_divided_by_the_time_they_took() -> None:
    rate = Rate(0.0)
    rate.at(500.0, 1000)
    assert rate.per_s(900.0) == pytest.approx(2.0)  # the next leap is not due yet
    rate.at(1000.0, 5000)
    assert rate.per_s(1000.0) == pytest.approx(8.0)
    rate.at(1200.0, 5000)
    assert rate.per_s(2500.0) == pytest.approx(2.0)  # overdue: it counts as time spent


def test_a_run_is_over_when_all_of_its_parts_are(tmp_path: Path) -> None:
    told, _ = board(tmp_path)
    shown: list[Status] = []
    with Ticker(told, LiveFolder(tmp_path), shown.append) as ticker:
        ticker.last = Phase.ENDED
    *before, last = (status.phase for status in shown)
    assert set(before) == {Phase.STARTING} and last is Phase.ENDED
    found = read_status(tmp_path)
    assert found is not None and found.phase is Phase.ENDED


def test_a_folder_without_a_run_has_no_status(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None
    assert read_status(tmp_path / "nowhere") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"schema": 1}', b'{"schema": 1, "run": 5}', b"\xff"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "status.json").write_bytes(content)
    with pytest.raises(TrainError, match=r"status\.json` is damaged"):
        read_status(tmp_path)


def test_the_file_of_a_newer_gyre_is_refused(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_bytes(b'{"schema": 2, "run": {"all": "different"}}')
    with pytest.raises(TrainError, match="newer gyre"):
        read_status(tmp_path)


def test_a_reader_never_meets_half_a_file(tmp_path: Path) -> None:
    told, _ = board(tmp_path)
    told.warn("x" * 100_000)
    writer = StatusFile(tmp_path / "status.json")
    writer.write(told.status(Counts()))
    opened = (tmp_path / "status.json").open("rb")
    told.warn("y")
    writer.write(told.status(Counts()))
    with opened:
        assert len(msgspec.json.decode(opened.read(), type=Status).warnings) == 1
    found = read_status(tmp_path)
    assert found and len(found.warnings) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


def test_a_folder_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    told, _ = board(tmp_path)
    StatusFile(tmp_path / "gone" / "status.json").write(told.status(Counts()))


def test_a_process_is_running_until_it_has_ended() -> None:
    told, _ = board()
    assert is_running(told.status(Counts()))
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    status = msgspec.structs.replace(told.status(Counts()), pid=process.pid, born=born(process.pid))
    assert is_running(status)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked for its code
    assert not is_running(status)
    process.communicate()
    assert not is_running(status)


def test_another_process_of_the_same_number_is_not_it() -> None:
    told, _ = board()
    status = told.status(Counts())
    assert not is_running(msgspec.structs.replace(status, born=(status.born or 0) + 1))


def test_a_run_on_another_machine_runs_as_long_as_it_speaks() -> None:
    told = Board(Path("runs/tiny"), batches=1)
    there = msgspec.structs.replace(told.status(Counts()), host="another", pid=1 << 22)
    assert is_running(there)
    assert not is_running(msgspec.structs.replace(there, updated_at=there.updated_at - 3600))


def test_a_status_is_read_without_torch() -> None:
    program = "import sys, gyre.trainer.live.status, gyre.trainer.live.board; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
