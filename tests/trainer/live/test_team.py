"""The main process of two tells the other what to do, whatever it does in between."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import pytest

from gyre.proxy.errors import EngineError
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.live.team import BEAT_S, Team
from gyre.trainer.update.batch import Batch
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.cursor import Cursor
from gyre.trainer.update.ranks import OneProcess, Value
from gyre.trainer.update.report import UpdateReport

LONG_S = 3600.0
TREES = [TrainTree(execution_id="a"), TrainTree(execution_id="b")]


@dataclass
class Wire:
    """Between two processes, which are threads here."""

    told: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    cut: bool = False


class Main(OneProcess):
    size = 2

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def share(self, value: Value) -> Value:
        if self._wire.cut:
            raise TrainError("another process of this run has ended")
        self._wire.told.put(value)
        return value


class Other(OneProcess):
    rank, size, is_main = 1, 2, False

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def share(self, value: Value) -> Value:
        told: Value = self._wire.told.get(timeout=20)
        return told


@dataclass
class Work:
    """A learner and a saver that write down what they are asked for."""

    fails: Exception | None = None
    """What the next group comes to."""
    done: list[str] = field(default_factory=list)

    def stream(self, *, groups: int) -> Work:
        self.done.append(f"stream {groups}")
        return self

    def add(self, trees: Sequence[TrainTree]) -> list[UpdateReport]:
        self.done.append("add " + " ".join(tree.execution_id for tree in trees))
        if self.fails is not None:
            raise self.fails
        return []

    def served_as(self, version: str) -> None:
        self.done.append(f"served as {version}")

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        self.done.append(f"score {ids}")
        return [-1.5] * (len(ids) - 1)

    def save(
        self, cursor: Cursor, batch: Batch | None = None, *, live: Mapping[str, Any] | None = None
    ) -> None:
        self.done.append(f"save {live}")


@dataclass
class Two:
    """A team of two, of which the other follows in a thread."""

    wire: Wire = field(default_factory=Wire)
    work: Work = field(default_factory=Work)
    others: Work = field(default_factory=Work)
    beat_s: float = LONG_S

    def __post_init__(self) -> None:
        self.main = Team(Main(self.wire), self.work, self.work, beat_s=self.beat_s)
        self.other = Team(Other(self.wire), self.others, self.others)

    @contextmanager
    def following(self) -> Iterator[Future[bool]]:
        with ThreadPoolExecutor(1) as pool:
            yield pool.submit(self.other.follow)


def a_burst(team: Team) -> None:
    team.served_as("3")
    team.stream(groups=2)
    team.add(TREES)
    team.add([])
    team.save({"burst": 1})


DONE = ["served as 3", "stream 2", "add a b", "add ", "save {'burst': 1}"]


def test_the_other_does_what_the_main_process_does() -> None:
    two = Two()
    with two.following() as followed, two.main as team:
        a_burst(team)
    assert followed.result()
    assert two.work.done == two.others.done == DONE


def test_log_probabilities_are_computed_by_all_and_told_to_who_asked() -> None:
    two = Two()
    with two.following(), two.main as team:
        assert team.logprobs([4, 5, 6]) == [-1.5, -1.5]
    assert two.work.done == two.others.done == ["score [4, 5, 6]"]


def test_one_process_does_it_and_tells_nobody() -> None:
    work = Work()
    before = threading.active_count()
    with Team(OneProcess(), work, work, beat_s=0.001) as team:
        assert threading.active_count() == before
        a_burst(team)
    assert work.done == DONE


def test_a_stop_in_the_middle_is_no_end_for_the_other() -> None:
    """The main process says what comes then."""
    two = Two(work=Work(fails=Stopped()), others=Work(fails=Stopped()))
    with two.following() as followed, two.main as team:
        team.stream(groups=2)
        with pytest.raises(Stopped):
            team.add(TREES)
        team.served_as("4")
    assert followed.result()
    assert two.others.done == ["stream 2", "add a b", "served as 4"]


def test_an_error_of_the_main_process_releases_the_other() -> None:
    two = Two()
    with two.following() as followed, pytest.raises(EngineError, match="gone"), two.main:
        raise EngineError("the engine is gone")
    assert not followed.result()


def test_what_the_learner_fails_of_ends_both_without_a_word() -> None:
    """The other has met it too, or stands somewhere else: it would not hear anything."""
    works = [Work(fails=TrainError("other weights")) for _ in range(2)]
    two = Two(work=works[0], others=works[1], beat_s=0.01)
    with two.following() as followed, pytest.raises(TrainError, match="other weights"), two.main as team:
        team.stream(groups=1)
        try:
            team.add(TREES)
        finally:
            threading.Event().wait(0.1)  # no beat either
    with pytest.raises(TrainError, match="other weights"):
        followed.result()
    assert two.wire.told.empty()


def test_while_the_main_process_does_something_else_the_other_hears_of_it() -> None:
    heard = threading.Semaphore(0)

    class Listening(Other):
        def share(self, value: Value) -> Value:
            told = super().share(value)
            heard.release()
            return told

    two = Two(beat_s=0.01)
    two.other = Team(Listening(two.wire), two.others, two.others)
    with two.following() as followed, two.main as team:
        assert all(heard.acquire(timeout=20) for _ in range(3))
        a_burst(team)
    assert followed.result()
    assert two.others.done == DONE
    assert BEAT_S <= 60


def test_who_is_gone_is_missed_while_the_main_process_waits() -> None:
    two = Two(beat_s=0.01, wire=Wire(cut=True))
    with pytest.raises(TrainError, match="another process"), two.main as team:
        until(lambda: team.failed is not None)
    assert two.work.done == []


def test_who_is_gone_is_missed_when_something_is_to_be_done() -> None:
    two = Two(wire=Wire(cut=True))
    with pytest.raises(TrainError, match="another process"), two.main as team:
        team.stream(groups=1)
    assert two.work.done == []
    with pytest.raises(TrainError, match="another process"), Two(wire=Wire(cut=True)).main:
        pass  # ended in order: nobody is there to hear it


def test_an_error_is_told_and_not_that_the_other_is_gone_too() -> None:
    with pytest.raises(EngineError, match="gone"), Two(wire=Wire(cut=True)).main:
        raise EngineError("the engine is gone")


def until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(2000):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("never")
