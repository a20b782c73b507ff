"""docs/exports.md names the fields there are, and its code is Python."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from tests.trees.export.builders import usual
from tests.trees.export.docs import SECTIONS, TEXT, code_of, fields_of
from tests.trees.export.load import ROWS, load
from tests.trees.export.logs import recorded


@pytest.mark.parametrize("fmt", ROWS)
def test_every_field_is_documented_in_order(fmt: Format, tmp_path: Path) -> None:
    export_trees(usual(), fmt, tmp_path / "out")
    assert fields_of(fmt) == list(load(fmt, tmp_path / "out")[0])


def test_every_field_of_an_atif_document_is_documented(tmp_path: Path) -> None:
    export_trees(recorded(tmp_path / "log"), Format.ATIF, tmp_path / "out")
    assert fields_of(Format.ATIF) == list(json.loads((tmp_path / "out" / "run.json").read_bytes()))


def test_every_format_has_a_row_and_every_section_is_a_format() -> None:
    assert re.findall(r"^\| \[`([\w-]+)`\]", TEXT, re.MULTILINE) == sorted(Format, key=_as_listed)
    assert set(SECTIONS) == {"jsonl and parquet", *set(Format) - {Format.JSONL, Format.PARQUET}}


def _as_listed(fmt: Format) -> int:
    return re.findall(r"^\| \[`([\w-]+)`\]", TEXT, re.MULTILINE).index(fmt.value)


@pytest.mark.parametrize("fmt", [fmt for fmt in ROWS if fmt not in (Format.JSONL, Format.PARQUET)])
def test_the_code_that_loads_it_is_python(fmt: Format) -> None:
    compile(code_of(fmt), f"{fmt} in docs/exports.md", "exec")
