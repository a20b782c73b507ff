"""Visits make up the piece, in an order in which everything hangs on what came before it. No torch."""

from __future__ import annotations

import numpy as np
import pytest

from gyre.trainer.pack.merge import merge
from gyre.trainer.pack.piece import Piece
from gyre.trainer.passes.visits import Visit, visits
from tests.trainer.builders import Shape, context, random_trees, targets, tree


@pytest.mark.parametrize("limit", [None, 1, 4, 100])
@pytest.mark.parametrize("together", [0, 3, 9, 1000])
def test_visits_of_random_trees(limit: int | None, together: int) -> None:
    for seed in range(12):
        piece = merge(random_trees(seed, Shape(nodes=9, roots=3))).forest
        found = visits(piece, limit=limit, together=together)
        assert [visit.start for visit in found] == [0, *(visit.end for visit in found[:-1])]
        assert found[-1].end == len(piece)
        for visit in found:
            assert limit is None or len(visit) <= limit
            assert visit.run or len(visit) <= together
            assert visit.run == is_run(piece, visit)
            assert visit.depth == piece.position_ids_N[visit.start]
            check_parent(piece, found, visit)


def is_run(piece: Piece, visit: Visit) -> bool:
    own = np.arange(visit.start, visit.end)
    return bool((piece.parent_N[own[1:]] == own[:-1]).all())


def check_parent(piece: Piece, found: list[Visit], visit: Visit) -> None:
    above = {int(one) for one in piece.parent_N[visit.start : visit.end] if one < visit.start}
    assert len(above) == 1  # all that is in it hangs on one token, or on none
    if visit.parent < 0:
        assert above == {-1}
        return
    parent = found[visit.parent]
    assert above == {parent.end - 1}
    assert parent.children
    assert parent.run


def test_small_subtrees_are_computed_together_up_to_the_limit() -> None:
    """A prompt of 4 with branches of 3 tokens, of which the last is only a label."""
    branches = [targets(0, 10 + number, 20, 30) for number in range(5)]
    piece = merge([tree("a", [context(-1, 1, 2, 3, 4), *branches])]).forest

    def sizes(together: int) -> list[int]:
        return [len(visit) for visit in visits(piece, limit=None, together=together)]

    assert sizes(0) == [4, 2, 2, 2, 2, 2]
    assert sizes(5) == [4, 4, 4, 2]
    assert sizes(13) == [4, 10]
    assert sizes(14) == [14]
