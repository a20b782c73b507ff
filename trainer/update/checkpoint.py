"""What a checkpoint holds, and what a run must have in common with one to go on from it.

model/                   a Hugging Face folder in fp32, with the tokenizer's files: ready to be served
optimizer.safetensors    `step`, `exp_avg` and `exp_avg_sq` of each trained parameter; random states
batch.safetensors        old log-probabilities by execution, of a batch with updates still to come
state.json               `State`
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.models.tiny import make_tiny
from gyre.trainer.config import as_table, flat
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import TrainSettings
from gyre.trainer.update.folder import Observer

FORMAT = 1
MODEL, OPTIMIZER, BATCH, STATE = "model", "optimizer.safetensors", "batch.safetensors", "state.json"
TEMPLATE = "chat_template.jinja"
"""Where transformers looks for a model's own."""
TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.tiktoken",
    "chat_template*",
    "*.model",
)
"""Files of a Hugging Face folder that belong to its tokenizer."""

MAY_CHANGE = frozenset(
    {
        "epochs",
        "max_updates",
        "max_bad_updates",
        "pass",
        "token_budget",
        "recompute",
        "device",
        "optimizer.lr",
        "optimizer.clip_norm",
        "checkpoint.every",
        "checkpoint.keep",
    }
)
"""What a resumed run may be told anew: how long, how fast, and how it is computed. All else would make of
one run the half of two others."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """`state.json`: where the run stands."""

    format: int
    gyre: str
    """Version that wrote it."""
    update: int
    """Updates done, those that were skipped included."""
    epoch: int
    batch: int
    """Of the epoch: the one that comes next, or that is in progress."""
    part: int
    """Updates of that batch that are done."""
    bad_in_a_row: int
    bad: int
    """Skipped in all, because something was not finite."""
    token_budget: int
    """In use; halved where memory did not suffice."""
    settings: dict[str, Any]
    inputs: dict[str, str]
    """What was trained on and from: names and digests."""
    live: dict[str, Any] | None = None
    """What a live run has to remember beside all this; None: trained on stored trees."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """All of a checkpoint but the model, which is loaded like any other."""

    state: State
    optimizer: dict[str, Tensor]
    batch: dict[str, Tensor]


def write(
    folder: Path,
    *,
    model: PreTrainedModel,
    weights: dict[str, Tensor] | None,
    source: Path | None,
    template: str | None = None,
    saved: Saved,
    at: Observer = lambda _: None,
) -> None:
    """Fill an empty folder. `weights` replace the model's own, where those are sharded; the tokenizer is that
    of `source`, the folder that training began with, or of `tiny`; `template` replaces its chat template.

    Raises:
        OSError: the disk is full, or cannot be written.
    """
    place = folder / MODEL
    with quietly(), _full_disk():
        model.save_pretrained(place, state_dict=weights)
    _copy_tokenizer(source, place)
    if template is not None:
        (place / TEMPLATE).write_text(template, encoding="utf-8")
    at("checkpoint model")
    with _full_disk():
        save_file(saved.optimizer | random_states(), folder / OPTIMIZER)
    at("checkpoint optimizer")
    with _full_disk():
        save_file(saved.batch, folder / BATCH)
    (folder / STATE).write_bytes(msgspec.json.format(msgspec.json.encode(saved.state)))


@contextmanager
def _full_disk() -> Iterator[None]:
    """safetensors has an error of its own for what goes wrong with a file."""
    try:
        yield
    except SafetensorError as problem:
        raise OSError(" ".join(str(problem).split())) from problem


def read(folder: Path) -> Saved:
    """Raises TrainError for one that is damaged or of a newer format."""
    try:
        state = msgspec.json.decode((folder / STATE).read_bytes(), type=State)
        optimizer, batch = load_file(folder / OPTIMIZER), load_file(folder / BATCH)
    except (OSError, msgspec.DecodeError, SafetensorError) as problem:
        text = " ".join(str(problem).split())[:200]
        raise TrainError(
            f"the checkpoint `{folder}` is damaged: {text}", "remove it to go on from the one before"
        ) from problem
    if state.format > FORMAT:
        raise TrainError(
            f"`{folder}` has checkpoint format {state.format}, this gyre reads up to {FORMAT}",
            "use a newer gyre: pip install -U gyre-rl",
        )
    return Saved(state=state, optimizer=optimizer, batch=batch)


def require_same(state: State, settings: TrainSettings, inputs: Mapping[str, str]) -> list[str]:
    """What is told anew, a line each; TrainError for what a run in progress may not be told."""
    notes = require_settings(state.settings, as_table(settings), MAY_CHANGE)
    require_inputs(state.inputs, inputs)
    return notes


def require_settings(
    before: Mapping[str, Any], now: Mapping[str, Any], may_change: Collection[str]
) -> list[str]:
    """What is told anew, a line each. `may_change` names keys, as `optimizer.lr` or `optimizer.*`.

    Raises:
        TrainError: something else would be.
    """
    was, told = dict(flat(before)), dict(flat(now))
    changed = [name for name in {**told, **was} if was.get(name) != told.get(name)]
    for name in changed:
        if not any(fnmatchcase(name, pattern) for pattern in may_change):
            raise TrainError(
                f"the run was started with `{name}` = {was.get(name)!r}, not {told.get(name)!r}",
                "leave it as it was, or start a new run in another folder",
            )
    return [f"`{name}` is {told.get(name)!r} from here on; it was {was.get(name)!r}" for name in changed]


def require_inputs(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raises TrainError where a digest is another one."""
    for name, digest in now.items():
        if before.get(name) != digest:
            raise TrainError(
                f"the run was started with other {name} ({before.get(name)}, now {digest})",
                f"give the same {name}, or start a new run in another folder",
            )


def _copy_tokenizer(source: Path | None, target: Path) -> None:
    if source is None:
        make_tiny().tokenizer.save_pretrained(target)
        return
    for pattern in TOKENIZER:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, target / path.name)


def random_states() -> dict[str, Tensor]:
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["random.cpu"])
    if "random.cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["random.cuda"])
