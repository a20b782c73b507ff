"""`verify_trees` accepts what was built, and finds whatever was changed afterwards."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.errors import LogError
from gyre.proxy.log.sealing.seal import seal
from gyre.treebuilder import build_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.store.folder import MANIFEST, checksum
from gyre.treebuilder.store.schema import TABLES
from gyre.treebuilder.verify import verify_trees
from tests.log.builders import LogBuilder
from tests.trees.store.logs import SMALL, go_on, write_some, write_told
from tests.trees.world.emit import View, write_log
from tests.trees.world.story import FEW, Story, stories

Rows = list[dict[str, Any]]
PART = "part-00000.parquet"


def write(root: Path) -> LogBuilder:
    log = LogBuilder(root / "logs")
    write_told(log, "told")
    write_some(log, "ab")
    write_told(log, "text", View(ids=False))
    return log


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    return write(tmp_path)


@pytest.fixture
def out(tmp_path: Path, log: LogBuilder) -> Path:
    assert build_trees(log.root, tmp_path / "trees", options=Options(cap=2)).ok
    return tmp_path / "trees"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trees that are only copied."""
    root = tmp_path_factory.mktemp("built")
    write(root)
    assert build_trees(root / "logs", root / "trees", options=Options(cap=2)).ok
    return root / "trees"


def codes(out: Path, log: Path | None = None) -> set[str]:
    return {finding.code for finding in verify_trees(out, log)}


def rewrite(out: Path, table: str, change: Callable[[Rows], None]) -> None:
    """Change rows of a file, and its checksum with it, as a cunning hand would."""
    path = out / table / PART
    parquet = pq.read_table(path, partitioning=None)
    rows = parquet.to_pylist(maps_as_pydicts="strict")
    change(rows)
    for row in rows:
        row.update({name: list(value.items()) for name, value in row.items() if isinstance(value, dict)})
    pq.write_table(pa.Table.from_pylist(rows, schema=parquet.schema), path)
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["parts"][0]["checksums"][table] = checksum(path)
    (out / MANIFEST).write_text(json.dumps(manifest))


@settings(FEW, max_examples=25)
@given(
    st.lists(stories(labelled=True, max_actions=6), min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from(list(Rule)),
    st.integers(1, 4),
)
def test_whatever_was_built_is_proven(told: list[Story], ids: bool, rule: Rule, cap: int) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        worker = LogBuilder(root / "logs").worker()
        for number, story in enumerate(told):
            write_log(story.act().rows, worker, f"e{number}", View(ids=ids))
        worker.close()
        build_trees(root / "logs", root / "trees", options=Options(cap, 0, rule))
        assert verify_trees(root / "trees") == []


def test_parts_of_a_sealed_log_are_proven_too(log: LogBuilder, tmp_path: Path) -> None:
    seal(log.root)
    build_trees(log.root, tmp_path / "trees", limits=SMALL)
    assert verify_trees(tmp_path / "trees") == []


def one(rows: Rows, **where: Any) -> dict[str, Any]:
    """The first row that has these values; `...` stands for anything but null."""
    return next(
        row
        for row in rows
        if all(
            row[name] == value or (value is ... and row[name] is not None) for name, value in where.items()
        )
    )


def changed(table: str, code: str, **where: Any) -> Callable[[Callable[[dict[str, Any]], Any]], Any]:
    """A tampering: what is done to one row of a table, and what has to be found."""

    def take(change: Callable[[dict[str, Any]], Any]) -> Any:
        return pytest.param(
            table, lambda rows: change(one(rows, **where)), code, id=f"{table} {code} {where}"
        )

    return take


def put(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.update(values)


def shift(name: str, by: int = 1) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row.update({name: row[name] + by})


def first(name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    """Another value at the head of a list."""
    return lambda row: row.update({name: [value, *row[name][1:]]})


GIVEN = {"execution_id": "told", "sampled": False}
DRAWN = {"execution_id": "told", "target": ...}
CALL = {"execution_id": "told", "prompt_node": ...}
KEPT = {"execution_id": "told"}

TAMPERINGS = [
    changed("nodes", "prompt_path", **GIVEN)(first("token_ids", 77)),
    changed("nodes", "output_path", **DRAWN)(first("token_ids", 77)),
    changed("nodes", "unknown_call", **DRAWN)(put(call_id="b-00000")),
    changed("nodes", "logprobs", **DRAWN)(first("logprobs", -7.5)),
    changed("nodes", "logprobs_missing", **DRAWN)(put(logprobs=None)),
    changed("nodes", "logprobs_length", **DRAWN)(lambda row: row["logprobs"].pop()),
    changed("nodes", "target_length", **DRAWN)(lambda row: row["target"].pop()),
    changed("nodes", "given_target", **GIVEN)(lambda row: row.update(target=[True] * row["length"])),
    changed("nodes", "sampled", **GIVEN)(put(sampled=True)),
    changed("nodes", "sampled", **DRAWN)(put(sampled=False)),
    changed("nodes", "version_spans", **DRAWN)(put(version_spans=[{"version": "9", "start": 0, "end": 1}])),
    changed("nodes", "sums", **DRAWN)(put(target=None)),
    changed("nodes", "length", **GIVEN)(shift("length")),
    changed("nodes", "depth", **DRAWN)(shift("depth")),
    changed("nodes", "node_ids", **DRAWN)(shift("node_id")),
    changed("nodes", "parents", **DRAWN)(put(parent_id=99)),
    changed("nodes", "role", **DRAWN)(put(role="side")),
    changed("nodes", "cause", **DRAWN)(put(cause="edit")),
    changed("nodes", "context", **DRAWN)(shift("context_id")),
    changed("nodes", "admitted", **DRAWN)(lambda row: row.update(admitted=not row["admitted"])),
    changed("links", "missing_call", **CALL)(put(call_id="new")),
    changed("links", "extra_call", **CALL)(put(call_id="new")),
    changed("links", "prompt_path", **CALL)(shift("prompt_node")),
    changed("links", "output_path", **CALL)(shift("output_node", 2)),
    changed("links", "unknown_node", **CALL)(put(output_node=999)),
    changed("links", "sums", **CALL)(shift("targets")),
    changed("links", "sums", **CALL)(shift("prompt_tokens")),
    changed("links", "temperature", **CALL)(put(temperature=0.5)),
    changed("links", "temperature", execution_id="text")(put(temperature=0.5)),
    changed("links", "logprob_quality", **CALL)(put(logprob_quality="raw")),
    changed("links", "sampling", **CALL)(put(sampling="neutral")),
    changed("links", "sampling", execution_id="text")(put(sampling="changed")),
    changed("links", "role", execution_id="told", role="sub")(put(role="main")),
    changed("links", "origin", execution_id="told", origin_call_id=...)(shift("origin_context_id")),
    changed("trajectories", "sums", **KEPT)(shift("targets")),
    changed("trajectories", "sums", **KEPT)(shift("tokens")),
    changed("trajectories", "role", **KEPT)(put(role="side")),
    changed("trajectories", "side", **KEPT)(put(role="side")),
    changed("trajectories", "slots", **KEPT)(put(stub=True)),
    changed("trajectories", "trajectory_ids", **KEPT)(put(trajectory_id=4)),
    changed("trajectories", "unknown_node", **KEPT)(put(leaf_node=999)),
    changed("executions", "sums", **KEPT)(shift("kept_targets")),
    changed("executions", "sums", **KEPT)(put(causes={"start": 1})),
    changed("executions", "report", **KEPT)(shift("targets")),
    changed("executions", "superseded", **KEPT)(put(superseded=True)),
    changed("executions", "skipped_rows", **KEPT)(put(skipped="no reason")),
    changed("executions", "missing_execution", execution_id="a")(put(execution_id="c")),
    changed("executions", "extra_execution", execution_id="a")(put(execution_id="c")),
    changed("executions", "exact", execution_id="a")(put(exact=False)),
]


@pytest.mark.parametrize(("table", "change", "code"), TAMPERINGS)
def test_what_was_changed_is_found(
    built: Path, tmp_path: Path, table: str, change: Callable[[Rows], None], code: str
) -> None:
    shutil.copytree(built, tmp_path, dirs_exist_ok=True)
    rewrite(tmp_path, table, change)
    assert code in codes(tmp_path)


def exchange(rows: Rows) -> None:
    """Gives the tokens of one call to another."""
    drawn = [row for row in rows if row["execution_id"] == "told" and row["sampled"]]
    other = next(row for row in drawn if row["call_id"] != drawn[0]["call_id"])
    drawn[0]["call_id"] = other["call_id"]


def test_tokens_of_another_call_are_found(out: Path) -> None:
    rewrite(out, "nodes", exchange)
    assert "provenance" in codes(out)


def twice(rows: Rows) -> None:
    """Another child of the same parent that begins with the same id."""
    given = one(rows, **GIVEN)
    rows.append(given | {"node_id": sum(row["execution_id"] == "told" for row in rows)})
    rows.sort(key=lambda row: ["told", "a", "b", "text"].index(row["execution_id"]))


def test_two_ways_on_with_one_id_are_found(out: Path) -> None:
    rewrite(out, "nodes", twice)
    assert "siblings" in codes(out)


def test_more_slots_than_the_cap_are_found(out: Path) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["options"]["cap"] = 1
    (out / MANIFEST).write_text(json.dumps(manifest))
    assert "cap" in codes(out)


def test_an_execution_that_is_there_twice_is_found(out: Path) -> None:
    rewrite(out, "executions", lambda rows: rows.append(rows[0]))
    assert "repeated_execution" in codes(out)


@pytest.mark.parametrize(
    "columns",
    [
        {"capture_quality": "incomplete"},
        {"logprob_quality": "greedy"},
        {"capture_flags": ["late"]},
        {"outcome": "upstream_cut"},
    ],
)
def test_a_target_of_a_call_that_may_not_be_trained_is_found(
    log: LogBuilder, out: Path, columns: dict[str, Any]
) -> None:
    """The log is changed here, which comes to the same. `b-00002` is the last call of its run."""
    seal(log.root)
    for path in (log.root / "calls").iterdir():
        parquet = pq.read_table(path, partitioning=None)
        rows = parquet.to_pylist()
        for row in rows:
            row.update(columns if row["call_id"] == "b-00002" else {})
        pq.write_table(pa.Table.from_pylist(rows, schema=parquet.schema), path)
    assert "untrainable" in codes(out)


@pytest.mark.parametrize("table", TABLES)
def test_any_other_byte_is_found_by_its_checksum(out: Path, table: str) -> None:
    path = out / table / PART
    path.write_bytes(path.read_bytes().replace(b"gyre_trees_schema", b"gyre_trees_schemb"))
    assert codes(out) == {"checksum"}


def test_files_that_are_gone_or_too_many_are_found(out: Path) -> None:
    (out / "nodes" / "part-00007.parquet").write_bytes((out / "nodes" / PART).read_bytes())
    (out / "links" / PART).unlink()
    assert {"extra_part", "missing_file"} <= codes(out)


def test_a_file_that_cannot_be_read_is_found(out: Path) -> None:
    (out / "nodes" / PART).write_bytes(b"PAR1")
    assert {"checksum", "unreadable"} <= codes(out)


@pytest.mark.parametrize("table", TABLES)
def test_rows_that_make_no_sense_are_found(out: Path, table: str) -> None:
    """A file with all the columns that a reader cannot do without empty."""

    def empty(rows: Rows) -> None:
        for row in rows:
            row.update({name: None for name in row if name not in ("execution_id", "execution_attempt")})

    rewrite(out, table, empty)
    assert codes(out)


def test_an_empty_file_is_found(out: Path) -> None:
    (out / "nodes" / PART).write_bytes(b"")
    assert {"checksum", "unreadable"} <= codes(out)


def test_a_report_that_does_not_add_up_is_found(out: Path) -> None:
    report = json.loads((out / "report.json").read_text())
    (out / "report.json").write_text(json.dumps(report | {"targets": 1}))
    assert codes(out) == {"report"}
    (out / "report.json").unlink()
    assert codes(out) == {"report"}


def test_a_log_that_went_on_has_calls_that_the_trees_lack(log: LogBuilder, out: Path) -> None:
    go_on(log, "a")
    write_some(log, "c")
    assert codes(out) == {"missing_call", "missing_execution"}


def test_a_log_that_is_gone_is_said_and_the_rest_is_checked(log: LogBuilder, out: Path) -> None:
    log.root.rename(log.root.with_name("moved"))
    [finding] = verify_trees(out)
    assert (finding.code, str(finding.severity)) == ("log_gone", "note")
    assert "only what the trees show" in finding.message
    assert verify_trees(out, log.root.with_name("moved")) == []
    with pytest.raises(LogError):
        verify_trees(out, log.root)
    rewrite(out, "nodes", lambda rows: put(depth=5)(one(rows, **DRAWN)))
    assert codes(out) == {"log_gone", "depth"}


def test_a_damaged_log_is_told(log: LogBuilder, out: Path) -> None:
    seal(log.root)
    [path] = (log.root / "calls").iterdir()
    path.write_bytes(path.read_bytes()[:-10])
    assert {"corrupt_file", "extra_execution"} <= codes(out)


def test_a_build_that_did_not_finish_is_told(out: Path) -> None:
    manifest = json.loads((out / MANIFEST).read_text())
    (out / MANIFEST).write_text(json.dumps(manifest | {"complete": False}))
    assert codes(out) == {"unfinished"}


def test_what_is_no_folder_of_trees_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError):
        verify_trees(tmp_path)


def test_skipped_executions_are_no_violation(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    worker.call("x", execution="broken", logprobs=b"")
    worker.event("ended", execution="empty")
    worker.close()
    assert list(build_trees(log.root, tmp_path / "trees").skipped) == ["broken"]
    assert verify_trees(tmp_path / "trees") == []
