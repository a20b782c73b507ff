"""Whether engines serve what they were given, as far as they tell."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gyre.elastic.engine.settings import Dtype
from gyre.elastic.engines.face import Engine
from gyre.proxy.errors import EngineError


def require_served(engines: Sequence[Engine], folder: Path, version: str, dtype: str) -> None:
    """By the version's name, and by the digest of the weights where an engine tells that.

    Raises:
        EngineError: one serves something else.
    """
    wanted: str | None = None
    for engine in engines:
        told = engine.weights()
        if told.version != version:
            raise EngineError(
                f"engine `{engine.name}` serves version `{told.version}`, not `{version}`",
                "does something else publish weights to it?",
            )
        if told.digest is None:
            continue
        wanted = wanted or _digest(folder, dtype)
        if told.digest != wanted:
            raise EngineError(
                f"engine `{engine.name}` serves other weights than those of `{folder}`",
                f"their digests are {told.digest} and {wanted}: did something write to the folder?",
            )


def _digest(folder: Path, dtype: str) -> str:
    from gyre.elastic.engine.weights.digest import digest_of_folder  # torch: only for engines that tell it

    return digest_of_folder(folder, Dtype(dtype))
