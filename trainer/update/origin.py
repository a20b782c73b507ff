"""What a run was made of: inputs by digest, versions, revision."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from gyre.elastic.engine.models import folder, smollm2
from gyre.elastic.engine.models.tiny import TINY
from gyre.elastic.packaged import SMOLLM2
from gyre.treebuilder.store.folder import MANIFEST

_PACKAGES = ("torch", "transformers", "safetensors", "numpy")
_BLOCKS, _BLOCK = 257, 16 << 10
"""How many of how many bytes are read of a file to tell it from others."""


def inputs(trees: Path, model: str, reference: str = "") -> dict[str, str]:
    """Digests of what is trained on and from."""
    digest = xxhash.xxh3_128_hexdigest((trees / MANIFEST).read_bytes())
    return {"trees": digest} | model_inputs(model, reference)


def model_inputs(model: str, reference: str = "") -> dict[str, str]:
    """Digests of the model, and of a reference model where there is one of its own."""
    found = {"model": _model(model)}
    return found | {"reference": _model(reference)} if reference else found


def digest_of(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def versions() -> dict[str, Any]:
    found = {"gyre": version("gyre-rl"), "python": platform.python_version(), "revision": _revision()}
    return found | {name: version(name) for name in _PACKAGES}


def model_folder(model: str) -> Path | None:
    """Where its files are; None: it is made, not read. Raises EngineError for what is no model."""
    if model == TINY:
        return None
    if model == SMOLLM2:
        return smollm2.rebuilt(lambda _: None)
    path = Path(model).expanduser()
    folder.require(path)
    return path


def _model(model: str) -> str:
    place = model_folder(model)
    if place is None:
        return model
    digest = xxhash.xxh3_128()
    for path in sorted([*place.glob("*.safetensors"), *place.glob("*.json")]):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        for block in _blocks(path):
            digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    """All of a file of up to 4 MiB. Of a larger one these are spread evenly over it: to read weights twice
    takes minutes, and training them leaves hardly any number as it was."""
    last = max(0, path.stat().st_size - _BLOCK)
    with path.open("rb") as file:
        for index in range(_BLOCKS):
            file.seek(last * index // (_BLOCKS - 1))
            yield file.read(_BLOCK)


def _revision() -> str | None:
    """Of the checkout that gyre runs from; None for an installed package, which may lie in another's."""
    here = Path(__file__).resolve()
    if _git(here.parent, "ls-files", "--error-unmatch", here.name) is None:
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True)
    except OSError:  # there is none
        return None
    return done.stdout.strip() if done.returncode == 0 else None
