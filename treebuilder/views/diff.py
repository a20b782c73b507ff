"""Two builds compared: what another rule, seed, log or version of gyre changed.

Contexts and nodes are numbered by each build for itself, so calls are compared, which both have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.store.read import Trees
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import CallKey, ExecutionTree, Link

Progress = Callable[[int, int], None]
"""Called with executions done and executions in all."""


class Change(NamedTuple):
    """One thing that is not the same."""

    what: str
    """`cause`, `role`, `origin`, `targets`, `kept_targets`, `trajectories`, `score`, `added`, ..."""
    call: CallKey | None
    """None where the whole execution is meant."""
    before: object
    after: object


class _CallSide(NamedTuple):
    """What of a call is compared."""

    cause: str
    role: str
    origin: CallKey | None
    confidence: str
    untrained: str | None
    targets: int
    kept_targets: int


class _Path(NamedTuple):
    """A trajectory by what it leads to."""

    leaf: CallKey | None
    role: str
    stub: bool
    tokens: int
    targets: int


@dataclass(slots=True)
class ExecutionDiff:
    execution_id: str
    execution_attempt: int
    changes: list[Change] = field(default_factory=list)


@dataclass(slots=True)
class TreesDiff:
    """What two folders of trees do not have in common."""

    options: dict[str, tuple[object, object]] = field(default_factory=dict)
    added: list[AttemptKey] = field(default_factory=list)
    removed: list[AttemptKey] = field(default_factory=list)
    changed: list[ExecutionDiff] = field(default_factory=list)
    same: int = 0

    @property
    def differs(self) -> bool:
        """Whether any execution is another; other options that lead to the same do not count."""
        return bool(self.added or self.removed or self.changed)

    def as_dict(self) -> dict[str, Any]:
        return {
            "differs": self.differs,
            "options": {name: {"before": a, "after": b} for name, (a, b) in self.options.items()},
            "added": [_named(key) for key in self.added],
            "removed": [_named(key) for key in self.removed],
            "same": self.same,
            "changed": [
                _named((one.execution_id, one.execution_attempt))
                | {"changes": [change._asdict() for change in one.changes]}
                for one in self.changed
            ],
        }


def diff_builds(before: Trees, after: Trees, progress: Progress = lambda done, total: None) -> TreesDiff:
    """Compare two folders; one execution of each is in memory at a time where both have one order."""
    old = {_key(summary): summary for summary in before.executions()}
    new = {_key(summary): summary for summary in after.executions()}
    found = TreesDiff(
        options=_options(before.options, after.options),
        added=[key for key in new if key not in old],
        removed=[key for key in old if key not in new],
    )
    common = [key for key in old if key in new]
    trees = _pairs(before, after, [k for k in common if old[k].skipped is None is new[k].skipped])
    for done, key in enumerate(common, 1):
        changes = list(diff_summaries(old[key], new[key]))
        if old[key].skipped is None is new[key].skipped:
            changes += diff_trees(*next(trees))
        if changes:
            found.changed.append(ExecutionDiff(*key, changes))
        progress(done, len(common))
    found.same = len(common) - len(found.changed)
    return found


def _options(before: Options, after: Options) -> dict[str, tuple[object, object]]:
    pairs = zip(Options._fields, before, after, strict=True)
    return {name: (old, new) for name, old, new in pairs if old != new}


def _pairs(
    before: Trees, after: Trees, keys: Sequence[AttemptKey]
) -> Iterator[tuple[ExecutionTree, ExecutionTree]]:
    """The trees of each key from both, in order of `keys`, which is that of `before`."""
    wanted = set(keys)
    order = [key for summary in after.executions() if (key := _key(summary)) in wanted]
    theirs = (tree for summary, tree in after if _key(summary) in wanted) if order == list(keys) else None
    for summary, tree in before:
        if _key(summary) in wanted:
            yield tree, next(theirs) if theirs else after.tree(*_key(summary))


def diff_summaries(before: ExecutionSummary, after: ExecutionSummary) -> Iterator[Change]:
    """What was said of an execution, and whether it could be rebuilt."""
    for name in ("skipped", "score", "outcome", "task", "group", "evaluation", "superseded", "exact"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield Change(name, None, old, new)


def diff_trees(before: ExecutionTree, after: ExecutionTree) -> Iterator[Change]:
    """Links, targets and trajectories that are not the same."""
    old, new = _calls(before), _calls(after)
    for call in dict.fromkeys([*old, *new]):
        if call not in old:
            yield Change("added", call, None, new[call].cause)
        elif call not in new:
            yield Change("removed", call, old[call].cause, None)
        else:
            yield from _diff_call(call, old[call], new[call])
    for name in ("sampled_tokens", "targets", "kept_targets"):
        if getattr(before, name) != getattr(after, name):
            yield Change(name, None, getattr(before, name), getattr(after, name))
    paths = _paths(before), _paths(after)
    if paths[0] != paths[1]:
        gone = [path for path in paths[0] if path not in paths[1]]
        come = [path for path in paths[1] if path not in paths[0]]
        yield Change("trajectories", None, [_told(path) for path in gone], [_told(path) for path in come])


def _diff_call(call: CallKey, old: _CallSide, new: _CallSide) -> Iterator[Change]:
    for name in _CallSide._fields:
        if getattr(old, name) != getattr(new, name):
            yield Change(name, call, getattr(old, name), getattr(new, name))


def _calls(tree: ExecutionTree) -> dict[CallKey, _CallSide]:
    kept = _kept(tree)
    return {link.call: _side(link, kept.get(link.call, 0)) for link in tree.links}


def _side(link: Link, kept: int) -> _CallSide:
    return _CallSide(
        link.cause.value,
        link.role.value,
        link.origin,
        link.confidence.value,
        link.untrained,
        link.targets,
        kept,
    )


def _kept(tree: ExecutionTree) -> Mapping[CallKey, int]:
    kept: dict[CallKey, int] = {}
    for node in tree.nodes:
        if node.target and node.admitted:
            kept[node.call] = kept.get(node.call, 0) + len(node.token_ids)
    return kept


def _paths(tree: ExecutionTree) -> list[_Path]:
    """In the order in which they were admitted."""
    return [
        _Path(_leaf(tree, path.leaf_node), path.role.value, path.stub, path.tokens, path.targets)
        for path in sorted(tree.trajectories, key=lambda path: path.trajectory_id)
    ]


def _leaf(tree: ExecutionTree, node_id: int) -> CallKey | None:
    return tree.nodes[node_id].call if 0 <= node_id < len(tree.nodes) else None


def _told(path: _Path) -> str:
    leaf = "?" if path.leaf is None else path.leaf.call_id
    stub = " stub" if path.stub else ""
    return f"{path.role}{stub} to {leaf}: {path.tokens:,} tokens, {path.targets:,} targets"


def _key(summary: ExecutionSummary) -> AttemptKey:
    return summary.execution_id, summary.execution_attempt


def _named(key: AttemptKey) -> dict[str, Any]:
    return {"execution_id": key[0], "execution_attempt": key[1]}
