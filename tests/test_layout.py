"""The package list in pyproject.toml is the folders on disk.

A forgotten package works in an editable install and is silently missing from the wheel.
"""

from __future__ import annotations

import ast
import os
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("proxy", "treebuilder", "trainer", "elastic", "cli")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]
NOT_OURS = {"gyre", *sys.stdlib_module_names}
OPTIONAL = PYPROJECT["project"]["optional-dependencies"]
EXTRAS = {re.split("[=>]", requirement)[0] for extra in ("demo", "train") for requirement in OPTIONAL[extra]}
"""Imported by commands that name the extra when it is missing."""


def packages_on_disk() -> set[str]:
    inits = [path for part in PARTS for path in (ROOT / part).rglob("__init__.py")]
    return {"gyre." + ".".join(path.parent.relative_to(ROOT).parts) for path in inits}


def test_every_package_is_listed_and_every_listed_package_exists() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_on_disk()


def test_no_package_is_listed_twice() -> None:
    assert len(SETUPTOOLS["packages"]) == len(set(SETUPTOOLS["packages"]))


def test_the_five_parts_are_mapped_to_gyre() -> None:
    assert SETUPTOOLS["package-dir"] == {f"gyre.{part}": part for part in PARTS}


def test_every_module_lies_in_a_package() -> None:
    modules = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    assert [str(path) for path in modules if not (path.parent / "__init__.py").exists()] == []


def test_type_checkers_find_the_parts_through_links() -> None:
    for part in PARTS:
        link = ROOT / ".typing" / "gyre" / part
        assert link.is_symlink() and not os.path.isabs(os.readlink(link))
        assert link.resolve() == ROOT / part


def test_every_part_is_marked_as_typed() -> None:
    assert [part for part in PARTS if not (ROOT / part / "py.typed").exists()] == []
    assert SETUPTOOLS["package-data"] == {"*": ["py.typed"]}


def test_whatever_is_imported_is_a_dependency_of_ours_and_not_of_others() -> None:
    modules = set()
    for path in (path for part in PARTS for path in (ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            modules |= {name.split(".")[0] for name in names}
    declared = {requirement.split(">")[0] for requirement in PYPROJECT["project"]["dependencies"]}
    theirs = {name.replace("_", "-") for name in modules - NOT_OURS}
    assert theirs - EXTRAS - declared == set()
