"""A folder of trees as training reads it: which groups there are, what is left out, and trees on demand.

What is known of each execution as a whole is in memory; its tree only while it is asked for.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gyre.trainer.data.convert import Converted, Lacks
from gyre.trainer.data.shuffle import shuffled
from gyre.trainer.data.stored import Worth, converted
from gyre.trainer.data.tree import TrainTree, name_of
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import Importance, TrainSettings
from gyre.treebuilder.score import AttemptKey, advantages, group_name, left_out, reward
from gyre.treebuilder.store.read import Trees, read_trees
from gyre.treebuilder.summary import ExecutionSummary

_LOG = logging.getLogger(__name__)
_NAMED = 3
"""So many executions are named where something is wrong with many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """An execution that is trained."""

    execution_id: str
    attempt: int
    worth: Worth
    targets: int
    tokens: int
    longest: int
    """Positions that the model needs for it: tokens before the last target of its longest path."""
    largest_id: int
    lacks: Lacks

    @property
    def key(self) -> AttemptKey:
        return self.execution_id, self.attempt

    @property
    def name(self) -> str:
        return name_of(self.execution_id, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Executions that are compared with each other, of those that are trained."""

    name: str
    members: tuple[Member, ...]

    @property
    def varies(self) -> bool:
        """Whether there is anything to learn from it."""
        return any(member.worth.advantage for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a folder comes to, for people and for metrics."""

    executions: int
    """All of the folder."""
    trained: int
    groups: int
    alike: int
    """Groups among them with nothing to compare: one execution, or equal rewards."""
    left_out: dict[str, int]
    """Executions that are not trained, by reason."""
    targets: int
    tokens: int
    lacks: Lacks
    """Targets that lack something."""


@dataclass(frozen=True, slots=True)
class TrainData:
    """What of a folder is trained. Groups stand in the order in which they first appear."""

    path: Path
    groups: list[Group]
    census: Census
    _trees: Trees

    @property
    def members(self) -> list[Member]:
        return [member for group in self.groups for member in group.members]

    def trees(self, groups: Iterable[Group]) -> list[TrainTree]:
        """Trees of these groups, in their order. One that was damaged since is left out, with a warning."""
        wanted = {member.key: member.worth for group in groups for member in group.members}
        found = {key: one.tree for key, one in converted(self._trees, wanted)}
        return [found[key] for key in wanted if key in found]


def read_groups(source: str | Path | Trees, settings: TrainSettings) -> TrainData:
    """The groups of a folder that `gyre-trees build` wrote. Each tree is looked at once.

    Raises:
        TreeError: no trees, of a newer format, of a build that did not finish, or nothing but damaged ones.
        TrainError: there is nothing to train, or targets lack log-probabilities that the loss needs.
    """
    trees = source if isinstance(source, Trees) else read_trees(source)
    summaries = trees.executions()
    reasons = Counter(why for one in summaries if (why := why_not(one)) is not None)
    worth = worth_of(summaries, settings)
    members = [_member(key, worth[key], one) for key, one in converted(trees, worth)]
    reasons["damaged"] = len(worth) - len(members)
    reasons["no_targets"] += sum(not member.targets for member in members)
    groups = _grouped([member for member in members if member.targets])
    data = TrainData(trees.path, groups, _census(len(summaries), groups, dict(+reasons)), trees)
    _require_any(data, settings)
    if settings.loss.importance is not Importance.OFF:
        _require_logprobs(data)
        _warn_of_incomparable(data.census)
    return data


def why_not(summary: ExecutionSummary) -> str | None:
    """Why an execution is not trained; what has no tokens to train still counts in the mean of its group."""
    why = left_out(summary)
    if why is None and not summary.exact:
        return "not_exact"
    return "no_targets" if why is None and not summary.kept_targets else why


def worth_of(summaries: Sequence[ExecutionSummary], settings: TrainSettings) -> dict[AttemptKey, Worth]:
    """Of those that are trained. Who has no targets still counts in the mean of its group."""
    compared = advantages(summaries, settings.advantage)
    found: dict[AttemptKey, Worth] = {}
    for one in summaries:
        key, worth = (one.execution_id, one.execution_attempt), reward(one)
        if worth is not None and why_not(one) is None:
            found[key] = Worth(group_name(one), worth, compared[key])
    return _control(found, settings.seed) if settings.shuffle_advantages else found


def _control(found: Mapping[AttemptKey, Worth], seed: int) -> dict[AttemptKey, Worth]:
    """Advantages dealt out anew within groups."""
    groups: dict[str, list[AttemptKey]] = {}
    for key in sorted(found):
        groups.setdefault(found[key].group, []).append(key)
    dealt = {
        key: advantage
        for name, keys in groups.items()
        for key, advantage in zip(
            keys, shuffled([found[key].advantage for key in keys], name, seed), strict=True
        )
    }
    return {key: worth._replace(advantage=dealt[key]) for key, worth in found.items()}


def _member(key: AttemptKey, worth: Worth, one: Converted) -> Member:
    return Member(
        execution_id=key[0],
        attempt=key[1],
        worth=worth,
        targets=one.tree.targets,
        tokens=one.tree.tokens,
        longest=one.longest,
        largest_id=max((int(node.token_ids.max()) for node in one.tree.nodes), default=-1),
        lacks=one.lacks,
    )


def _grouped(members: Iterable[Member]) -> list[Group]:
    groups: dict[str, list[Member]] = {}
    for member in members:
        groups.setdefault(member.worth.group, []).append(member)
    return [Group(name=name, members=tuple(found)) for name, found in groups.items()]


def _census(executions: int, groups: list[Group], reasons: dict[str, int]) -> Census:
    members = [member for group in groups for member in group.members]
    return Census(
        executions=executions,
        trained=len(members),
        groups=len(groups),
        alike=sum(not group.varies for group in groups),
        left_out=reasons,
        targets=sum(member.targets for member in members),
        tokens=sum(member.tokens for member in members),
        lacks=Lacks.sum(member.lacks for member in members),
    )


def _require_any(data: TrainData, settings: TrainSettings) -> None:
    census, path = data.census, data.path
    if not census.executions:
        hint = "record some with `gyre proxy`, then run `gyre-trees build` again"
        raise TrainError(f"there are no executions in `{path}`", hint)
    if not census.trained:
        why = ", ".join(f"{count} {in_words(reason)}" for reason, count in census.left_out.items())
        text = f"of {census.executions} executions in `{path}` none can be trained: {why}"
        raise TrainError(text, _SCORE if "no_score" in census.left_out else _SHOW)
    if census.alike == census.groups and not settings.loss.kl:
        alone = all(len(group.members) == 1 for group in data.groups)
        text = "no execution has another to be compared with" if alone else "all rewards of a group are equal"
        raise TrainError(f"there is nothing to learn from `{path}`: {text}", _GROUP if alone else _MORE)


def in_words(reason: str) -> str:
    """Why an execution is left out; outcomes, as `timeout`, are words already."""
    return _WORDS.get(reason, reason.replace("_", " "))


_WORDS = {
    "skipped": "skipped by the builder",
    "evaluation": "of an evaluation",
    "superseded": "superseded by a later attempt",
    "no_score": "without a score",
    "score_not_finite": "with a score that is not finite",
    "not_exact": "built from texts, without ids",
    "no_targets": "without targets",
    "not_run": "that could not even be tried",
    "too_long": "with a path that is too long for the model or the limit",
    "other_vocabulary": "with ids that the model does not know",
    "no_logprobs": "without log-probabilities",
}
_SCORE = "score them with `gyre log score`, or give scores with `gyre-trees build --scores FILE`; build again"
_SHOW = "`gyre-trees show DIR EXECUTION` tells more of one"
_GROUP = "say which belong together, `gyre log score --group`, and build again"
_MORE = "record more executions of each group, or of tasks that are neither always nor never solved"


def _require_logprobs(data: TrainData) -> None:
    bare = [member.name for member in data.members if member.lacks.logprobs]
    if bare:
        more = f" and {len(bare) - _NAMED} more" if len(bare) > _NAMED else ""
        named = ", ".join(f"`{name}`" for name in bare[:_NAMED])
        text = f"targets of {named}{more} have no log-probabilities to weigh them with"
        raise TrainError(text, 'set `importance = "off"` in `[train.loss]` to train without')


def _warn_of_incomparable(census: Census) -> None:
    count = census.lacks.comparable
    if count:
        text = (
            "%d of %d targets have log-probabilities that are not, or not known to be, of the plain softmax "
            "at their temperature (top_p and the like were set, or an earlier gyre built the trees): they "
            "get importance weight 1"
        )
        _LOG.warning(text, count, census.targets)
