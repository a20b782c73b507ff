"""The model of a checkpoint as a plain Hugging Face folder of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gyre.proxy.log.folder import sync_dir
from gyre.trainer.errors import TrainError
from gyre.trainer.update.checkpoint import MODEL
from gyre.trainer.update.folder import remove, sync_file


def export(checkpoint: Path, target: Path) -> None:
    """Whole or not at all; what an earlier export left is replaced.

    Weights are not copied where one file can have two names: nobody changes them in place, as people do with
    a template or a configuration.

    Raises:
        TrainError: the disk is full, or cannot be written.
    """
    temporary = target.with_name(f".{target.name}.writing")
    try:
        if temporary.exists():
            shutil.rmtree(temporary)
        shutil.copytree(checkpoint / MODEL, temporary, copy_function=_copy)
        _sync(temporary)
        if target.exists():
            remove(target)
        temporary.rename(target)
        sync_dir(target.parent)
    except OSError as problem:
        shutil.rmtree(temporary, ignore_errors=True)
        text = f"the model could not be written to `{target}`: {problem.strerror or problem}"
        raise TrainError(text, f"make room; it is in `{checkpoint / MODEL}` as well") from problem


def _copy(source: str, target: str) -> None:
    if source.endswith(".safetensors"):
        try:
            os.link(source, target)
            return
        except OSError:  # another disk, or one without such links
            pass
    shutil.copyfile(source, target)


def _sync(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        sync_dir(path) if path.is_dir() else sync_file(path)
    sync_dir(folder)
