"""Hugging Face folders to load, and ways to spoil them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from gyre.elastic.engine.models.tiny import save_tiny

Spoil = Callable[[Path], object]


@cache
def original() -> Path:
    """`tiny` of seed 0 as a folder; do not change it."""
    folder = Path(mkdtemp(prefix="gyre-tiny-"))
    save_tiny(folder)
    return folder


def copied(tmp_path: Path, *spoil: Spoil) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(original(), folder)
    for each in spoil:
        each(folder)
    return folder


def without(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def holding(name: str, text: str) -> Spoil:
    return lambda folder: (folder / name).write_text(text)


def changed(name: str, **values: Any) -> Spoil:
    """Keys of a JSON file set; None removes one."""

    def spoil(folder: Path) -> None:
        document = json.loads((folder / name).read_text()) | values
        (folder / name).write_text(json.dumps({key: it for key, it in document.items() if it is not None}))

    return spoil


def cut(name: str, size: int) -> Spoil:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])
