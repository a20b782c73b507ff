"""A group as it is trained live is the one that training on stored trees makes of the same log."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import Sampling
from gyre.proxy.errors import GyreError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.proxy.log.sealing.seal import seal
from gyre.trainer.data.read import read_groups
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.live.assignment import Finished
from gyre.trainer.live.groups import BuiltGroup, Sizes, built
from gyre.trainer.live.settings import TreeTable
from gyre.trainer.live.trees import OnlineTrees
from gyre.trainer.rollout.job import Job
from gyre.trainer.rollout.state import State
from gyre.trainer.settings import LossSettings, TrainSettings
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.score import Advantage
from tests.log.builders import LogBuilder, Truth, Worker, growing_run
from tests.trees.world.built import plain
from tests.trees.world.story import FEW

KEY = "g000003"
LARGE = Sizes(vocabulary=1 << 17)
NEUTRAL = Sampling(temperature=1.0, top_p=1.0)
Outcome = ExecutionOutcome


@dataclass(frozen=True)
class Told:
    """An execution: what it asked, and what became of it."""

    kind: str = "plain"
    ended: Outcome = Outcome.COMPLETED
    judged: Outcome | None = None
    score: float | None = 1.0

    def write(self, worker: Worker, name: str) -> State:
        evaluation = True if self.kind == "evaluation" else None
        worker.event(ExecutionEvent.STARTED, name, task="t", group=KEY, evaluation=evaluation)
        self._ask(worker, name)
        event = ExecutionEvent.TIMED_OUT if self.ended is Outcome.TIMED_OUT else ExecutionEvent.ENDED
        worker.event(event, name, outcome=self.ended.value)
        if self.judged is not None or self.score is not None:
            judged = self.judged.value if self.judged else None
            worker.event(ExecutionEvent.SCORED, name, outcome=judged, score=self.score)
        return State(execution=name, task="t", group=KEY, outcome=self.judged or self.ended, score=self.score)

    def _ask(self, worker: Worker, name: str) -> None:
        call, first = f"{name}-0", {"execution": name, "sampling": NEUTRAL}
        match self.kind:
            case "plain" | "evaluation":
                growing_run(worker, 3, execution=name, step=4, output=3, seed=int(name[-1]))
            case "greedy":
                worker.call(call, logprob_quality="greedy", **first)
            case "texts":
                worker.call(call, None, None, **first)
            case "no_logprobs":
                worker.call(call, capture_quality="ids_only", logprobs=None, **first)
            case "damaged":
                worker.log.truth["gone", 0, 0] = Truth([1, 2, 3], [4], [], b"")
                worker.call(call, [1, 2, 3, 4, 5], [6], parent=("gone", 0, 0), **first)
            case "silent":
                pass
            case _:
                raise ValueError(self.kind)


SCORES = st.sampled_from((0.0, 0.25, 1.0, -2.0))
ENDINGS = st.one_of(
    st.builds(
        Told,
        kind=st.sampled_from(
            ("plain", "plain", "plain", "greedy", "texts", "silent", "evaluation", "damaged")
        ),
        ended=st.sampled_from((Outcome.COMPLETED, Outcome.TIMED_OUT, Outcome.FAILED)),
        score=SCORES,
    ),
    st.sampled_from(
        (
            Told(ended=Outcome.FAILED, score=None),
            Told(ended=Outcome.RUN_TIMEOUT, score=None),
            Told(judged=Outcome.SCORER_FAILED, score=None),
            Told(judged=Outcome.NO_ARTIFACT, score=None),
            Told(judged=Outcome.NO_ARTIFACT, score=0.0),
            Told(score=math.nan),
        )
    ),
)
SETTINGS = st.builds(
    TrainSettings,
    advantage=st.sampled_from(Advantage),
    shuffle_advantages=st.booleans(),
    # So that stored trees are read where rewards are alike, too.
    loss=st.just(LossSettings(kl=0.1)),
)


class Group:
    """A group whose executions have ended, in the log of a run."""

    def __init__(self, folder: Path, told: Sequence[Told], *, sealed: bool = False) -> None:
        self.log = LogBuilder(folder / "logs")
        worker = self.log.worker()
        self.states = [each.write(worker, f"{KEY}-t-{i}") for i, each in enumerate(told)]
        worker.close()
        if sealed:
            seal(self.log.root)

    def built(
        self,
        settings: TrainSettings | None = None,
        sizes: Sizes = LARGE,
        table: TreeTable | None = None,
        **more: Any,
    ) -> BuiltGroup:
        finished = Finished(key=KEY, **({"states": self.states} | more))
        with OnlineTrees(self.log.root, table or TreeTable()) as online:
            return replace(built(finished, online, settings or TrainSettings(), sizes), seconds=0.0)

    def stored(self, settings: TrainSettings) -> tuple[list[TrainTree], dict[str, int]] | None:
        """As read from a folder of trees; None where nothing can be trained."""
        out = self.log.root.parent / "trees"
        build_trees(self.log.root, out)
        try:
            data = read_groups(out, settings)
        except TrainError:
            return None
        return data.trees(data.groups), data.census.left_out


def values(trees: Sequence[TrainTree]) -> list[Any]:
    return [plain(asdict(tree)) for tree in sorted(trees, key=lambda tree: tree.name)]


@settings(FEW, max_examples=40)
@given(st.lists(ENDINGS, min_size=1, max_size=6), SETTINGS, st.booleans(), st.randoms(use_true_random=False))
def test_it_is_what_stored_trees_give_whatever_came_first(
    told: list[Told], how: TrainSettings, sealed: bool, random: Any
) -> None:
    with TemporaryDirectory() as folder:
        group = Group(Path(folder), told, sealed=sealed)
        stored = group.stored(how)
        if stored is None:
            try:
                assert group.built(how).trees == []
            except TrainError:
                assert {each.kind for each in told} >= {"texts"}
            return
        made = group.built(how)
        assert values(made.trees) == values(stored[0])
        assert made.left_out == stored[1]
        assert len(made.reasons) == sum(made.left_out.values()) == len(told) - len(made.trees)
        random.shuffle(group.states)
        assert plain(asdict(group.built(how))) == plain(asdict(made))


def test_whoever_was_scored_counts_in_the_mean(tmp_path: Path) -> None:
    told = [
        Told(score=1.0),
        Told(ended=Outcome.TIMED_OUT, score=0.0),
        Told("greedy", score=0.0),
        Told("silent", judged=Outcome.NO_ARTIFACT, score=None),
        Told(judged=Outcome.SCORER_FAILED, score=None),
        Told(ended=Outcome.RUN_TIMEOUT, score=None),
    ]
    made = Group(tmp_path, told).built()
    assert made.scores == [1.0, 0.0, 0.0, 0.0]
    assert [tree.advantage for tree in made.trees] == [
        pytest.approx(0.75 / 0.5001),
        pytest.approx(-0.25 / 0.5001),
    ]
    assert [(tree.name, tree.group) for tree in made.trees] == [(f"{KEY}-t-0", KEY), (f"{KEY}-t-1", KEY)]
    assert made.left_out == {"no_targets": 2, "scorer_failed": 1, "run_timeout": 1}
    assert made.outcomes == {
        "completed": 2,
        "no_artifact": 1,
        "run_timeout": 1,
        "scorer_failed": 1,
        "timed_out": 1,
    }
    assert any(tree.advantage for tree in made.trees)
    assert made.reasons[f"{KEY}-t-2"] == "without targets: 2 tokens greedy"


def test_executions_stand_by_their_numbers(tmp_path: Path) -> None:
    made = Group(tmp_path, [Told()] * 11).built()
    assert [tree.name for tree in made.trees] == [f"{KEY}-t-{i}" for i in range(11)]
    assert not any(tree.advantage for tree in made.trees)


def test_what_is_too_long_for_the_model_or_the_limit_is_left_out_and_counts(tmp_path: Path) -> None:
    group = Group(tmp_path, [Told(score=1.0), Told("greedy", score=0.0)])
    [tree] = group.built().trees
    length = tree.tokens
    assert group.built(sizes=LARGE._replace(positions=length - 1, context=length)).trees
    for sizes in (LARGE._replace(positions=length - 2), LARGE._replace(context=length - 1)):
        made = group.built(sizes=sizes)
        assert made.trees == [] and made.scores == [1.0, 0.0]
        assert made.left_out == {"too_long": 1, "no_targets": 1}
        assert f"{length} tokens" in made.reasons[f"{KEY}-t-0"]


def test_ids_that_the_model_does_not_know_are_left_out_and_told_where_all_have_them(tmp_path: Path) -> None:
    group = Group(tmp_path, [Told(score=0.0), Told(score=1.0)])
    largest = sorted(max(int(node.token_ids.max()) for node in tree.nodes) for tree in group.built().trees)
    made = group.built(sizes=Sizes(largest[1]))
    assert (made.left_out, len(made.trees)) == ({"other_vocabulary": 1}, 1)
    assert any(f"token id {largest[1]}" in why for why in made.reasons.values())
    with pytest.raises(TrainError, match="another tokenizer or vocabulary") as raised:
        group.built(sizes=Sizes(largest[0]))
    assert raised.value.hint


@pytest.mark.parametrize(
    ("kind", "reason", "text"),
    [("no_logprobs", "no_logprobs", "no log-probabilities"), ("texts", "not_exact", "no token ids")],
)
def test_what_an_engine_does_not_give_is_told_where_all_answers_lack_it(
    tmp_path: Path, kind: str, reason: str, text: str
) -> None:
    made = Group(tmp_path / "some", [Told(kind), Told(score=0.0)]).built()
    assert (made.left_out, len(made.trees)) == ({reason: 1}, 1)
    # Executions that had no answer at all say nothing about the engine, nor do those without a score.
    silent = [Told(kind), Told("silent"), Told(ended=Outcome.FAILED, score=None)]
    with pytest.raises(
        TrainError, match=f"nothing of group `{KEY}` can be trained: the engine gives {text}"
    ) as raised:
        Group(tmp_path / "all", silent).built()
    assert f"{KEY}-t-0" in raised.value.message and "gyre doctor" in raised.value.hint
    made = Group(tmp_path / "mixed", [Told(kind), Told("greedy")]).built()
    assert made.left_out == {reason: 1, "no_targets": 1}


def test_executions_without_an_answer_are_no_fault_of_the_engine(tmp_path: Path) -> None:
    made = Group(tmp_path, [Told("silent"), Told("silent", score=0.0)]).built()
    assert (made.trees, made.left_out) == ([], {"no_targets": 2})


def test_what_could_not_even_be_tried_is_named(tmp_path: Path) -> None:
    failures = [(Job(f"{KEY}-t-1"), GyreError("no such program"))]
    made = Group(tmp_path, [Told()]).built(failures=failures)
    assert made.left_out == {"not_run": 1} and made.outcomes == {"completed": 1, "failed": 1}
    assert "no such program" in made.reasons[f"{KEY}-t-1"]


def test_a_damaged_execution_costs_itself(tmp_path: Path) -> None:
    made = Group(tmp_path, [Told("damaged", score=1.0), Told(score=1.0), Told(score=0.0)]).built()
    assert made.left_out == {"skipped": 1} and len(made.trees) == 2 and made.scores == [1.0, 0.0]
    assert "`gone` is missing" in made.reasons[f"{KEY}-t-0"]


def test_what_the_cap_and_the_length_leave_out_is_seen_in_the_share_kept(tmp_path: Path) -> None:
    group = Group(tmp_path, [])
    worker, name = group.log.worker("late"), f"{KEY}-t-0"
    for number in range(3):
        worker.call(f"c{number}", [1, 2, 3, 10 + number], [4] * (number + 1), execution=name)
    group.states.append(State(execution=name, outcome=Outcome.COMPLETED, score=1.0))
    whole, capped = group.built(), group.built(table=TreeTable(cap=1))
    assert (whole.sampled, whole.kept) == (6, 6)
    assert capped.sampled == 6 and capped.kept < 6


def test_later_attempts_are_trained_and_earlier_ones_are_not(tmp_path: Path) -> None:
    group = Group(tmp_path, [Told(ended=Outcome.RUN_TIMEOUT, score=None)])
    worker, name = group.log.worker("again"), f"{KEY}-t-0"
    worker.call("again", [7, 8], [9], execution=name, execution_attempt=1)
    group.states = [State(execution=name, attempt=1, outcome=Outcome.COMPLETED, score=1.0)]
    [tree] = group.built().trees
    assert (tree.attempt, tree.tokens) == (1, 3)


def test_a_group_that_was_built_is_forgotten(tmp_path: Path) -> None:
    group = Group(tmp_path, [Told("damaged"), Told()])
    with OnlineTrees(group.log.root, TreeTable()) as online:
        built(Finished(key=KEY, states=group.states), online, TrainSettings(), LARGE)
        for segment in group.log.folder.segments():
            segment.unlink()
        for state in group.states:
            assert online.tree(state.execution).links == []


def test_so_is_what_an_execution_asked_before_it_could_not_be_run(tmp_path: Path) -> None:
    group = Group(tmp_path, [Told(), Told()])
    failures = [(Job(group.states[1].execution), GyreError("the proxy was gone"))]
    finished = Finished(key=KEY, states=group.states[:1], failures=failures)
    with OnlineTrees(group.log.root, TreeTable()) as online:
        built(finished, online, TrainSettings(), LARGE)
        for segment in group.log.folder.segments():
            segment.unlink()
        assert online.tree(group.states[1].execution).links == []


def test_counts_are_of_all_executions(tmp_path: Path) -> None:
    kinds = ("plain", "greedy", "silent", "damaged", "evaluation")
    made = Group(tmp_path, [Told(kind) for kind in kinds]).built()
    assert Counter(made.left_out) == {"no_targets": 2, "skipped": 1, "evaluation": 1}
    assert sum(made.outcomes.values()) == len(kinds)
