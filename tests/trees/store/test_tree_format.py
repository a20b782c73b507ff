"""docs/tree-format.md says what the code does: every column with its type, and examples that run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gyre.treebuilder import build_trees
from gyre.treebuilder.store.report import CALL_REASONS
from gyre.treebuilder.store.schema import COLUMNS, SCHEMAS, type_name
from gyre.treebuilder.trees import Cause, Confidence
from tests.log.builders import LogBuilder
from tests.trees.store.logs import write_some, write_told

TEXT = (Path(__file__).parents[3] / "docs" / "tree-format.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def section(name: str) -> str:
    match = re.search(rf"^##+ {name}\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE)
    assert match
    return match[1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log = LogBuilder(tmp_path / "logs")
    write_told(log)
    write_some(log, "ab")
    build_trees(log.root, tmp_path / "trees")
    return tmp_path


@pytest.mark.parametrize("table", COLUMNS)
def test_every_column_is_documented_with_its_type_and_nothing_else(table: str) -> None:
    documented = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", section(table), re.MULTILINE)
    assert documented == [(column.name, type_name(column), column.text) for column in COLUMNS[table]]


@pytest.mark.parametrize("table", COLUMNS)
def test_files_have_these_columns(folder: Path, table: str) -> None:
    schema = pq.read_schema(folder / "trees" / table / "part-00000.parquet")
    assert schema.names == SCHEMAS[table].names
    # A map's parts have other names in a file than in memory.
    assert [str(field.type) for field in schema if "map" not in str(field.type)] == [
        str(field.type).replace("item: ", "element: ")
        for field in SCHEMAS[table]
        if "map" not in str(field.type)
    ]


def test_nodes_begin_with_what_trainers_need() -> None:
    first = "execution_id node_id parent_id depth token_ids target logprobs version_spans call_id context_id"
    assert SCHEMAS["nodes"].names[:13] == [*first.split(), "role", "cause", "admitted"]


def test_no_column_is_a_time() -> None:
    assert not [field for schema in SCHEMAS.values() for field in schema if "time" in str(field.type)]


def test_every_cause_and_confidence_is_explained() -> None:
    assert set(re.findall(r"^\| `(\w+)`", section("Causes"), re.MULTILINE)) == {str(cause) for cause in Cause}
    told = re.search(r"^Confidence: (.*?)\n\n", TEXT, re.DOTALL | re.MULTILINE)
    assert told
    assert set(re.findall(r"`(\w+)`", told[1])) - {"reason"} == {str(each) for each in Confidence}


def test_every_reason_not_to_train_is_explained() -> None:
    explained = section("Why an answer is context")
    assert [reason for reason in CALL_REASONS if f"| `{reason}" not in explained] == []


def test_every_part_of_the_report_is_named(folder: Path) -> None:
    report = json.loads((folder / "trees" / "report.json").read_text())
    sums = set(SCHEMAS["executions"].names) | {"schema", "log", "options"}
    assert {name for name in report.keys() - sums if f"`{name}`" not in section("report.json")} == set()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_every_example_runs(folder: Path, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EXAMPLES[number]], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    if "read_trees" in EXAMPLES[number]:
        assert "told None None" in done.stdout and "tokens," in done.stdout


def test_there_are_examples_for_duckdb_pandas_and_gyre() -> None:
    assert len(EXAMPLES) >= 5
    words = ("duckdb", "pandas", "read_trees", "build_trees")
    assert all(any(word in example for example in EXAMPLES) for word in words)
