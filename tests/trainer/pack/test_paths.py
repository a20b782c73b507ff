"""Segments and paths of a piece."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.paths import paths
from gyre.trainer.pack.segments import segments
from tests.trainer.builders import Shape, context, random_trees, targets, tree
from tests.trainer.pack.test_merge import seeds, shapes
from tests.trainer.pack.whole import before


@settings(deadline=None, max_examples=60)
@given(seeds, shapes)
def test_each_target_is_on_one_path_where_its_source_is(seed: int, shape: Shape) -> None:
    forest = merge(random_trees(seed, shape)).forest
    found = paths(forest)
    assert sorted(k for path in found for k in path.targets_k.tolist()) == list(range(len(forest.source_K)))
    for index, path in enumerate(found):
        last = int(path.tokens_S[-1])
        assert tuple(forest.input_ids_N[path.tokens_S].tolist()) == before(forest, last)
        assert forest.tout_N[last] == last + 1
        sources = forest.source_K[path.targets_k]
        assert (path.tokens_S[forest.position_ids_N[sources]] == sources).all()
        earlier = [token for other in found[:index] for token in other.tokens_S.tolist()]
        assert not set(sources.tolist()) & set(earlier)


@settings(deadline=None, max_examples=60)
@given(seeds, shapes, st.sampled_from([None, 1, 2, 3, 7]))
def test_segments_are_runs_without_branches(seed: int, shape: Shape, limit: int | None) -> None:
    forest = merge(random_trees(seed, shape)).forest
    found = segments(forest, limit)
    assert [token for one in found for token in range(one.start, one.end)] == list(range(len(forest)))
    for index, one in enumerate(found):
        parent = int(forest.parent_N[one.start])
        assert (one.parent == -1) == (parent == -1)
        assert one.parent == -1 or found[one.parent].end - 1 == parent
        assert one.depth == forest.position_ids_N[one.start]
        assert forest.parent_N[one.start + 1 : one.end].tolist() == list(range(one.start, one.end - 1))
        assert one.children == tuple(i for i, other in enumerate(found) if other.parent == index)
        assert limit is not None or len(one.children) != 1
        assert limit is None or len(one) <= limit


def test_a_long_run_is_cut_into_equal_parts() -> None:
    forest = merge([tree("a", [context(-1, *range(9)), targets(0, 1, 2)])]).forest
    assert [len(one) for one in segments(forest, 4)] == [3, 3, 4]
    assert [one.children for one in segments(forest, 4)] == [(1,), (2,), ()]
    assert len(segments(forest)) == 1


def test_nothing_has_no_paths() -> None:
    forest = merge([]).forest
    assert not paths(forest) and not segments(forest) and not segments(forest, 3)


def test_a_source_where_a_path_branches_belongs_to_the_first() -> None:
    nodes = [context(-1, 1, 2), targets(0, 3, 4), targets(0, 5, 6)]
    found = paths(merge([tree("a", nodes)]).forest)
    assert [path.tokens_S.tolist() for path in found] == [[0, 1, 2], [0, 1, 3]]
    assert [np.sort(path.targets_k).tolist() for path in found] == [[0, 1, 2], [3]]
