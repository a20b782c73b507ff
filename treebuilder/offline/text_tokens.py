"""What a tokenizer of choice says: how long texts without ids are, how ids are spelled. For people only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import xxhash

from gyre.proxy.canonical import Kind
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.trees import ExecutionTree, Ids


class TextCounter:
    def __init__(self, path: str | Path) -> None:
        """`path` is a tokenizer.json.

        Raises:
            TreeError: the file cannot be used, or the package that reads it is missing.
        """
        self._tokenizer = _load(path)
        self._known: dict[str, int] = {}

    def nodes(self, tree: ExecutionTree, calls: Iterable[Call], bodies: Mapping[str, bytes]) -> list[int]:
        """Tokens of each node's blocks, which are those of its call at the node's depth."""
        texts = Texts(bodies)
        by_key = {call.key: call for call in calls}
        for call in by_key.values():
            texts.add(call)
        counts = []
        for node in tree.nodes:
            call = by_key[node.call]
            answer = [block for block in texts.answer(call) if block.kind is not Kind.REASONING]
            blocks = [*texts.messages(call), *answer]
            counts.append(sum(self._count(b.text) for b in blocks[node.depth :][: len(node.token_ids)]))
        return counts

    def _count(self, text: str) -> int:
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = len(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return known


def speller(path: str | Path) -> Callable[[Ids], str]:
    """Gives ids as quoted text.

    Raises:
        TreeError: as for `TextCounter`.
    """
    tokenizer = _load(path)
    return lambda ids: repr(tokenizer.decode(ids.tolist(), skip_special_tokens=False))


def digest_of(path: Path) -> str:
    """Raises TreeError when there is no such file."""
    try:
        return xxhash.xxh3_128_hexdigest(path.read_bytes())
    except OSError as problem:
        raise TreeError(f"cannot read `{path}`: {problem.strerror}", "give a tokenizer.json") from problem


def _load(path: str | Path) -> Any:
    try:
        tokenizers = import_module("tokenizers")
    except ImportError:
        raise TreeError("a tokenizer.json needs the package `tokenizers`", "pip install tokenizers") from None
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as problem:
        # The package raises nothing more special.
        raise TreeError(f"`{path}` is no tokenizer: {problem}", "give a tokenizer.json") from problem
