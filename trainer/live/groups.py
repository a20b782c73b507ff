"""A group of executions that have ended becomes trees with advantages, by the rules of stored trees.

What is left out is left out with a reason, and costs only itself. Whoever was scored counts in the mean of
its group, whether or not there is something of it to train (`gyre.treebuilder.score`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gyre.proxy.calls import CaptureQuality
from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.data.convert import Converted, train_tree
from gyre.trainer.data.read import in_words, why_not, worth_of
from gyre.trainer.data.stored import Worth
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import UnusableError
from gyre.trainer.live.assignment import Finished
from gyre.trainer.live.trees import OnlineTrees
from gyre.trainer.rollout.state import State
from gyre.trainer.settings import Importance, TrainSettings
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.score import AttemptKey, left_out, reward
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import ExecutionTree


class Sizes(NamedTuple):
    """What the model and the run can take."""

    vocabulary: int
    positions: int | None = None
    """None: the model knows no limit."""
    context: int | None = None
    """`limits.context`: of a prompt with its answer."""


@dataclass(slots=True, kw_only=True)
class BuiltGroup:
    key: str
    trees: list[TrainTree] = field(default_factory=list)
    """What is trained of it, by the numbers of its executions."""
    scores: list[float] = field(default_factory=list)
    """Of all that count in the mean."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """Of all executions."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Executions that are not trained, by reason."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The same by execution, in words."""
    sampled: int = 0
    """Unique sampled tokens of trainable calls, of all that count."""
    kept: int = 0
    """Of them trained."""
    seconds: float = 0.0
    """Of the processor: what else it does is not the work of trees."""


def built(finished: Finished, online: OnlineTrees, settings: TrainSettings, sizes: Sizes) -> BuiltGroup:
    """The group as it is trained. Its executions leave the memory of `online`.

    Raises:
        UnusableError: all answers of the group lack what an engine has to give: token ids, ids that the model
            knows, or log-probabilities.
    """
    start = time.thread_time()
    online.poll()
    members = _members(finished, online)
    online.forget(member.summary.execution_id for member in members)
    online.forget(job.name for job, _ in finished.failures)  # they may have asked before they failed
    group = _Group(BuiltGroup(key=finished.key), settings, sizes)
    group.add_all(members)
    group.count(members, finished)
    group.require_no_common_lack()
    group.made.seconds = time.thread_time() - start
    return group.made


@dataclass(slots=True)
class _Member:
    summary: ExecutionSummary
    tree: ExecutionTree | None = None
    """None: it does not count, or could not be built."""
    said: str = ""
    """What its run says of its end."""

    @property
    def key(self) -> AttemptKey:
        return self.summary.execution_id, self.summary.execution_attempt

    @property
    def answered(self) -> bool:
        """Whether an engine has given it something."""
        return self.tree is not None and any(link.output_tokens for link in self.tree.links)


def _members(finished: Finished, online: OnlineTrees) -> list[_Member]:
    """In whatever order executions came, in that of their numbers, which stand at the end of their names."""
    states = sorted(finished.states, key=lambda state: (len(state.execution), state.execution))
    members = [_Member(_summary(state, finished.key, online), said=state.reason) for state in states]
    # Of the others no tree is needed.
    counting = {member.key: member for member in members if left_out(member.summary) is None}
    for key, tree in online.trees(counting).items():
        summary = counting[key].summary
        if isinstance(tree, ExecutionError):
            summary.skipped = tree.message
            continue
        counting[key].tree = tree
        # Without a call there are no ids, which is not the fault of the engine.
        summary.exact, summary.kept_targets = tree.exact, tree.kept_targets
    return members


def _summary(state: State, group: str, online: OnlineTrees) -> ExecutionSummary:
    return ExecutionSummary(
        execution_id=state.execution,
        execution_attempt=state.attempt,
        task=state.task,
        group=group,
        outcome=state.outcome,
        score=state.score,
        evaluation=online.is_evaluation(state.execution),
        # What it was worth says something of the machine, and nothing of the policy.
        skipped="an engine or the proxy was gone" if state.lost else None,
    )


@dataclass(slots=True)
class _Group:
    made: BuiltGroup
    settings: TrainSettings
    sizes: Sizes
    faults: dict[str, str] = field(default_factory=dict)
    """Why executions with answers are not trained, and the first of each."""

    def add_all(self, members: Iterable[_Member]) -> None:
        worth = worth_of([member.summary for member in members], self.settings)
        for member in members:
            found = self._added(member, worth.get(member.key))
            if found is not None:
                self._leave_out(member.summary.execution_id, *found)
                if member.answered:
                    self.faults.setdefault(found[0], member.summary.execution_id)

    def count(self, members: Iterable[_Member], finished: Finished) -> None:
        """What is said of the group as a whole."""
        made = self.made
        outcomes = Counter(str(member.summary.outcome) for member in members)
        for job, problem in finished.failures:
            outcomes[ExecutionOutcome.FAILED.value] += 1
            self._leave_out(job.name, "not_run", problem.message)
        made.outcomes = dict(sorted(outcomes.items()))
        counting = [member for member in members if left_out(member.summary) is None]
        made.scores = [worth for each in counting if (worth := reward(each.summary)) is not None]
        made.sampled = sum(each.tree.targets for each in counting if each.tree is not None)
        made.kept = sum(tree.targets for tree in made.trees)

    def require_no_common_lack(self) -> None:
        """One execution may be odd. That all with an answer lack the same shows that the next ones will."""
        if self.made.trees or len(self.faults) != 1:
            return
        [(why, named)] = self.faults.items()
        if why in _FAULTS:
            text, hint = _FAULTS[why]
            more = f"; `{named}` is left out: {self.made.reasons[named]}"
            raise UnusableError(f"nothing of group `{self.made.key}` can be trained: {text}{more}", hint)

    def _added(self, member: _Member, worth: Worth | None) -> tuple[str, str] | None:
        """Why it is not trained, and what more is known of that; None where it is."""
        summary, tree = member.summary, member.tree
        if tree is None or worth is None:
            why = why_not(summary) or "damaged"
            return self._named(why, tree) if tree else (why, summary.skipped or member.said)
        try:
            one = train_tree(tree, group=worth.group, reward=worth.reward, advantage=worth.advantage)
        except (LookupError, ValueError) as problem:
            return "damaged", f"its tree {problem}"
        found = self._flaw(one)
        if found is None:
            self.made.trees.append(one.tree)
        return found

    def _named(self, why: str, tree: ExecutionTree) -> tuple[str, str]:
        """Of a tree without targets."""
        counts = sorted(tree.untrained.items(), key=lambda pair: (-pair[1], pair[0]))
        said = ", ".join(f"{count} tokens {in_words(reason)}" for reason, count in counts)
        if why == "no_targets" and counts and counts[0][0] == f"capture_{CaptureQuality.IDS_ONLY.value}":
            return "no_logprobs", said
        return why, said

    def _flaw(self, one: Converted) -> tuple[str, str] | None:
        if not one.tree.targets:
            return "no_targets", ""
        largest = max(int(node.token_ids.max()) for node in one.tree.nodes)
        if largest >= self.sizes.vocabulary:
            return "other_vocabulary", f"token id {largest}, and the model has {self.sizes.vocabulary} ids"
        # The last target needs no position: it is only predicted.
        length, positions, context = one.longest + 1, self.sizes.positions, self.sizes.context
        if positions is not None and one.longest > positions:
            return "too_long", f"{length} tokens, and the model knows {positions} positions"
        if context is not None and length > context:
            return "too_long", f"{length} tokens, and `limits.context` is {context}"
        if one.lacks.logprobs and self.settings.loss.importance is not Importance.OFF:
            return "no_logprobs", f"{one.lacks.logprobs} targets"
        return None

    def _leave_out(self, name: str, why: str, said: str) -> None:
        self.made.left_out[why] = self.made.left_out.get(why, 0) + 1
        self.made.reasons[name] = f"{in_words(why)}: {said}" if said else in_words(why)


_DOCTOR = "`gyre doctor URL` tells what an engine gives, and what helps where that is not enough"
_FAULTS = {
    "not_exact": ("the engine gives no token ids", _DOCTOR),
    "no_logprobs": ("the engine gives no log-probabilities", _DOCTOR),
    "other_vocabulary": (
        "the engine has another tokenizer or vocabulary than the model",
        "let it serve the model that is trained, with the tokenizer of that",
    ),
}
"""Reasons that are the engine's, where all answers have them: what it lacks, and what to do."""
