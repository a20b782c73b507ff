"""The trainer's side of a live run, ready to go: folder, model, optimizer, newest checkpoint, metrics."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from gyre.elastic.engine.models.check import vocab_size
from gyre.trainer.errors import DivergedError, TrainError
from gyre.trainer.live.config import load_run, run_toml
from gyre.trainer.live.digests import Tasks, require_same_tasks
from gyre.trainer.live.dispatch import Pace
from gyre.trainer.live.folder import LEFT_BARE, SETTINGS
from gyre.trainer.live.groups import Sizes
from gyre.trainer.live.settings import EngineKind, RunSettings
from gyre.trainer.live.state import LiveState, as_json, from_json
from gyre.trainer.live.team import Team
from gyre.trainer.passes.policy import load_policy
from gyre.trainer.settings import Dtype, TrainSettings
from gyre.trainer.update import checkpoint, origin
from gyre.trainer.update.batch import number_of_parts
from gyre.trainer.update.checkpoint import require_settings
from gyre.trainer.update.cursor import Cursor
from gyre.trainer.update.folder import RUN, Observer, RunFolder
from gyre.trainer.update.learner import Learner
from gyre.trainer.update.network import as_set, positions, reference_of
from gyre.trainer.update.owned import owned
from gyre.trainer.update.ranks import Ranks
from gyre.trainer.update.saving import Saver, newest_saved

MAX_GAP = 1e-4
"""Nats, between what the embedded engine recorded and what the trainer computes, both in fp32."""
LIVE_MAY_CHANGE = frozenset(
    {
        *("engine.*", "report.*", "timeouts.*", "harness.program", "harness.env.*", "harness.keep_env"),
        *("rollout.batches", "rollout.concurrency", "rollout.retries", "rollout.keep", "out", "unsafe_local"),
        *("evaluation.every", "evaluation.greedy", "limits.memory", "limits.processes", "limits.workspace"),
    }
)
"""What a run that goes on may be told anew."""


@dataclass(slots=True, kw_only=True)
class Trainer:
    folder: RunFolder
    learner: Learner
    saver: Saver
    team: Team
    """Who trains and writes checkpoints: `learner` and `saver`, here and in the other processes."""
    state: LiveState
    pace: Pace
    sizes: Sizes
    identity: str
    """Of the run, the same when it goes on; the main process knows it."""

    @property
    def newest(self) -> Path:
        """The newest checkpoint: there is one from the beginning."""
        assert self.saver.newest is not None
        return self.saver.newest

    @property
    def served(self) -> Path:
        """The folder of weights that engines serve."""
        return self.newest / checkpoint.MODEL

    def require_finite(self) -> None:
        """DivergedError after too many updates in a row that were not finite. Nothing of them is saved."""
        if self.learner.diverged:
            count = self.learner.progress.bad_in_a_row
            text = f"loss or gradients were not finite in {count} updates in a row"
            raise DivergedError(
                f"{text}; `{self.newest}` is the state before", "go on with `--resume` and a smaller `lr`"
            )

    def save(self) -> None:
        self.team.save(as_json(self.state))


def pace_of(settings: RunSettings) -> Pace:
    rollout = settings.rollout
    return Pace(
        groups_per_batch=settings.train.groups_per_batch,
        burst=rollout.burst,
        look_ahead=rollout.look_ahead,
        batches=rollout.batches,
    )


def total_updates(settings: RunSettings) -> int:
    groups = settings.train.groups_per_batch
    members = groups * settings.rollout.group_size
    return settings.rollout.batches * number_of_parts(groups, members, settings.train.updates_per_batch)


@contextmanager
def set_up(
    settings: RunSettings,
    root: Path,
    *,
    ranks: Ranks,
    resume: bool,
    tell: Callable[[str], None],
    stop: Callable[[], bool],
    at: Observer,
    tasks: Tasks | None = None,
    beside: AbstractContextManager[object] | None = None,
) -> Iterator[Trainer]:
    """Holds the run's folder as long as the block lasts. Collective. `tasks`: for the main process.

    `beside` is entered once the folder is this run's, before a model is read, and left at the end.

    Raises:
        TrainError: the folder has another run, or none to go on with; model or settings that cannot be used.
    """
    folder = RunFolder(root, bare=LEFT_BARE, settings=SETTINGS)
    with owned(folder, ranks, resume=resume), beside or nullcontext():
        yield _trainer(settings, folder, ranks, resume, tell, stop, at, tasks or Tasks())


def _trainer(
    settings: RunSettings,
    folder: RunFolder,
    ranks: Ranks,
    resume: bool,
    tell: Callable[[str], None],
    stop: Callable[[], bool],
    at: Observer,
    tasks: Tasks,
) -> Trainer:
    train = settings.train
    template = _template(settings)
    inputs = origin.model_inputs(settings.model, train.loss.reference)
    if template is not None:
        inputs["chat_template"] = origin.digest_of(template)
    if ranks.is_main:
        _require_same(settings, tasks, folder, tell) if resume else _clear(folder)
    saved = newest_saved(folder, train, inputs, tell) if resume else None
    start = str(folder.place(saved.state.update) / checkpoint.MODEL) if saved else settings.model
    policy = load_policy(start, dtype=train.dtype, device=train.device, progress=tell)
    sizes = Sizes(vocab_size(policy.model), positions(policy.model), settings.limits.context)
    network = as_set(policy, train, ranks)
    learner = Learner(
        network,
        train,
        total_updates=total_updates(settings),
        reference=reference_of(settings.model, train, ranks),
        ranks=ranks,
        stop=stop,
        at=at,
        max_gap=_max_gap(settings),
    )
    source = origin.model_folder(settings.model)
    saver = Saver(folder, learner, source=source, inputs=inputs, template=template, at=at)
    torch.manual_seed(train.seed)  # nothing draws, but a model of its own kind may
    if saved:
        saver.go_on_from(saved)
    state = from_json(saved.state.live) if saved else LiveState()
    identity = _identity(settings, tasks, folder, inputs) if ranks.is_main else ""
    if not saved:
        saver.save(Cursor(), live=as_json(state))
    return Trainer(
        folder=folder,
        learner=learner,
        saver=saver,
        team=Team(ranks, learner, saver),
        state=state,
        pace=pace_of(settings),
        sizes=sizes,
        identity=identity,
    )


def _template(settings: RunSettings) -> str | None:
    if settings.chat_template is None:
        return None
    try:
        return Path(settings.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is no UTF-8"
        raise TrainError(f"`chat_template`: `{settings.chat_template}` cannot be read: {why}") from None


def _require_same(
    settings: RunSettings, tasks: Tasks, folder: RunFolder, tell: Callable[[str], None]
) -> None:
    """TrainError if what is asked for now is not the run that the folder has. `[train]` is compared with the
    checkpoint's own."""
    before, now = load_run(folder.root / SETTINGS, {}), settings
    tables = [
        msgspec.to_builtins(msgspec.structs.replace(each, train=TrainSettings())) for each in (before, now)
    ]
    for note in require_settings(tables[0], tables[1], LIVE_MAY_CHANGE):
        tell(note)
    if (about := _about(folder)) is not None:
        require_same_tasks(about.tasks, tasks, tell)


def _clear(folder: RunFolder) -> None:
    """What a run left that ended before its first execution: of other settings, perhaps."""
    for name in (*LEFT_BARE, RUN):
        path = folder.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class _About(msgspec.Struct, kw_only=True):
    """`run.json`"""

    identity: str
    model: str
    inputs: dict[str, str]
    tasks: Tasks
    versions: dict[str, Any]


def _about(folder: RunFolder) -> _About | None:
    path = folder.root / RUN
    try:
        return msgspec.json.decode(path.read_bytes(), type=_About)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as problem:
        raise TrainError(f"`{path}` is damaged: {problem}", "give another folder with `--out`") from problem


def _identity(settings: RunSettings, tasks: Tasks, folder: RunFolder, inputs: dict[str, str]) -> str:
    """Writes what the run is of. Its identity stays when it goes on."""
    before = _about(folder)
    about = _About(
        identity=before.identity if before else secrets.token_hex(4),
        model=settings.model,
        inputs=inputs,
        tasks=tasks,
        versions=origin.versions(),
    )
    # `run.json` says that there is a run, and who goes on with it reads the other first.
    folder.write_file(SETTINGS, run_toml(settings).encode())
    folder.write_file(RUN, msgspec.json.format(msgspec.json.encode(about)))
    return about.identity


def _max_gap(settings: RunSettings) -> float | None:
    """None where engine and trainer do not compute the same numbers to begin with."""
    exact = settings.engine.kind is EngineKind.EMBEDDED and settings.engine.dtype == "fp32"
    return MAX_GAP if exact and settings.train.dtype is Dtype.FP32 else None
