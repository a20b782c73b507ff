"""Who stands below whom, and what of each context is said."""

from __future__ import annotations

import pytest

from gyre.treebuilder.trees import CallKey, Cause, Role
from gyre.treebuilder.views.show import ContextView, contexts_of, walk
from tests.trees.made import Made, typical


def nesting(made: Made) -> list[tuple[int, int]]:
    return [(depth, view.context_id) for depth, view in walk(contexts_of(made.tree()))]


def views(made: Made) -> dict[int, ContextView]:
    return {view.context_id: view for _, view in walk(contexts_of(made.tree()))}


def test_what_works_for_a_context_stands_below_it_and_what_goes_on_beside_it() -> None:
    assert nesting(typical()) == [(0, 0), (1, 1), (1, 2), (0, 3), (0, 4)]
    assert [view.follows for view in views(typical()).values()] == [None, None, None, 0, None]


def test_a_run_that_compacts_often_does_not_lean() -> None:
    made = Made()
    made.call("m0")
    for turn in range(30):
        made.call(
            f"s{turn}",
            context=2 * turn + 1,
            cause=Cause.COMPACTION,
            step="summary",
            role=Role.MAIN_SUMMARY,
            origin=f"m{turn}",
        )
        made.call(
            f"m{turn + 1}", context=2 * turn + 2, cause=Cause.COMPACTION, step="restart", origin=f"s{turn}"
        )
    assert max(depth for depth, _ in nesting(made)) == 1
    assert [view.context_id for view in contexts_of(made.tree())] == list(range(0, 61, 2))


def test_a_sub_agent_that_compacts_goes_on_below_who_called_it() -> None:
    made = Made()
    made.call("m")
    made.call("s", context=1, cause=Cause.DELEGATION, role=Role.SUB, origin="m")
    made.call("t", context=2, cause=Cause.COMPACTION, step="summary", role=Role.SUB_SUMMARY, origin="s")
    made.call("u", context=3, cause=Cause.COMPACTION, step="restart", role=Role.SUB, origin="t")
    made.call("v", context=4, cause=Cause.EDIT, role=Role.SUB, origin="u")
    made.call("w", context=5, cause=Cause.DELEGATION, step="nested", role=Role.SUB, origin="v")
    assert nesting(made) == [(0, 0), (1, 1), (2, 2), (1, 3), (1, 4), (2, 5)]


def test_numbers_are_of_all_calls_of_a_context() -> None:
    main, sub = views(typical())[0], views(typical())[1]
    assert [link.call.call_id for link in main.calls] == ["c1", "c2", "c3", "c3x"]
    assert (main.prompt_tokens, main.shared_tokens, main.output_tokens) == (550, 410, 68)
    assert main.tokens == 178
    assert (main.targets, main.kept, main.slots, main.stubs) == (60, 60, [0], 1)
    assert (sub.targets, sub.kept, sub.slots) == (8, 8, [2])
    assert main.untrained == {"greedy": 1}
    assert main.retries == 1
    assert [(link.cause, link.break_offset) for link in main.breaks] == [(Cause.REASONING_STRIPPED, 115)]


def test_a_retry_that_came_first_does_not_name_the_context() -> None:
    made = Made()
    made.call("lost", context=0, cause=Cause.RETRY, trained=False)
    made.links[0].cause = Cause.RETRY
    made.call("kept")
    made.links[1].cause = Cause.START
    assert views(made)[0].cause == Cause.START


@pytest.mark.parametrize("cause", [Cause.DELEGATION, Cause.COMPACTION, Cause.EDIT])
def test_origins_in_a_circle_lose_no_context(cause: Cause) -> None:
    made = Made()
    made.call("m")
    for name in "abc":
        made.call(name, context=ord(name), cause=cause, step="restart", origin="m")
    for name, origin in ("ab", "bc", "ca"):
        link = next(link for link in made.links if link.call.call_id == name)
        link.origin, link.origin_context_id = CallKey(origin), ord(origin)
    assert sorted(context for _, context in nesting(made)) == [0, *map(ord, "abc")]


def test_an_origin_that_is_not_in_the_tree_leaves_a_context_at_the_top() -> None:
    made = Made()
    made.call("m")
    made.call("s", context=1, cause=Cause.DELEGATION, role=Role.SUB, origin="m")
    made.links[1].origin_context_id = 99
    assert nesting(made) == [(0, 0), (0, 1)]


def test_an_execution_without_calls_has_no_contexts() -> None:
    assert contexts_of(Made().tree()) == []
