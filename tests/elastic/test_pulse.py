"""When silence is taken for death."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gyre.elastic.engines.pulse import PROBES, SILENCE_S, Pulse


class Engine:
    """What it says next, and what time it is then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.says: bool | None = True
        self.pulse = Pulse(lambda: self.says, lambda: self.now)

    def beats(self, says: bool | None, *, after: float) -> bool:
        self.now += after
        self.says = says
        return self.pulse.beats()


def test_one_that_says_that_it_does_not_serve_is_dead_at_once() -> None:
    assert not Engine().beats(False, after=0)


@pytest.mark.parametrize("steps", [[SILENCE_S / 2] * 2, [1.0] * 30, [0.0, SILENCE_S], [0.0, 10 * SILENCE_S]])
def test_silence_that_is_short_or_seen_too_seldom_is_no_death(steps: Sequence[float]) -> None:
    engine = Engine()
    assert all(engine.beats(None, after=step) for step in steps)


def test_long_silence_is() -> None:
    engine = Engine()
    beats = [engine.beats(None, after=SILENCE_S / 10) for _ in range(12)]
    assert beats == [True] * 10 + [False] * 2


def test_an_answer_in_between_begins_anew() -> None:
    engine = Engine()
    for _ in range(5):
        assert all(engine.beats(None, after=SILENCE_S / PROBES) for _ in range(PROBES))
        assert engine.beats(True, after=1)


def test_one_that_was_started_again_is_given_time() -> None:
    engine = Engine()
    while engine.beats(None, after=20):
        pass
    engine.pulse.begin()
    assert engine.beats(None, after=20)
