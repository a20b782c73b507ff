"""The digest that an engine tells of weights, from their folder: whether it serves what it claims."""

from __future__ import annotations

from pathlib import Path

from gyre.elastic.engine.models import folder as folders
from gyre.elastic.engine.models.load import DTYPES
from gyre.elastic.engine.models.quiet import quietly
from gyre.elastic.engine.settings import Dtype
from gyre.elastic.engine.weights.staged import digest_of


def digest_of_folder(folder: Path, dtype: Dtype) -> str:
    """As an engine of that type of numbers tells it once it serves the folder.

    Raises:
        EngineError: the folder is no model.
    """
    with quietly():
        return digest_of(folders.read_weights(folder, folders.read_config(folder), DTYPES[dtype]))
