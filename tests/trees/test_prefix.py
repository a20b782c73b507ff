"""The radix tree against a dictionary of all prefixes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gyre.treebuilder.tokens.match import Ends, as_bytes, path_hasher
from gyre.treebuilder.tokens.prefix import Position, PrefixTree, common_prefix
from gyre.treebuilder.trees import Ids

SEQUENCES = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)


def ids(values: list[int]) -> Ids:
    return np.array(values, np.int32)


def spelled(tree: PrefixTree, at: Position) -> list[int]:
    at = tree.settle(at)
    return [int(i) for run in tree.path(at) for i in run.ids[: at.depth - run.depth]]


@given(SEQUENCES)
def test_every_sequence_is_a_path_and_each_beginning_is_there_once(sequences: list[list[int]]) -> None:
    tree = PrefixTree()
    ends = [tree.grow(tree.start, ids(s), n)[0] for n, s in enumerate(sequences)]
    assert [spelled(tree, end) for end in ends] == sequences
    prefixes = {tuple(s[:n]) for s in sequences for n in range(1, len(s) + 1)}
    assert sum(run.size for run in tree.runs()) == len(prefixes)


@given(SEQUENCES)
def test_grow_tells_how_much_was_known(sequences: list[list[int]]) -> None:
    tree = PrefixTree()
    seen: set[tuple[int, ...]] = {()}
    for n, sequence in enumerate(sequences):
        _, known = tree.grow(tree.start, ids(sequence), n)
        assert known == max(k for k in range(len(sequence) + 1) if tuple(sequence[:k]) in seen)
        seen |= {tuple(sequence[:k]) for k in range(len(sequence) + 1)}


@given(SEQUENCES)
def test_no_run_is_empty_and_no_two_children_begin_alike(sequences: list[list[int]]) -> None:
    tree = PrefixTree()
    for n, sequence in enumerate(sequences):
        tree.grow(tree.start, ids(sequence), n)
    for run in [tree.root, *tree.runs()]:
        assert all(child.parent is run and child.depth == run.end for child in run.children.values())
        assert all(int(child.ids[0]) == first for first, child in run.children.items())
    assert all(run.size for run in tree.runs())


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))))
def test_a_position_stays_what_it_was_while_runs_are_split(calls: list[tuple[list[int], list[int]]]) -> None:
    tree = PrefixTree()
    held = []
    for n, (prompt, output) in enumerate(calls):
        at, _ = tree.grow(tree.start, ids(prompt), n)
        held.append((tree.sample(at, ids(output), n), prompt + output))
    for end, sequence in held:
        assert spelled(tree, end) == sequence
        for depth in range(len(sequence) + 1):
            assert spelled(tree, tree.up(end, depth)) == sequence[:depth]
        assert path_hasher(tree, end).digest() == path_hasher(tree, tree.up(end, len(sequence))).digest()


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))))
def test_sampled_is_what_some_output_covers(calls: list[tuple[list[int], list[int]]]) -> None:
    tree = PrefixTree()
    sampled = set()
    for n, (prompt, output) in enumerate(calls):
        at, _ = tree.grow(tree.start, ids(prompt), n)
        tree.sample(at, ids(output), n)
        whole = prompt + output
        sampled |= {tuple(whole[:k]) for k in range(len(prompt) + 1, len(whole) + 1)}
    assert sum(run.size for run in tree.runs() if run.sampled) == len(sampled)


def test_who_samples_a_run_first_owns_it_even_if_a_prompt_had_it_before() -> None:
    tree = PrefixTree()
    tree.grow(tree.start, ids([1, 2, 3, 4]), 0)
    at, _ = tree.grow(tree.start, ids([1, 2]), 1)
    tree.sample(at, ids([3]), 1)
    tree.sample(at, ids([3]), 2)
    assert [(run.ids.tolist(), run.owner, run.sampled) for run in tree.runs()] == [
        ([1, 2], 0, False),
        ([3], 1, True),
        ([4], 0, False),
    ]


@given(SEQUENCES)
def test_the_longest_earlier_end_is_found_by_its_digest(sequences: list[list[int]]) -> None:
    tree, ends = PrefixTree(), Ends()
    seen: list[list[int]] = []
    for n, sequence in enumerate(sequences):
        at, hasher = ends.find(ids(sequence))
        known = [s for s in seen if s and s == sequence[: len(s)]]
        assert (at.depth if at else 0) == max(map(len, known), default=0)
        hasher.update(as_bytes(ids(sequence[at.depth if at else 0 :])))
        end, _ = tree.grow(tree.start, ids(sequence), n)
        assert hasher.digest() == path_hasher(tree, end).digest()
        if sequence:
            ends.add(hasher.digest(), end, sequence[-1])
        seen.append(sequence)


def test_comparing_goes_beyond_one_chunk() -> None:
    one = np.zeros(200_000, np.int32)
    other = one.copy()
    assert common_prefix(one, other) == 200_000
    other[150_001] = 1
    assert common_prefix(one, other) == 150_001
