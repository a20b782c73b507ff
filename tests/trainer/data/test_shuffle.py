"""Shuffled advantages: the same numbers, dealt to others."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gyre.trainer.data.shuffle import shuffled


@given(st.lists(st.floats(-2, 2), max_size=16), st.text("abé", max_size=8), st.integers(0, 9))
def test_a_group_has_the_advantages_it_had(advantages: list[float], group: str, seed: int) -> None:
    dealt = shuffled(advantages, group, seed)
    assert sorted(dealt) == sorted(advantages)
    assert dealt == shuffled(advantages, group, seed)


def test_groups_and_seeds_are_dealt_differently() -> None:
    numbers = [float(number) for number in range(16)]
    dealt = [shuffled(numbers, group, seed) for group in ("a", "b") for seed in (0, 1)]
    assert len({tuple(one) for one in [numbers, *dealt]}) == 5
