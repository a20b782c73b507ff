"""docs/log-format.md says what the code does: every column with its type, and examples that run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gyre.proxy.calls import Outcome, Phase
from gyre.proxy.log.schema import COLUMNS, type_name
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, growing_run

TEXT = (Path(__file__).parents[2] / "docs" / "log-format.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def section(name: str) -> str:
    match = re.search(rf"^## {name}\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)
    assert match
    return match[1]


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_is_documented_with_its_type_and_nothing_else(table: str) -> None:
    documented = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section(table), re.MULTILINE)
    assert documented == [(column.name, type_name(column), column.text) for column in COLUMNS[table]]


def test_every_outcome_and_phase_is_explained() -> None:
    outcomes = re.search(r"### Outcomes\n(.*?)###", TEXT, re.DOTALL)
    assert outcomes
    assert set(re.findall(r"^\| `(\w+)`", outcomes[1], re.MULTILINE)) == {str(o) for o in Outcome}
    phases = re.search(r"Phases: (.*?)\.", outcomes[1], re.DOTALL)
    assert phases
    assert set(re.findall(r"`(\w+)`", phases[1])) == {str(phase) for phase in Phase}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_runs(tmp_path: Path, number: int) -> None:
    worker = LogBuilder(tmp_path / "logs").worker()
    growing_run(worker, 3)
    worker.die()
    seal(tmp_path / "logs")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if number == 2:
        assert "e1 turn 2" in done.stdout


def test_there_are_examples_for_duckdb_pandas_and_gyre() -> None:
    assert len(EXAMPLES) >= 5
    assert all(any(word in example for example in EXAMPLES) for word in ("duckdb", "pandas", "read_log"))
