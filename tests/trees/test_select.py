"""Which trajectories are kept. The rule and its number are the paper's: arXiv 2609.33848, J_max = 5."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.select import Leaf, Unit, select
from gyre.treebuilder.trees import Role

TRAINED = [Role.MAIN, Role.MAIN_SUMMARY, Role.SUB, Role.SUB_SUMMARY, Role.UNKNOWN]


def unit(nodes: list[int], role: Role = Role.MAIN, stubs: tuple[list[int], ...] = ()) -> Unit:
    return Unit(Leaf(nodes[-1], nodes, nodes[-1], role), [Leaf(s[-1], s, nodes[-1], role) for s in stubs])


def leaves_of(units: list[Unit], weights: dict[int, int], options: Options, name: str = "e") -> list[int]:
    return [one.leaf.node for one in select(units, weights, options, name)]


def test_five_are_kept_by_default() -> None:
    units = [unit([n]) for n in range(9)]
    assert len(leaves_of(units, dict.fromkeys(range(9), 10), Options())) == 5


def test_roles_come_in_the_order_of_the_paper() -> None:
    units = [unit([n], role) for n, role in enumerate(reversed(TRAINED))]
    kept = select(units, dict.fromkeys(range(5), 1), Options(), "e")
    assert [one.leaf.role for one in kept] == TRAINED


def test_a_class_is_left_only_when_it_has_nothing_unmasked() -> None:
    units = [unit([0, 1]), unit([0, 2]), unit([0], Role.MAIN_SUMMARY), unit([3], Role.SUB)]
    kept = select(units, {0: 5, 1: 5, 2: 5, 3: 5}, Options(), "e")
    assert sorted(one.leaf.node for one in kept) == [1, 2, 3], "the summary brings nothing new"


def test_a_draw_is_proportional_to_unmasked_targets() -> None:
    units = [unit([0, 1]), unit([0, 2])]
    weights = {0: 50, 1: 10, 2: 40}
    first = Counter(leaves_of(units, weights, Options(cap=1), f"e{n}")[0] for n in range(4000))
    assert first[1] / 4000 == pytest.approx(60 / 150, abs=0.03)


def test_shared_targets_are_brought_once() -> None:
    kept = select([unit([0, 1]), unit([0, 2])], {0: 7, 1: 2, 2: 3}, Options(), "e")
    assert sorted(one.targets for one in kept) in ([2, 10], [3, 9])


def test_stubs_ride_with_their_context_for_nothing() -> None:
    stubs = tuple([n] for n in range(1, 20))
    kept = select([unit([0], stubs=stubs)], dict.fromkeys(range(20), 1), Options(cap=1), "e")
    assert len(kept) == 20
    assert {one.slot for one in kept} == {0}
    assert [one.stub for one in kept] == [False] + [True] * 19


def test_side_calls_are_kept_only_when_all_is_asked_for() -> None:
    units = [unit([0]), unit([1], Role.SIDE)]
    assert leaves_of(units, {0: 1, 1: 1}, Options()) == [0]
    assert leaves_of(units, {0: 1, 1: 1}, Options(rule=Rule.ALL)) == [0, 1]
    assert leaves_of(units, {0: 1, 1: 9}, Options(rule=Rule.COVERAGE)) == [0]


def test_coverage_takes_what_brings_most() -> None:
    units = [unit([0], Role.MAIN), unit([1], Role.SUB), unit([2], Role.SUB_SUMMARY)]
    assert leaves_of(units, {0: 1, 1: 5, 2: 9}, Options(cap=2, rule=Rule.COVERAGE)) == [2, 1]


def test_all_knows_no_cap() -> None:
    units = [unit([n]) for n in range(30)]
    assert len(leaves_of(units, dict.fromkeys(range(30), 1), Options(rule=Rule.ALL))) == 30


UNITS = st.lists(
    st.tuples(st.lists(st.integers(0, 12), min_size=1, max_size=4, unique=True), st.sampled_from(TRAINED)),
    max_size=8,
)


@given(UNITS, st.integers(0, 6), st.integers(0, 3), st.sampled_from(list(Rule)))
def test_what_is_kept_adds_up(drawn: list[tuple[list[int], Role]], cap: int, seed: int, rule: Rule) -> None:
    units = [unit(nodes, role) for nodes, role in drawn]
    weights = {n: n + 1 for nodes, _ in drawn for n in nodes}
    options = Options(cap, seed, rule)
    kept = select(units, weights, options, "e")
    assert len({one.slot for one in kept}) <= cap or rule is Rule.ALL
    covered = {node for one in kept for node in one.leaf.path}
    assert sum(one.targets for one in kept) == sum(weights[node] for node in covered)
    assert all(one.targets for one in kept), "nothing is admitted that brings nothing"
    again = select([unit(nodes, role) for nodes, role in drawn], weights, options, "e")
    assert [one.leaf.node for one in again] == [one.leaf.node for one in kept]
