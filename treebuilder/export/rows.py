"""The common denominator of the flat formats: one row per admitted path. Pure.

Paths of one execution share prefixes. A row has its whole path, and `target_mask` says which of its
tokens it trains: a token that may be trained is 1 in exactly one row of its execution, the first path
(by `trajectory_id`) that brings it. So the masks of an execution add up to its kept targets, however
many paths a token lies on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gyre.treebuilder.score import AttemptKey, group_name, group_of, left_out, reward
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import CallKey, ExecutionTree, Ids, Logprobs, Node, Role, Trajectory

Mask = npt.NDArray[np.bool_]
Temperatures = npt.NDArray[np.float64]


class Place(NamedTuple):
    """Where an execution stands in an export."""

    summary: ExecutionSummary
    group_id: str
    group_index: int
    """Number of the group, by first appearance."""
    rollout_index: int
    """Number of the execution in the export."""
    repetition: int
    """Number of the execution within its group."""
    reward: float
    advantage: float


@dataclass(slots=True)
class Row:
    """One admitted path with what training on it takes."""

    place: Place
    trajectory_id: int
    slot: int
    stub: bool
    role: Role
    context_id: int
    index: int
    """Number of this row among those of its execution."""
    last: bool
    """The last of them: the end of the main agent's work."""
    token_ids: Ids
    target_mask: Mask
    full_mask: Mask
    """Every token of the path that may be trained, whichever row does it."""
    logprobs: Logprobs
    """As sampled; NaN for tokens that were given, and where none was captured."""
    versions: list[tuple[str, int, int]]
    """(policy version, start, end) of sampled tokens; positions within the path."""
    turns: int
    """Runs of given and of sampled tokens."""
    temperatures: Temperatures
    """Of the calls whose tokens this row trains; NaN for other tokens, and where it is not known."""
    n_unique_targets: int
    """Of the whole execution."""

    @property
    def weight(self) -> float:
        """With it each execution counts the same, however long: its targets' weights add up to 1."""
        return 1.0 / self.n_unique_targets if self.n_unique_targets else 0.0

    @property
    def start(self) -> int:
        """Where the part begins that this row trains: trainers that split in two split here."""
        return int(self.target_mask.argmax()) if self.target_mask.any() else len(self.token_ids)

    @property
    def temperature(self) -> float | None:
        """With which all tokens were sampled that this row trains; None if there is no such one."""
        found = np.unique(self.temperatures[self.target_mask])
        return float(found[0]) if len(found) == 1 and not np.isnan(found[0]) else None

    @property
    def own_logprobs(self) -> Logprobs:
        """Log-probabilities of the tokens this row trains, 0 elsewhere."""
        return np.where(self.target_mask, self.logprobs, np.float32(0))

    @property
    def own_versions(self) -> list[str]:
        """Policy versions of the tokens this row trains, in order of appearance."""
        named = [version for version, start, end in self.versions if self.target_mask[start:end].any()]
        return list(dict.fromkeys(named))

    @property
    def names(self) -> dict[str, Any]:
        """What the row is, for formats that let such things ride along."""
        return {
            "execution_id": self.place.summary.execution_id,
            "execution_attempt": self.place.summary.execution_attempt,
            "trajectory_id": self.trajectory_id,
            "stub": self.stub,
            "role": self.role.value,
            "advantage": self.place.advantage,
            "weight": self.weight,
        }


def places(
    summaries: Iterable[ExecutionSummary], advantages: Mapping[AttemptKey, float]
) -> tuple[dict[AttemptKey, Place], Counter[str]]:
    """The executions that training takes, and how many it does not take, by reason."""
    found: dict[AttemptKey, Place] = {}
    groups: dict[tuple[str, str], int] = {}
    members: Counter[tuple[str, str]] = Counter()
    reasons: Counter[str] = Counter()
    for summary in summaries:
        key = (summary.execution_id, summary.execution_attempt)
        worth, why = reward(summary), _why_not(summary)
        if why is not None or worth is None:
            reasons[why or "no_score"] += 1
            continue
        group = group_of(summary)
        number = groups.setdefault(group, len(groups))
        found[key] = Place(
            summary, group_name(summary), number, len(found), members[group], worth, advantages.get(key, 0.0)
        )
        members[group] += 1
    return found, reasons


def _why_not(summary: ExecutionSummary) -> str | None:
    why = left_out(summary)
    if why is None and not summary.exact:
        return "text_only"
    return "no_targets" if why is None and not summary.kept_targets else why


def lacks_logprobs(tree: ExecutionTree) -> bool:
    """Whether a kept target has no usable log-probability: no trainer could weigh it."""
    return any(
        node.logprobs is None or not np.isfinite(node.logprobs).all()
        for node in tree.nodes
        if node.target and node.admitted
    )


def rows_of(place: Place, tree: ExecutionTree, *, idle: bool = True) -> Iterator[Row]:
    """The rows of one execution, the end of the main agent's work last; `idle` ones train nothing."""
    paths = {each.trajectory_id: tree.path(each.leaf_node) for each in tree.trajectories}
    owner = _owners(tree.trajectories, paths)
    bringing = {trajectory for node, trajectory in owner.items() if len(tree.nodes[node].token_ids)}
    unique = sum(len(tree.nodes[node].token_ids) for node in owner)
    known = {link.call: link.temperature for link in tree.links}
    chosen = [each for each in _in_order(tree) if idle or each.trajectory_id in bringing]
    for index, each in enumerate(chosen):
        path = paths[each.trajectory_id]
        own = [owner.get(node.node_id) == each.trajectory_id for node in path]
        heat = _temperatures(path, own, known)
        yield _row(place, each, path, own, heat, unique, index, index == len(chosen) - 1)


def _owners(trajectories: Iterable[Trajectory], paths: Mapping[int, list[Node]]) -> dict[int, int]:
    """Target node -> the first path that brings it."""
    owner: dict[int, int] = {}
    for number in sorted(each.trajectory_id for each in trajectories):
        for node in paths[number]:
            if node.target:
                owner.setdefault(node.node_id, number)
    return owner


def _in_order(tree: ExecutionTree) -> list[Trajectory]:
    """By id, but the path on which the main agent stopped comes last: trainers score the last."""
    ended = {link.output_node: place for place, link in enumerate(tree.links)}

    def rank(each: Trajectory) -> tuple[bool, bool, int]:
        return each.role is Role.MAIN, not each.stub, ended.get(each.leaf_node, -1)

    ordered = sorted(tree.trajectories, key=lambda each: each.trajectory_id)
    if ordered:
        final = max(ordered, key=rank)
        ordered = [each for each in ordered if each is not final] + [final]
    return ordered


def _row(
    place: Place,
    each: Trajectory,
    path: list[Node],
    own: list[bool],
    heat: Temperatures,
    unique: int,
    index: int,
    last: bool,
) -> Row:
    lengths = [len(node.token_ids) for node in path]
    sampled = [node.sampled for node in path]
    return Row(
        place=place,
        trajectory_id=each.trajectory_id,
        slot=each.slot,
        stub=each.stub,
        role=each.role,
        context_id=each.context_id,
        index=index,
        last=last,
        token_ids=np.concatenate([node.token_ids for node in path]),
        target_mask=np.repeat(own, lengths),
        full_mask=np.repeat([node.target for node in path], lengths),
        logprobs=np.concatenate([_logprobs(node) for node in path]),
        versions=_versions(path),
        turns=sum(a != b for a, b in zip([None, *sampled], sampled, strict=False)),
        temperatures=heat,
        n_unique_targets=unique,
    )


def _temperatures(path: list[Node], own: list[bool], known: Mapping[CallKey, float | None]) -> Temperatures:
    of_nodes = [known.get(node.call) if mine else None for node, mine in zip(path, own, strict=True)]
    # As float64 None is NaN.
    return np.repeat(np.array(of_nodes, np.float64), [len(node.token_ids) for node in path])


def _logprobs(node: Node) -> Logprobs:
    if node.sampled and node.logprobs is not None:
        return node.logprobs
    return np.full(len(node.token_ids), np.nan, np.float32)


def _versions(path: Iterable[Node]) -> list[tuple[str, int, int]]:
    """Spans of the path; those that meet across a node boundary are one."""
    spans: list[tuple[str, int, int]] = []
    for node in path:
        for version, start, end in node.version_spans:
            start, end = node.depth + start, node.depth + end
            if spans and spans[-1][0] == version and spans[-1][2] == start:
                start = spans.pop()[1]
            spans.append((version, start, end))
    return spans


def numbers(versions: Iterable[str]) -> list[int]:
    """Policy versions of trainers are integers; those that are none have no number."""
    return [int(version) for version in versions if version.isdecimal()]
