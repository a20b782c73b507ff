"""Folders of trees for tests of what training reads, part by part, through what a build writes with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gyre.treebuilder.options import Options
from gyre.treebuilder.store.encode import Built, joined, tables_of
from gyre.treebuilder.store.folder import MANIFEST, Manifest, create_folder
from gyre.treebuilder.store.write import PartWriter, commit
from gyre.treebuilder.trees import ExecutionTree
from tests.trees.export.builders import Folder, TreeBuilder

PLAIN: dict[str, Any] = {"temperature": 1.0, "logprob_quality": "sampled", "sampling": "neutral"}
"""What a link says of log-probabilities that may be compared."""


def one_call(
    name: str, *, prompt: Sequence[int] = (1, 2, 3), output: Sequence[int] = (4, 5)
) -> ExecutionTree:
    built = TreeBuilder(name)
    built.admit(built.call(f"{name}-0", None, prompt, output, **PLAIN), 0)
    return built.tree()


def stored(root: Path, *parts: Folder) -> Path:
    """A finished build with these parts."""
    folder, entries = create_folder(root), []
    for number, part in enumerate(parts):
        with PartWriter(folder, f"part-{number:05d}") as writer:
            writer.write(joined([tables_of([Built(summary, tree) for summary, tree in part.pairs])]))
            entries.append(writer.finish(f"key-{number}"))
        commit(folder, entries[-1])
    folder.write(MANIFEST, Manifest(Options(), "logs", complete=True, parts=entries).as_json())
    return root


def pair(*names: str, group: str = "g", **summary: Any) -> Folder:
    """Executions of a call each, of a group, the first worth 0, the next 1, and so on."""
    folder = Folder()
    for number, name in enumerate(names):
        folder.add(one_call(name), group=group, **({"score": float(number)} | summary))
    return folder
