"""A run file: read, checked, its paths made absolute; and written again as it was resolved."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from gyre.elastic.packaged import SMOLLM2
from gyre.trainer import config
from gyre.trainer.errors import TrainError
from gyre.trainer.live.sense import require_live, require_sense, require_texts
from gyre.trainer.live.settings import EngineTable, HarnessTable, RunSettings, TaskTable
from gyre.trainer.rollout.harness import PRESETS
from gyre.trainer.tables import Schema
from gyre.trainer.toml import lay, lines_of, read_toml

RUNS = "runs"
_SCHEMA = Schema(RunSettings)
_MADE = ("tiny", SMOLLM2)
"""Models that are no folders."""
_OFFLINE = ("train.epochs", "train.max_updates", "train.checkpoint.every")


def load_run(path: Path, flags: Mapping[str, Any] | None = None) -> RunSettings:
    """Defaults < file < flags; a flag of None is not given, its name has dots as in `rollout.batches`.

    Paths in the file are relative to it, and are absolute in what is returned. Whether anything is there is
    not looked at.

    Raises:
        TrainError: a file that cannot be read, an unknown key, or a value that makes no sense.
    """
    if path.is_dir():
        inner = path / "run.toml"
        hint = f"did you mean `{inner}`?" if inner.exists() else "give a run file"
        raise TrainError(f"`{path}` is a folder", hint)
    table = read_toml(path)
    for key, value in (flags or {}).items():
        if value is not None:
            lay(table, key, value)
    try:
        _SCHEMA.check(table)
        require_texts(table)
        require_live(table)
        settings = placed(msgspec.convert(table, RunSettings), path)
        require_sense(settings)
    except TrainError as error:
        raise TrainError(f"`{path}`: {error.message}", error.hint) from None
    return settings


def run_toml(settings: RunSettings) -> str:
    """A run file that says the same wherever it lies, without what only training on stored trees has."""
    used = config.used_clip(settings.train.loss)
    return "\n".join(lines_of(settings, used=used, leave_out=_OFFLINE)) + "\n"


def run_table(settings: RunSettings) -> dict[str, Any]:
    """Everything by the names of the file, as JSON has it; what is unset is None."""
    table: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    return table


def public_table(settings: RunSettings) -> dict[str, Any]:
    """For who may be somebody else: of variables their names alone, since they may hold keys."""
    table = run_table(settings)
    for part in ("engine", "harness"):
        table[part]["env"] = sorted(table[part]["env"])
    return table


def placed(settings: RunSettings, path: Path) -> RunSettings:
    """With absolute paths: those of a run file at `path`."""
    base, replace = Path(os.path.abspath(path)).parent, msgspec.structs.replace
    loss = replace(settings.train.loss, reference=_model(base, settings.train.loss.reference))
    return replace(
        settings,
        model=_model(base, settings.model),
        chat_template=_at(base, settings.chat_template) if settings.chat_template else None,
        out=_at(base, settings.out or f"{RUNS}/{path.stem}"),
        engine=replace(settings.engine, command=_words(base, settings.engine.command)),
        harness=_harness(base, settings.harness),
        tasks=_lists(base, settings.tasks),
        evaluation=replace(settings.evaluation, tasks=_lists(base, settings.evaluation.tasks)),
        train=replace(settings.train, loss=loss),
    )


def _harness(base: Path, harness: HarnessTable) -> HarnessTable:
    program = harness.program
    if program and "/" in program:
        program = _at(base, program)
    return msgspec.structs.replace(harness, program=program, command=_words(base, harness.command))


def _model(base: Path, model: str) -> str:
    return model if not model or model in _MADE else _at(base, model)


def _lists(base: Path, lists: tuple[TaskTable, ...]) -> tuple[TaskTable, ...]:
    return tuple(msgspec.structs.replace(each, folder=_at(base, each.folder)) for each in lists)


def _words(base: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Of a command; any other word may be meant otherwise than as a path."""
    return tuple(_at(base, word) if word.startswith(("./", "../")) else word for word in words)


def _at(base: Path, path: str) -> str:
    """Links are not followed: a folder is called as its user calls it."""
    return os.path.abspath(base / os.path.expanduser(path))


def require_files(settings: RunSettings) -> None:
    """TrainError for what a run reads or starts and is not there. Tasks are looked at one by one later."""
    if settings.model not in _MADE and not Path(settings.model).is_dir():
        raise _no_model(Path(settings.model))
    if settings.chat_template is not None and not Path(settings.chat_template).is_file():
        raise TrainError(f"`chat_template`: there is no file `{settings.chat_template}`")
    for key, lists in (("tasks", settings.tasks), ("evaluation.tasks", settings.evaluation.tasks)):
        for each in lists:
            if not Path(each.folder).is_dir():
                hint = "a folder of task folders, relative to the run file"
                raise TrainError(f"`{key}`: there is no folder `{each.folder}`", hint)
    _require_harness(settings.harness)
    _require_engine(settings.engine)


def _no_model(path: Path) -> TrainError:
    hint = "give `smollm2`, `tiny` or a Hugging Face folder, relative to the run file"
    if not path.parent.exists():
        hub = f"{path.parent.name}/{path.name}"
        hint += f"; of a model on the hub `hf download {hub} --local-dir {path.name}` makes one"
    return TrainError(f"`model`: there is no folder `{path}`", hint)


def _require_engine(engine: EngineTable) -> None:
    if engine.command and shutil.which(engine.command[0], path=engine.env.get("PATH")) is None:
        raise TrainError(f"`{engine.command[0]}` of `engine.command` is not installed")


def _require_harness(harness: HarnessTable) -> None:
    """Or every execution would fail, one after the other."""
    preset = PRESETS[harness.preset] if harness.preset else None
    program = (harness.program or preset.program) if preset else harness.command[0]
    if shutil.which(program, path=harness.env.get("PATH")) is None:
        hint = f"install it: {preset.install}; or say where it is with `harness.program`" if preset else ""
        raise TrainError(f"`{program}` is not installed", hint)
