"""Executions without token ids: a tree of blocks, and what a tokenizer makes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gyre.treebuilder import read_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline.text_tokens import speller
from tests.log.builders import LogBuilder, message
from tests.trees.store.logs import build, write_some

TOKENIZERS = '''
from types import SimpleNamespace

class Tokenizer:
    """One token a word."""

    @staticmethod
    def from_file(path):
        with open(path) as file:
            if "broken" in file.read():
                raise Exception("expected value at line 1")
        return Tokenizer()

    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=text.split())

    def decode(self, ids, skip_special_tokens=True):
        return " ".join(f"<{i}>" for i in ids)
'''


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tokenizer.json, and a package that reads it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tokenizers.py").write_text(TOKENIZERS)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    yield path
    sys.modules.pop("tokenizers", None)


def text_log(log: LogBuilder) -> None:
    worker = log.worker()
    talk = [message("say one two"), message("three four", "assistant"), message("go on now please")]
    worker.call(
        "t1", None, None, talk[:1], execution="t", response=b'{"role":"assistant","content":"three four"}'
    )
    worker.call("t2", None, None, talk, execution="t", parent=("t1", 0, 0), response=b'"five six seven"')
    worker.close()


def test_texts_without_ids_are_a_tree_of_blocks_for_analysis(log: LogBuilder, out: Path) -> None:
    text_log(log)
    report = build(log, out)
    assert report.ok and report.totals["executions"]["text_only"] == 1
    [(summary, tree)] = read_trees(out)
    assert not tree.exact and summary.targets == 0
    assert [len(node.token_ids) for node in tree.nodes] == [1, 1, 1, 1]


def test_a_tokenizer_counts_them(log: LogBuilder, out: Path, tokenizer: Path) -> None:
    text_log(log)
    write_some(log, "a")
    build(log, out)
    report = build(log, out, tokenizer=tokenizer)
    assert report.rebuilt == 2
    rows = stored_nodes(out)
    assert [row["text_tokens"] for row in rows if row["execution_id"] == "t"] == [3, 2, 4, 3]
    assert {row["text_tokens"] for row in rows if row["execution_id"] == "a"} == {None}


def stored_nodes(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "nodes").to_pylist()
    return rows


def test_a_tokenizer_that_cannot_be_used_is_told(log: LogBuilder, out: Path, tokenizer: Path) -> None:
    text_log(log)
    with pytest.raises(TreeError, match=r"cannot read .*none\.json"):
        build(log, out, tokenizer=out.with_name("none.json"))
    tokenizer.write_text("broken")
    with pytest.raises(TreeError, match="is no tokenizer: expected value"):
        build(log, out, tokenizer=tokenizer)


def test_ids_are_spelled_by_it(tokenizer: Path) -> None:
    assert speller(tokenizer)(np.array([3, 5], np.int32)) == "'<3> <5>'"


def test_without_the_package_a_tokenizer_names_it(
    log: LogBuilder, out: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_log(log)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TreeError, match="`tokenizers`") as told:
        build(log, out, tokenizer=tokenizer)
    assert told.value.hint == "pip install tokenizers"
