"""Sections of docs/exports.md."""

from __future__ import annotations

import re
from pathlib import Path

from gyre.treebuilder.export.source import Format

TEXT = (Path(__file__).parents[3] / "docs" / "exports.md").read_text()
SECTIONS = {
    title: body for title, body in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
}
_TITLES = {Format.JSONL: "jsonl and parquet", Format.PARQUET: "jsonl and parquet"}


def section(fmt: Format) -> str:
    return SECTIONS[_TITLES.get(fmt, fmt.value)]


def fields_of(fmt: Format) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", section(fmt), re.MULTILINE)


def code_of(fmt: Format) -> str:
    """The first block of Python that says how to load it."""
    found = re.search(r"```python\n(.*?)```", section(fmt), re.DOTALL)
    assert found, fmt
    return found[1]
