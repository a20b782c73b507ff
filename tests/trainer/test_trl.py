"""Against another implementation: the loss of TRL's own trainer, on rows as TRL has them.

Where one execution is one sequence, ours has to be theirs: `ratio = "execution"` is GSPO, token ratios with
`clip_level = "token"` are GRPO. With the policy as it sampled, little is compared: ratios are 1, and nothing
is clipped. So old log-probabilities are moved until ratios lie within and beyond both ends of the clip.

Shapes: B sequences, C tokens after the prompt in the longest, T targets of all sequences.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from gyre.trainer.data.tree import TrainTree
from gyre.trainer.pack.merge import merge
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass
from gyre.trainer.settings import ClipLevel, Importance, LossSettings, RatioForm
from tests.trainer import compare, oracle
from tests.trainer.builders import context, targets, tree, with_logprobs
from tests.trainer.models import VOCAB, tiny_model

pytestmark = [
    pytest.mark.slow,  # importing trl takes 5 to 15 s
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning"),  # trl's own
]

TEMPERATURE = 0.8
PASSES: list[Callable[[Policy], TreePass]] = [FlatPass, PackedPass]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A prompt, what was sampled, and at times a tool's answer with what was sampled after it."""

    prompt: list[int]
    answer: list[int]
    tool: list[int]
    rest: list[int]
    advantage: float

    @property
    def sampled(self) -> list[bool]:
        """Of everything after the prompt."""
        return [True] * len(self.answer) + [False] * len(self.tool) + [True] * len(self.rest)

    @property
    def completion(self) -> list[int]:
        return [*self.answer, *self.tool, *self.rest]


def sequences(*, shared: bool) -> list[Sampled]:
    """Two groups of three. Shared: a prompt for each group, and twice the same first sampled tokens."""
    random = torch.Generator().manual_seed(3)
    sizes = [(4, 0, 0), (6, 2, 3), (3, 0, 0), (2, 3, 6), (7, 0, 0), (5, 1, 1)]
    advantages = [1.1, -0.5, -0.2, 1.4, -0.8, 0.5]
    found: list[Sampled] = []
    for index, ((answer, tool, rest), advantage) in enumerate(zip(sizes, advantages, strict=True)):
        ids = torch.randint(1, VOCAB, (40,), generator=random).tolist()
        prompt, answered = ids[: 3 + index % 3], ids[10 : 10 + answer]
        if shared and index % 3:
            prompt = found[-1].prompt
            answered = [*found[-1].answer[:2], *answered[2:]]
        found.append(
            Sampled(
                prompt=prompt,
                answer=answered,
                tool=ids[20 : 20 + tool],
                rest=ids[30 : 30 + rest],
                advantage=advantage,
            )
        )
    return found


def as_tree(name: str, sequence: Sampled) -> TrainTree:
    nodes = [context(-1, *sequence.prompt), targets(0, *sequence.answer, temperature=TEMPERATURE)]
    if sequence.tool:
        nodes += [context(1, *sequence.tool), targets(2, *sequence.rest, temperature=TEMPERATURE)]
    return tree(name, nodes, advantage=sequence.advantage)


def padded(rows: Sequence[Sequence[float]], *, left: bool = False) -> torch.Tensor:
    width = max(map(len, rows))
    blanks = [[0] * (width - len(row)) for row in rows]
    return torch.tensor(
        [[*blank, *row] if left else [*row, *blank] for row, blank in zip(rows, blanks, strict=True)]
    )


def as_rows(found: Sequence[Sampled], **targets_T: torch.Tensor) -> dict[str, torch.Tensor]:
    """What TRL's loss is computed from; `targets_T` come in the order of the targets."""
    sampled_BC = padded([one.sampled for one in found]).bool()
    rows = {
        "prompt_ids": padded([one.prompt for one in found], left=True),
        "prompt_mask": padded([[1] * len(one.prompt) for one in found], left=True),
        "completion_ids": padded([one.completion for one in found]),
        "completion_mask": padded([[1] * len(one.completion) for one in found]),
        "tool_mask": sampled_BC.long(),
        "advantages": torch.tensor([one.advantage for one in found]),
    }
    for name, values_T in targets_T.items():
        rows[name] = torch.zeros(sampled_BC.shape).masked_scatter(sampled_BC, values_T)
    return rows


def trl_trainer(model: PreTrainedModel, folder: Path, **options: Any) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    words = {str(number): number for number in range(VOCAB)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")), pad_token="0", eos_token="1"
    )
    return GRPOTrainer(
        model=model,
        args=GRPOConfig(
            output_dir=str(folder),
            report_to=[],
            use_cpu=True,
            bf16=False,
            num_generations=2,
            per_device_train_batch_size=2,
            temperature=TEMPERATURE,
            loss_type="grpo",
            **options,
        ),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["1 2", "3 4"]}),
        processing_class=tokenizer,
    )


def trl_update(trainer: Any, rows: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    trainer.model.eval()  # in training mode it divides by steps of an accumulation that does not run
    loss = trainer.compute_loss(trainer.model, rows)
    loss.backward()
    return loss.item(), oracle.gradients(trainer.model)


def assert_same(
    folder: Path,
    run: Callable[[Policy], TreePass],
    found: Sequence[Sampled],
    settings: LossSettings,
    shift_T: torch.Tensor,
    options: dict[str, Any],
    *,
    reference: bool = False,
) -> compare.Update:
    """One update by both, from old log-probabilities that are `shift_T` lower; gives back ours."""
    model = tiny_model()
    policy = Policy(model)
    trees = [as_tree(f"run-{index}", one) for index, one in enumerate(found)]
    packed = merge(trees)
    now_T = compare.forward(run(policy), packed, [packed.forest])
    old_T = now_T - shift_T
    random = torch.Generator().manual_seed(5)
    reference_T = now_T + 0.3 * torch.randn(now_T.shape, generator=random) if reference else None
    behaviour_T = old_T - 0.6 * torch.randn(now_T.shape, generator=random)
    packed = merge(with_logprobs(trees, behaviour_T.tolist()))
    ours = compare.update(run(policy), model, packed, [packed.forest], settings, old_T, reference_T)

    given_T = {"old_per_token_logps": old_T}
    given_T["importance_sampling_ratio"] = (old_T - behaviour_T).exp().clamp(max=2.0)
    if reference_T is not None:
        given_T["ref_per_token_logps"] = reference_T
    trainer = trl_trainer(copy.deepcopy(model), folder, **options)
    # Set afterwards: in the configuration they would load a second model and start an engine.
    trainer.beta = settings.kl
    trainer.use_vllm = settings.importance is Importance.TRUNCATED
    loss, gradients = trl_update(trainer, as_rows(found, **given_T))

    off, name = compare.distance(ours.gradients, gradients)
    assert off <= 1e-5, f"the gradient of {name} is {off:.2g} off"
    assert ours.loss == pytest.approx(loss, rel=1e-5, abs=1e-5)
    assert abs(loss) > 0.01 and ours.gradients.keys() == gradients.keys()
    return ours


def shifts(found: Sequence[Sampled], means: Sequence[float], noise: float) -> torch.Tensor:
    """(T,) log-ratios with these means over each sequence."""
    random = torch.Generator().manual_seed(4)
    parts = []
    for one, mean in zip(found, means, strict=True):
        part = torch.randn(sum(one.sampled), generator=random, dtype=torch.float64) * noise
        parts.append(part - part.mean() + mean)
    return torch.cat(parts).float()


@pytest.mark.parametrize("run", PASSES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_gspo_is_trls(tmp_path: Path, run: Callable[[Policy], TreePass], shared: bool, kl: float) -> None:
    """With the published clip. Ratios are 1 + mean; A is +, -, -, +, -, +: the first and the fifth are
    clipped, the others within the clip or on the side where it does not act."""
    found = sequences(shared=shared)
    means = [1e-3, 2e-4, 1e-3, 3e-4, -1e-3, -1e-3]
    settings = LossSettings(ratio=RatioForm.EXECUTION, importance=Importance.OFF, kl=kl)
    options = {
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
        "use_bias_correction_kl": False,
    }

    ours = assert_same(tmp_path, run, found, settings, shifts(found, means, 0.05), options, reference=kl > 0)

    sizes = torch.tensor([sum(one.sampled) for one in found])
    wanted = torch.tensor([True, False, False, False, True, False]).repeat_interleave(sizes)
    assert torch.equal(ours.clipped_T, wanted)


@pytest.mark.parametrize("importance", list(Importance))
def test_grpo_with_truncated_importance_sampling_is_trls(tmp_path: Path, importance: Importance) -> None:
    """Token ratios, clipped one by one at 0.2, with token-level importance weights up to 2."""
    found = sequences(shared=True)
    settings = LossSettings(clip_level=ClipLevel.TOKEN, importance=importance)
    options = {"importance_sampling_level": "token", "epsilon": 0.2}

    assert_same(tmp_path, PackedPass, found, settings, shifts(found, [0.0] * 6, 0.4), options)
