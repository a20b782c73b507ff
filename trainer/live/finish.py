"""The end of a live run: its trees, and its model as a plain Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.live.trees import store
from gyre.trainer.update.export import export

TEMPLATE = "chat_template.jinja"
"""Where transformers looks for a model's own."""


def finish(settings: RunSettings, folder: LiveFolder, checkpoint: Path) -> Path:
    """Where the final model is. May be done again.

    Raises:
        TrainError, TreeError: the disk is full, or cannot be written.
    """
    store(folder, settings.trees)
    export(checkpoint, folder.final)
    if settings.chat_template is not None:
        shutil.copyfile(settings.chat_template, folder.final / TEMPLATE)
    return folder.final
