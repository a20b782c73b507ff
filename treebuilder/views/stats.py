"""A folder of trees in numbers. Pure: executions are added one by one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gyre.treebuilder.score import AttemptKey, advantages, group_of, left_out, reward
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree, Role

QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


@dataclass(slots=True)
class RoleStats:
    contexts: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    targets: int = 0
    kept_targets: int = 0


@dataclass(slots=True)
class GroupStats:
    """The scored executions of one group."""

    kind: str
    """What joins them: `group`, `task`, or `execution` for one that stands alone."""
    name: str
    executions: int
    mean: float
    least: float
    most: float
    advantages: dict[str, float]
    """By execution."""


@dataclass(slots=True)
class Stats:
    executions: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Executions that could not be rebuilt, by reason."""
    superseded: int = 0
    text_only: int = 0
    calls: int = 0
    contexts: int = 0
    trajectories: int = 0
    quarantined: int = 0
    disagreements: int = 0
    prompt_tokens: int = 0
    tree_tokens: int = 0
    sampled_tokens: int = 0
    targets: int = 0
    kept_targets: int = 0
    roles: dict[Role, RoleStats] = field(default_factory=lambda: defaultdict(RoleStats))
    links: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By (cause, confidence)."""
    untrained: Counter[str] = field(default_factory=Counter)
    """Sampled tokens that are no targets, by reason."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Targets that were not admitted, by reason."""
    unscored: Counter[str] = field(default_factory=Counter)
    """Executions that are not trained, by reason."""
    kept_shares: list[float] = field(default_factory=list)
    """Of every execution with targets."""
    _summaries: list[ExecutionSummary] = field(default_factory=list)

    def add_summary(self, summary: ExecutionSummary) -> None:
        self._summaries.append(summary)
        self.executions += 1
        self.superseded += summary.superseded
        if (why := left_out(summary)) is not None:
            self.unscored[why] += 1
        if summary.skipped is not None:
            self.skipped[summary.skipped] += 1
            return
        self.text_only += not summary.exact
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(summary, name))
        self.disagreements += len(summary.disagreements)
        self.untrained.update(summary.untrained)
        self.left_out.update(summary.left_out)
        if summary.targets:
            self.kept_shares.append(summary.kept_share)

    def add_tree(self, tree: ExecutionTree) -> None:
        """What only the tree itself tells: roles and links."""
        seen: set[int] = set()
        for link in tree.links:
            self.links[link.cause.value, link.confidence.value] += 1
            role = self.roles[link.role]
            role.calls += 1
            role.contexts += link.context_id not in seen
            seen.add(link.context_id)
            role.prompt_tokens += link.prompt_tokens
            role.output_tokens += link.output_tokens
        for node in tree.nodes:
            if node.target:
                self.roles[node.role].targets += len(node.token_ids)
                self.roles[node.role].kept_targets += len(node.token_ids) * node.admitted

    @property
    def shared_share(self) -> float:
        """Of all prompt tokens those that an earlier call of the execution had already."""
        return shared_share(self.prompt_tokens, self.tree_tokens, self.sampled_tokens)

    @property
    def kept_share(self) -> float:
        return self.kept_targets / self.targets if self.targets else 1.0

    def kept_quantiles(self) -> dict[str, float]:
        """Of the kept share, over executions with targets: least, 10 %, median, 90 %, most."""
        return {f"{q:.0%}": quantile(self.kept_shares, q) for q in QUANTILES} if self.kept_shares else {}

    def groups(self) -> list[GroupStats]:
        """Groups of scored executions, the largest first."""
        found = advantages(self._summaries)
        members: dict[tuple[str, str], list[ExecutionSummary]] = defaultdict(list)
        for summary in self._summaries:
            if _key(summary) in found:
                members[group_of(summary)].append(summary)
        groups = [_group(kind, name, of, found) for (kind, name), of in members.items()]
        return sorted(groups, key=lambda group: (-group.executions, group.kind, group.name))

    def as_dict(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in (*_COUNTED, *_SUMMED, "disagreements")}
        links: dict[str, dict[str, int]] = {}
        for (cause, confidence), count in sorted(self.links.items()):
            links.setdefault(cause, {})[confidence] = count
        return named | {
            "shared_share": self.shared_share,
            "kept_share": self.kept_share,
            "kept_share_quantiles": self.kept_quantiles(),
            "skipped": dict(self.skipped),
            "roles": {role.value: _fields(self.roles[role]) for role in Role if role in self.roles},
            "links": links,
            "untrained": dict(self.untrained.most_common()),
            "left_out": dict(self.left_out.most_common()),
            "not_trained": dict(self.unscored.most_common()),
            "groups": [_fields(group) for group in self.groups()],
        }


_COUNTED = ("executions", "superseded", "text_only")
_SUMMED = (
    *("calls", "contexts", "trajectories", "quarantined", "prompt_tokens", "tree_tokens"),
    *("sampled_tokens", "targets", "kept_targets"),
)


def shared_share(prompt_tokens: int, tree_tokens: int, sampled_tokens: int) -> float:
    """What is in the tree and was not sampled are the prompt tokens that were new."""
    new = tree_tokens - sampled_tokens
    return max(0.0, 1 - new / prompt_tokens) if prompt_tokens else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _group(
    kind: str, name: str, members: Sequence[ExecutionSummary], found: dict[AttemptKey, float]
) -> GroupStats:
    rewards = [worth for summary in members if (worth := reward(summary)) is not None]
    return GroupStats(
        kind=kind,
        name=name,
        executions=len(members),
        mean=math.fsum(rewards) / len(rewards),
        least=min(rewards),
        most=max(rewards),
        advantages={summary.execution_id: found[_key(summary)] for summary in members},
    )


def _key(summary: ExecutionSummary) -> AttemptKey:
    return summary.execution_id, summary.execution_attempt


def _fields(value: RoleStats | GroupStats) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}
