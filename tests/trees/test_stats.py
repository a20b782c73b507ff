"""Many executions in numbers."""

from __future__ import annotations

import json

import pytest

from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import Role
from gyre.treebuilder.views.stats import Stats, quantile, shared_share
from tests.trees.made import Made, typical


def added(*made: Made, **fields: object) -> Stats:
    stats = Stats()
    for one in made:
        stats.add_summary(one.summary(**fields))
        stats.add_tree(one.tree())
    return stats


def test_totals_add_up() -> None:
    one, two = added(typical()), added(typical(), typical())
    assert (two.calls, two.contexts, two.executions) == (2 * one.calls, 2 * one.contexts, 2)
    assert two.targets == sum(role.targets for role in two.roles.values())
    assert two.kept_targets == sum(role.kept_targets for role in two.roles.values())
    assert two.calls == sum(role.calls for role in two.roles.values()) == sum(two.links.values())
    assert two.contexts == sum(role.contexts for role in two.roles.values())
    assert two.sampled_tokens == two.targets + sum(two.untrained.values())
    assert two.targets == two.kept_targets + sum(two.left_out.values())


def test_each_role_has_its_own_numbers() -> None:
    roles = added(typical()).roles
    assert (roles[Role.SUB].contexts, roles[Role.SUB].calls, roles[Role.SUB].targets) == (1, 2, 8)
    assert (roles[Role.MAIN].contexts, roles[Role.MAIN].kept_targets) == (2, 60)
    assert roles[Role.UNKNOWN].targets == 4 and roles[Role.UNKNOWN].kept_targets == 0


def test_the_shared_share_is_that_of_the_links() -> None:
    made = typical()
    shared = sum(link.shared_tokens for link in made.links)
    prompt = sum(link.prompt_tokens for link in made.links)
    assert added(made).shared_share == pytest.approx(shared / prompt)
    assert shared_share(100, 100, 0) == 0
    assert shared_share(0, 0, 0) == 0
    assert shared_share(200, 110, 10) == 0.5


def test_quantiles_are_values_that_occur() -> None:
    shares = [0.2, 1.0, 0.5, 0.9]
    assert [quantile(shares, q) for q in (0, 0.25, 0.5, 0.75, 1)] == [0.2, 0.2, 0.5, 0.9, 1.0]
    assert list(added(typical()).kept_quantiles()) == ["0%", "10%", "50%", "90%", "100%"]
    assert added().kept_quantiles() == {}


def test_groups_and_who_is_not_trained() -> None:
    stats = Stats()
    for name, score in [("a", 1.0), ("b", 0.0), ("c", 0.0)]:
        stats.add_summary(ExecutionSummary(name, score=score, group="g"))
    stats.add_summary(ExecutionSummary("d", score=1.0))
    stats.add_summary(ExecutionSummary("e"))
    stats.add_summary(ExecutionSummary("f", skipped="a cycle"))
    first, second = stats.groups()
    assert (first.kind, first.name, first.executions, first.least, first.most) == ("group", "g", 3, 0, 1)
    assert first.mean == pytest.approx(1 / 3)
    assert first.advantages["a"] > 0 > first.advantages["b"] == first.advantages["c"]
    assert (second.kind, second.name, second.advantages) == ("execution", "d", {"d": 0.0})
    assert stats.unscored == {"no_score": 1, "skipped": 1}
    assert stats.skipped == {"a cycle": 1}


def test_skipped_executions_count_in_nothing_else() -> None:
    stats = added(typical(), skipped="torn")
    assert (stats.calls, stats.targets, stats.kept_shares) == (0, 0, [])


def test_all_of_it_is_json() -> None:
    document = json.loads(json.dumps(added(typical(), score=1.0).as_dict()))
    assert document["roles"]["sub"]["targets"] == 8
    assert document["links"]["compaction"] == {"proven": 2}
    assert document["groups"][0]["advantages"] == {"e1": 0.0}
