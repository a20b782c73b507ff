"""Who may import whom, and what a quick command must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "cli": {"cli", "trainer", "elastic", "treebuilder", "proxy"},
    "trainer": {"trainer", "elastic", "treebuilder", "proxy"},
    "elastic": {"elastic", "proxy"},
    "treebuilder": {"treebuilder", "proxy"},
    "proxy": {"proxy"},
}
WEB_AND_TORCH = {"torch", "transformers", "fastapi", "starlette", "uvicorn", "aiohttp", "httpx", "socket"}
HEAVY = {"torch", "transformers", "pyarrow", "duckdb", "numpy", "fastapi", "uvicorn", "aiohttp", "xllamacpp"}


@cache
def imports_of(part: str) -> list[tuple[str, str]]:
    """(file, imported module) for each import anywhere in the part, those inside functions included."""
    found = []
    for path in sorted((ROOT / part).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Import(names=names):
                    modules = [alias.name for alias in names]
                case ast.ImportFrom(module="gyre", names=names):
                    modules = [f"gyre.{alias.name}" for alias in names]
                case ast.ImportFrom(module=str(module)):
                    modules = [module]
                case _:
                    modules = []
            found += [(str(path.relative_to(ROOT)), module) for module in modules]
    return found


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_a_part_imports_only_the_parts_below_it(part: str) -> None:
    ours = [(file, name) for file, name in imports_of(part) if name.startswith("gyre.")]
    assert [(file, name) for file, name in ours if name.split(".")[1] not in MAY_IMPORT[part]] == []


def test_the_tree_builder_knows_no_web_framework_and_no_torch() -> None:
    found = [(file, name) for file, name in imports_of("treebuilder") if name.split(".")[0] in WEB_AND_TORCH]
    assert found == []


def test_the_rooms_of_the_tree_builder_stand_on_each_other_and_in_no_circle() -> None:
    rooms = ("tokens", "lineage", "store", "proof", "offline", "views", "export")
    below = {
        "tokens": (),
        "lineage": ("tokens",),
        "store": (),
        "proof": (),
        "views": ("store",),
        "export": (),
    }
    below["offline"] = ("tokens", "lineage", "store", "proof")
    for file, name in imports_of("treebuilder"):
        room, other = Path(file).parts[1], [*name.split("."), "", ""][2]
        if room in rooms and other in rooms:
            assert room == other or other in below[room], f"{file} imports {name}"


def test_the_rooms_of_the_engine_stand_on_each_other_and_in_no_circle() -> None:
    below = {
        "text": set[str](),
        "compute": set[str](),
        "models": {"compute", "text"},
        "schedule": {"compute", "models"},
        "weights": {"models"},
        "moving": {"compute", "schedule", "weights"},
    }
    for file, name in imports_of("elastic"):
        room, other = Path(file).parts[2:3], [*name.split("."), "", "", ""][3]
        if name.startswith("gyre.elastic.engine.") and room and room[0] in below:
            assert other not in {*below, "server"} - {room[0]} - below[room[0]], f"{file} imports {name}"


def test_the_rooms_of_the_trainer_stand_on_each_other_and_in_no_circle() -> None:
    below = {
        "rollout": set[str](),
        "data": set[str](),
        "pack": {"data"},
        "passes": {"pack"},
        "update": {"data", "pack", "passes"},
        "live": {"data", "pack", "passes", "rollout", "update"},
    }
    for file, name in imports_of("trainer"):
        room, other = Path(file).parts[1], [*name.split("."), "", ""][2]
        if name.startswith("gyre.trainer.") and room in below:
            assert other not in set(below) - {room} - below[room], f"{file} imports {name}"


@pytest.mark.parametrize(
    "room", ["settings.py", "errors.py", "config.py", "tables.py", "toml.py", "data", "pack", "rollout"]
)
def test_trees_become_arrays_without_torch(room: str) -> None:
    names = [name for file, name in imports_of("trainer") if Path(file).parts[1] == room]
    assert [name for name in names if name.split(".")[0] in {"torch", "transformers"}] == []


def test_texts_are_read_and_written_without_torch() -> None:
    files = [(file, name) for file, name in imports_of("elastic") if file.startswith("elastic/engine/text/")]
    assert files and [(file, name) for file, name in files if name.split(".")[0] == "torch"] == []


@pytest.mark.parametrize("part", ["proxy", "treebuilder"])
def test_recording_and_building_know_no_torch(part: str) -> None:
    found = [
        (file, name) for file, name in imports_of(part) if name.split(".")[0] in {"torch", "transformers"}
    ]
    assert found == []


@pytest.mark.parametrize(
    "command",
    [
        *("", "proxy", "log", "log score", "engine", "doctor", "train", "train status", "config show"),
        *("trees", "trees build"),
    ],
)
def test_help_loads_nothing_heavy(command: str) -> None:
    assert loaded_by("gyre.cli.main", [*command.split(), "--help"], "Usage: gyre") == ""


@pytest.mark.parametrize("command", ["", "build", "show", "stats", "verify", "diff", "export"])
def test_help_of_gyre_trees_loads_nothing_heavy(command: str) -> None:
    assert loaded_by("gyre.cli.trees", [*command.split(), "--help"], "Usage: gyre-trees") == ""


def loaded_by(module: str, arguments: list[str], shown: str) -> str:
    """Which of the heavy modules a command loads that prints `shown`."""
    program = f"""
import sys
from {module} import main
try:
    main({arguments!r})
finally:
    sys.stderr.write(" ".join({HEAVY!r} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown in done.stdout
    return done.stderr


@pytest.mark.parametrize("module", ["gyre.cli.trees", "gyre.treebuilder"])
def test_trees_are_built_without_torch(module: str) -> None:
    program = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_proxy_runs_without_torch() -> None:
    program = "import sys, gyre.proxy.app; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
