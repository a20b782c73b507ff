"""Updates: what is computed, what counts, what is thrown away, and what a full memory changes (nothing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest
import torch

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.pack.piece import Piece
from gyre.trainer.pack.work import measure
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import LossPart, PassOutput, TreePass
from gyre.trainer.settings import Dtype, LossSettings, OptimizerSettings, Schedule, TrainSettings
from gyre.trainer.update.computing import Stopped
from gyre.trainer.update.learner import Learner, Progress
from gyre.trainer.update.network import Network
from gyre.trainer.update.report import Skipped, UpdateReport
from tests.trainer.builders import Shape, context, random_trees, targets, tree, with_logprobs
from tests.trainer.models import tiny_model
from tests.trainer.oracle import logprobs, truth

LOSS = LossSettings(clip_low=0.05, clip_high=0.05)
SETTINGS = TrainSettings(
    updates_per_batch=1, token_budget=24, loss=LOSS, optimizer=OptimizerSettings(lr=1e-2, clip_norm=0)
)

Wrap = Callable[[TreePass], TreePass]


class Rig:
    """A learner on a small model, and the gradients of its last step."""

    def __init__(
        self, settings: TrainSettings = SETTINGS, wrap: Wrap = lambda own: own, seed: int = 0
    ) -> None:
        self.model = tiny_model(seed=seed)
        policy = Policy(self.model, dtype=settings.dtype)
        self.grads: dict[str, torch.Tensor] = {}
        self.budgets: list[int] = []
        self.stopping = False

        def make(budget: int) -> TreePass:
            self.budgets.append(budget)
            return wrap(FlatPass(policy, rows_tokens=budget))

        reference = Policy(tiny_model(seed=9))
        self.learner = Learner(
            Network(policy=policy, make=make),
            settings,
            total_updates=10,
            reference=Network(policy=reference, make=lambda _: FlatPass(reference))
            if settings.loss.kl
            else None,
            stop=lambda: self.stopping,
            at=self._at,
        )

    def _at(self, where: str) -> None:
        if where == "step":
            own = self.learner.parameters.items()
            self.grads = {name: each.grad.clone() for name, each in own if each.grad is not None}

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: own.detach().clone() for name, own in self.model.named_parameters()}

    def trees(self, seed: int = 3) -> list[TrainTree]:
        """Sampled by the model itself."""
        return recorded(self.model, [replace(one, attempt=0) for one in random_trees(seed)])

    def update(self, trees: Sequence[TrainTree]) -> UpdateReport:
        return self.learner.update(self.learner.begin([trees]), 0)


def recorded(model: torch.nn.Module, trees: Sequence[TrainTree]) -> list[TrainTree]:
    return with_logprobs(trees, logprobs(model, trees).tolist())  # type: ignore[arg-type]


def assert_near(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], limit: float = 1e-5
) -> None:
    for name, gradient in expected.items():
        scale = max(float(gradient.norm()), 1e-12)
        assert float((found[name] - gradient).norm()) / scale < limit, name


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert all(torch.equal(found[name], expected[name]) for name in expected)


# ------------------------------------------------------------------------------------------- what is computed


def test_rewards_are_those_of_all_scored_executions() -> None:
    rig = Rig()
    trees = [
        replace(one, reward=0.25 * number, advantage=number - 1.0)
        for number, one in enumerate(rig.trees()[:3])
    ]
    found = rig.update(trees).metrics()
    assert (found["reward/mean"], found["reward/min"], found["reward/max"]) == (0.25, 0.0, 0.5)
    assert type(found["skipped/no_variance"]) is int


def test_an_update_has_the_loss_and_the_gradients_of_its_executions() -> None:
    rig = Rig()
    trees = rig.trees()
    expected = truth(tiny_model(), trees, LOSS, logprobs(tiny_model(), trees).detach())
    report = rig.update(trees)
    assert report.loss == pytest.approx(float(expected.value.loss.detach()), rel=1e-5)
    assert_near(rig.grads, expected.gradients)
    assert report.grad_norm == pytest.approx(
        math.sqrt(sum(float(own.norm()) ** 2 for own in expected.gradients.values())), rel=1e-5
    )
    assert (report.update, report.skipped, report.executions) == (1, Skipped.NO, 4)


def test_later_updates_of_a_batch_are_compared_with_its_start() -> None:
    rig = Rig(replace_settings(updates_per_batch=2))
    trees = rig.trees()
    old_T = logprobs(tiny_model(), trees[2:]).detach()
    batch = rig.learner.begin([trees[:2], trees[2:]])
    assert set(batch.old) == {one.name for one in trees[2:]}
    rig.learner.update(batch, 0)
    model = tiny_model()
    model.load_state_dict(rig.weights(), strict=False)
    expected = truth(model, trees[2:], LOSS, old_T)
    report = rig.learner.update(batch, 1)
    assert any(abs(ratio - 1) > 1e-3 for ratio in expected.value.ratios)
    assert report.loss == pytest.approx(float(expected.value.loss.detach()), rel=1e-4)
    assert_near(rig.grads, expected.gradients, 1e-4)
    assert batch.old == {}


def test_weights_that_did_not_move_have_ratio_1_also_where_rounding_is_coarse() -> None:
    settings = replace_settings(
        updates_per_batch=3, dtype=Dtype.BF16, loss=LossSettings(), optimizer=OptimizerSettings(lr=1e-14)
    )
    rig = Rig(settings)
    rig.learner.network.make = lambda _: PackedPass(rig.learner.network.policy)
    trees = recorded(rig.model, random_trees(3, Shape(executions=9, groups=3)))
    batch = rig.learner.begin([trees[:3], trees[3:6], trees[6:]])
    for part in range(3):
        report = rig.learner.update(batch, part)
        assert report.objective is not None
        ratios = {
            name: each for name, each in report.metrics().items() if name.startswith("execution_ratio/")
        }
        assert set(ratios.values()) == {1.0}, (part, ratios)
        assert report.metrics()["clipped/executions_high"] == report.metrics()["clipped/executions_low"] == 0


def test_executions_without_an_advantage_count_and_are_not_computed() -> None:
    rig, other = Rig(), Rig()
    trees = rig.trees()
    rig.update(trees[:2])
    report = other.update(
        [trees[0], replace(trees[2], advantage=0.0), trees[1], replace(trees[3], advantage=0.0)]
    )
    assert_near(other.grads, {name: own / 2 for name, own in rig.grads.items()})
    assert (report.executions, report.no_variance) == (4, 0.5)
    assert report.targets == trees[0].targets + trees[1].targets


def test_with_a_divergence_to_hold_they_are_computed() -> None:
    rig = Rig(replace_settings(loss=LossSettings(kl=0.1)))
    report = rig.update([replace(one, advantage=0.0) for one in rig.trees()])
    assert report.skipped is Skipped.NO
    assert report.objective is not None and report.objective.kl_reference
    assert rig.grads


def test_an_update_without_any_variance_takes_no_step_and_counts() -> None:
    rig = Rig()
    before = rig.weights()
    report = rig.update([replace(one, advantage=0.0) for one in rig.trees()])
    assert report.skipped is Skipped.NO_VARIANCE
    assert (report.no_variance, report.targets, report.executions) == (1, 0, 4)
    assert rig.learner.progress.update == 1
    assert not rig.learner.optimizer.state
    assert_same(rig.weights(), before)


def test_only_chosen_parameters_change() -> None:
    rig = Rig(replace_settings(train=("*layers.1.*",), freeze=("*norm*",)))
    before = rig.weights()
    rig.update(rig.trees())
    changed = {name for name, own in rig.weights().items() if not torch.equal(own, before[name])}
    assert changed == {name for name in before if ".layers.1." in name and "norm" not in name}


def test_gradients_are_scaled_down_to_the_limit() -> None:
    rig = Rig(replace_settings(optimizer=OptimizerSettings(clip_norm=0.01)))
    report = rig.update(rig.trees())
    assert report.grad_norm > 0.01
    norm = math.sqrt(sum(float(own.norm()) ** 2 for own in rig.grads.values()))
    assert norm == pytest.approx(0.01, rel=1e-5)


def test_the_learning_rate_follows_the_schedule() -> None:
    schedule = OptimizerSettings(lr=1e-2, schedule=Schedule.LINEAR)
    rig = Rig(replace_settings(optimizer=schedule))
    rig.learner.go_on_from(Progress(update=8, token_budget=24))
    before = rig.weights()
    report = rig.update(rig.trees())
    assert report.lr == pytest.approx(2e-3)
    moved = max(float((own - before[name]).abs().max()) for name, own in rig.weights().items())
    assert moved == pytest.approx(2e-3, rel=1e-3)


def test_tokens_are_counted_as_trees_and_path_by_path() -> None:
    rig = Rig(replace_settings(token_budget=1000))
    nodes = [context(-1, 1, 2, 3), targets(0, 4, 5), targets(0, 6, 7, 8)]
    report = rig.update(recorded(rig.model, [tree("a", nodes)]))
    # 3 shared and 1 + 2: the last label of a path is no input.
    assert (report.tokens.tree, report.tokens.flat) == (6, 9)
    assert report.tokens.shared == pytest.approx(1 / 3)
    assert report.versions == {"1": 5}


# ------------------------------------------------------------------------------------------ what goes wrong


class Failing:
    """A pass that fails in its own way, from a call on, so many times."""

    def __init__(
        self, own: TreePass, problem: Callable[[], BaseException], *, first: int, times: int
    ) -> None:
        self._own = own
        self._problem = problem
        self._left = [first, times]

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        self._left[0] -= 1
        if self._left[0] < 0 and self._left[1]:
            self._left[1] -= 1
            raise self._problem()
        return self._own(piece, temperature_K, loss)


@pytest.mark.parametrize(
    "problem",
    [
        lambda: torch.OutOfMemoryError("CUDA out of memory"),
        lambda: MemoryError(),
        lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"),
    ],
)
def test_a_full_memory_halves_the_budget_and_changes_no_gradient(
    problem: Callable[[], BaseException],
) -> None:
    whole = Rig()
    failing: list[Failing] = []

    def wrap(own: TreePass) -> TreePass:
        failing.append(Failing(own, problem, first=1, times=0 if failing else 1))
        return failing[-1]

    halved = Rig(wrap=wrap)
    trees = whole.trees()
    whole.update(trees)
    report = halved.update(trees)
    assert_near(halved.grads, whole.grads)
    assert (report.token_budget, report.halved) == (12, 1)
    assert halved.learner.progress.token_budget == 12
    assert halved.budgets == [24, 12]
    assert halved.update(trees).halved == 0


def test_old_log_probabilities_too_are_computed_with_half_the_budget() -> None:
    made: list[int] = []

    def wrap(own: TreePass) -> TreePass:
        made.append(1)
        return Failing(own, lambda: MemoryError(), first=0, times=1) if len(made) == 1 else own

    rig = Rig(replace_settings(updates_per_batch=2), wrap=wrap)
    trees = rig.trees()
    batch = rig.learner.begin([trees[:2], trees[2:]])
    assert rig.learner.progress.token_budget == 12
    expected = logprobs(tiny_model(), trees[2:]).detach()
    assert torch.cat([torch.from_numpy(batch.old[one.name]) for one in trees[2:]]).tolist() == pytest.approx(
        expected.tolist(), abs=1e-5
    )


def test_a_single_path_that_does_not_fit_ends_the_run() -> None:
    def wrap(own: TreePass) -> TreePass:
        def run(piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
            if measure(piece).longest_path > 4:
                raise torch.OutOfMemoryError("no")
            return own(piece, temperature_K, loss)

        return run

    rig = Rig(wrap=wrap)
    before = rig.weights()
    with pytest.raises(TrainError, match="a single path does not fit"):
        rig.update(rig.trees())
    assert_same(rig.weights(), before)
    assert rig.learner.progress.update == 0


def test_another_error_of_torch_is_no_full_memory() -> None:
    rig = Rig(wrap=lambda own: Failing(own, lambda: RuntimeError("shapes"), first=0, times=1))
    with pytest.raises(RuntimeError, match="shapes"):
        rig.update(rig.trees())
    assert rig.learner.progress.token_budget == 24
    assert all(own.grad is None for own in rig.learner.parameters.values())


class Poisoned:
    """A pass whose loss or gradients are not finite, while `on`."""

    def __init__(self, own: TreePass, what: str) -> None:
        self._own = own
        self._what = what
        self.on = True
        self.model: torch.nn.Module | None = None

    def __call__(self, piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
        out = self._own(piece, temperature_K, loss)
        if not self.on or loss is None:
            return out
        if self._what == "loss":
            return replace(out, loss=math.nan)
        assert self.model is not None
        grad = next(own.grad for own in self.model.parameters() if own.grad is not None)
        grad.view(-1)[0] = math.inf
        return out


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_is_skipped_and_counted(what: str) -> None:
    poisoned: list[Poisoned] = []

    def wrap(own: TreePass) -> TreePass:
        poisoned.append(Poisoned(own, what))
        return poisoned[0]

    rig = Rig(replace_settings(max_bad_updates=2), wrap=wrap)
    trees, before = rig.trees(), rig.weights()
    rig.learner.network.tree_pass(24)
    poisoned[0].model = rig.model
    first = rig.update(trees)
    assert (first.skipped, math.isnan(first.grad_norm)) == (Skipped.NOT_FINITE, True)
    assert not rig.learner.diverged
    poisoned[0].on = False
    assert rig.update(trees).skipped is Skipped.NO
    poisoned[0].on = True
    after = rig.weights()
    assert not any(torch.equal(own, before[name]) for name, own in after.items())
    rig.update(trees)
    assert not rig.learner.diverged
    rig.update(trees)
    assert rig.learner.diverged
    assert (rig.learner.progress.bad, rig.learner.progress.update) == (3, 4)
    assert_same(rig.weights(), after)


def test_a_stop_drops_the_update_and_leaves_everything_as_it_was() -> None:
    rig = Rig()
    trees, before = rig.trees(), rig.weights()
    rig.learner.network.tree_pass(24)

    def wrap(own: TreePass) -> TreePass:
        def run(piece: Piece, temperature_K: torch.Tensor, loss: LossPart | None = None) -> PassOutput:
            rig.stopping = True
            return own(piece, temperature_K, loss)

        return run

    rig.learner.network._made[24] = wrap(rig.learner.network._made[24])
    with pytest.raises(Stopped):
        rig.update(trees)
    assert_same(rig.weights(), before)
    assert rig.learner.progress.update == 0
    assert all(own.grad is None for own in rig.learner.parameters.values())


def test_log_probabilities_of_another_model_are_told_before_anything_changes() -> None:
    rig = Rig()
    before = rig.weights()
    foreign = recorded(tiny_model(seed=3), rig.trees())
    with pytest.raises(TrainError, match="sampled by another model"):
        rig.update(foreign)
    assert_same(rig.weights(), before)
    later = Rig()
    later.learner.go_on_from(Progress(update=1, token_budget=24))
    assert later.update(foreign).skipped is Skipped.NO


def replace_settings(**fields: object) -> TrainSettings:
    return msgspec.structs.replace(SETTINGS, **fields)


def test_log_probabilities_of_a_prompt_are_of_the_weights_of_now() -> None:
    rig, ids = Rig(), [5, 6, 7, 8, 9, 3]

    def told() -> list[float]:
        with torch.no_grad():
            logits_SV = rig.model(torch.tensor([ids])).logits[0, :-1]
        return [
            float(row[token].detach()) for row, token in zip(logits_SV.log_softmax(-1), ids[1:], strict=True)
        ]

    before = rig.learner.logprobs(ids)
    assert before == pytest.approx(told(), abs=1e-5)
    rig.update(rig.trees())
    assert rig.learner.logprobs(ids) == pytest.approx(told(), abs=1e-5)
    assert rig.learner.logprobs(ids) != pytest.approx(before, abs=1e-3)
    assert all(parameter.grad is None for parameter in rig.model.parameters())
