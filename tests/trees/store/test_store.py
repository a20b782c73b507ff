"""Trees to files and back, and which execution stands where. Trees are made by hand here."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gyre.treebuilder import read_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline.parts import Limits, shares, split
from gyre.treebuilder.offline.survey import Found
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey, Scores
from gyre.treebuilder.store.encode import Built, joined, tables_of
from gyre.treebuilder.store.folder import MANIFEST, Manifest, TreesFolder, create_folder
from gyre.treebuilder.store.schema import TABLES
from gyre.treebuilder.store.write import PartWriter, commit
from gyre.treebuilder.trees import CallKey, Cause, Disagreement, ExecutionTree
from tests.trees.made import Made, typical
from tests.trees.store.logs import damage

NO_SCORES: Scores = {}


def store(root: Path, *groups: list[Built], name: str = "part-00000") -> TreesFolder:
    """A finished folder with one part."""
    folder = create_folder(root)
    with PartWriter(folder, name) as writer:
        for group in groups:
            writer.write(joined([tables_of(group)]))
        entry = writer.finish("key-digest")
    commit(folder, entry)
    manifest = Manifest(Options(cap=3, seed=7), "logs", complete=True, parts=[entry])
    folder.write(MANIFEST, manifest.as_json())
    return folder


def made(name: str, attempt: int = 0) -> Built:
    one = typical()
    one.execution_id, one.attempt = name, attempt
    return Built(one.summary(score=0.5, group="g"), one.tree())


def values(tree: ExecutionTree) -> Any:
    """A tree as values that compare."""

    def plain(value: Any) -> Any:
        match value:
            case np.ndarray():
                return [str(value.dtype), *value.tolist()]
            case dict():
                return {key: plain(item) for key, item in value.items()}
            case list() | tuple():
                return [plain(item) for item in value]
        return value

    return plain(asdict(tree))


def full() -> Built:
    """Every field holds something."""
    one = made("full")
    assert one.tree
    node, link = one.tree.nodes[1], one.tree.links[4]
    node.version_spans = [("7", 0, 5), ("8", 5, 20)]
    link.break_before, link.break_after = np.arange(3, dtype=np.int32), np.arange(0, dtype=np.int32)
    link.header_cause, link.header_origin_context_id, link.agrees = Cause.DELEGATION, 1, False
    link.origin = CallKey("c1", 1, 2)
    one.tree.disagreements = [Disagreement(CallKey("c3", 1, 2), "a sub-agent", "the main agent")]
    one.tree.problems = one.summary.problems = ["a clock ran back"]
    return one


def test_a_tree_is_read_back_as_it_was_stored(tmp_path: Path) -> None:
    one = full()
    store(tmp_path / "trees", [made("a"), one], [made("b")])
    trees = read_trees(tmp_path / "trees")
    assert one.tree and values(trees.tree("full")) == values(one.tree)
    assert (trees.options, trees.log) == (Options(cap=3, seed=7), Path("logs"))
    summary = trees.executions()[1]
    assert summary.disagreements == ["`c3`: headers say a sub-agent, found is the main agent"]
    summary.disagreements = []
    assert summary == one.summary


def test_executions_are_yielded_in_stored_order_without_those_that_were_skipped(tmp_path: Path) -> None:
    broken = Built(Made("broken").summary(skipped="its only call is torn"), None)
    nothing = Built(Made("nothing").summary(), None)
    store(tmp_path / "trees", [made("b"), broken, nothing], [made("a"), made("b", attempt=1)])
    trees = read_trees(tmp_path / "trees")
    assert [(one.execution_id, one.execution_attempt) for one in trees.executions()] == [
        ("b", 0), ("broken", 0), ("nothing", 0), ("a", 0), ("b", 1),
    ]  # fmt: skip
    found = [(summary.execution_id, tree.execution_attempt, len(tree.nodes)) for summary, tree in trees]
    assert found == [("b", 0, 18), ("nothing", 0, 0), ("a", 0, 18), ("b", 1, 18)]
    assert trees.tree("b").execution_attempt == 1
    assert trees.tree("b", 0).execution_attempt == 0
    for name, attempt, text in [
        ("broken", None, "torn"),
        ("c", None, "no execution `c`"),
        ("a", 3, "attempt 3"),
    ]:
        with pytest.raises(TreeError, match=text):
            trees.tree(name, attempt)


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    broken = Built(Made("broken").summary(skipped="its only call is torn"), None)
    stored = store(tmp_path / "trees", [made("a"), broken], [made("b"), made("c"), made("b", attempt=1)])
    trees = read_trees(stored.root)
    assert trees.attempts("part-00000") == {("a", 0), ("broken", 0), ("b", 0), ("c", 0), ("b", 1)}

    def found(*keys: AttemptKey) -> list[AttemptKey]:
        pairs = list(trees.several(keys))
        assert all(len(tree.nodes) == 18 for _, tree in pairs)
        return [(summary.execution_id, tree.execution_attempt) for summary, tree in pairs]

    assert found(("c", 0), ("a", 0)) == [("a", 0), ("c", 0)]
    assert found(("b", 1)) == [("b", 1)]
    assert found(("b", 1), ("b", 0), ("broken", 0), ("c", 1), ("d", 0)) == [("b", 0), ("b", 1)]
    assert found() == []


def test_blocks_of_texts_have_no_ids(tmp_path: Path) -> None:
    text = Made("text", exact=False)
    text.call("c1", new=3, output=1, trained=False)
    text.nodes[1].logprobs = None
    store(tmp_path / "trees", [Built(text.summary(), text.tree(), [5, 2])])
    [(summary, tree)] = read_trees(tmp_path / "trees")
    assert not summary.exact and not tree.exact
    assert [node.token_ids.tolist() for node in tree.nodes] == [[-1, -1, -1], [-1]]
    rows = pq.read_table(tmp_path / "trees" / "nodes").to_pylist()
    assert [(row["token_ids"], row["length"], row["text_tokens"]) for row in rows] == [
        (None, 3, 5),
        (None, 1, 2),
    ]


def test_targets_are_a_list_or_null(tmp_path: Path) -> None:
    store(tmp_path / "trees", [made("a")])
    rows = pq.read_table(tmp_path / "trees" / "nodes").to_pylist()
    assert [row["target"] for row in rows[:2]] == [None, [True] * 20]


def test_advantages_are_of_the_scored_executions_of_a_group(tmp_path: Path) -> None:
    one, other, left = made("a"), made("b"), made("c")
    other.summary.score, left.summary.outcome = 1.5, "run_timeout"
    store(tmp_path / "trees", [one, other, left])
    found = read_trees(tmp_path / "trees").advantages()
    assert found.keys() == {("a", 0), ("b", 0)}
    assert found["a", 0] == pytest.approx(-found["b", 0]) and found["a", 0] < 0


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    folder = store(tmp_path / "trees", [made("a")])
    manifest = json.loads((folder.root / MANIFEST).read_text())
    (folder.root / MANIFEST).write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(TreeError, match="has tree format 2, this gyre reads up to 1") as refused:
        read_trees(folder.root)
    assert "newer gyre" in refused.value.hint


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "is no folder of trees"), ("{", "is damaged"), ('{"format": 1}', "is damaged")],
)
def test_what_is_no_folder_of_trees_is_told(tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(TreeError, match=text):
        read_trees(tmp_path)


DAMAGES: list[dict[str, Any]] = [
    {"log": None},
    {"parts": None},
    {"options": {"cap": "x", "seed": 0, "rule": "qwengyre"}},
    {"parts": [{"name": "../../logs/x", "digest": "", "checksums": {}}]},
    {"parts": [{"name": "part-00000", "digest": "", "checksums": None}]},
]


@pytest.mark.parametrize("changes", DAMAGES)
def test_a_manifest_that_no_build_wrote_is_damaged(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = store(tmp_path / "trees", [made("a")])
    manifest = json.loads((folder.root / MANIFEST).read_text())
    (folder.root / MANIFEST).write_text(json.dumps(manifest | changes))
    with pytest.raises(TreeError, match="is damaged"):
        read_trees(folder.root)


@pytest.mark.parametrize("table", TABLES)
def test_a_file_that_was_changed_is_refused_before_it_is_read(tmp_path: Path, table: str) -> None:
    """Nodes that are their own parents would be followed for ever."""
    folder = store(tmp_path / "trees", [made("a")])
    path = folder.part(table, "part-00000")
    path.write_bytes(path.read_bytes().replace(b"gyre_trees_schema", b"gyre_trees_schemb"))
    with pytest.raises(TreeError, match=f"{table}/part-00000.parquet` is damaged or was changed") as refused:
        list(read_trees(folder.root))
    assert "build again" in refused.value.hint
    with pytest.raises(TreeError, match="was changed"):
        read_trees(folder.root).tree("a")


def test_a_damaged_page_names_its_file(tmp_path: Path) -> None:
    folder = store(tmp_path / "trees", [made("a")])
    damage(folder.part("nodes", "part-00000"), "token_ids.list.element")
    with pytest.raises(TreeError, match=r"nodes/part-00000\.parquet"):
        read_trees(folder.root).tree("a")


def found(*weights: int) -> list[Found]:
    return [Found((f"e{i}", 0), (i, "w"), calls=1, new_bytes=weight) for i, weight in enumerate(weights)]


def sizes(limits: Limits, *weights: int) -> list[list[list[int]]]:
    parts = split(found(*weights), limits)
    assert [part.name for part in parts] == [f"part-{i:05d}" for i in range(len(parts))]
    return [[[one.new_bytes for one in group] for group in part.groups] for part in parts]


def test_a_part_is_full_by_bytes_or_by_number_and_an_execution_is_never_divided() -> None:
    assert sizes(Limits(10, 99, 99), 4, 4, 4, 30, 1, 9, 1) == [[[4, 4]], [[4]], [[30]], [[1, 9]], [[1]]]
    assert sizes(Limits(99, 2, 99), 0, 0, 0) == [[[0, 0]], [[0]]]
    assert sizes(Limits(99, 99, 5), 2, 3, 4, 9, 1) == [[[2, 3], [4], [9], [1]]]
    assert sizes(Limits()) == []


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_shares_of_a_part_are_runs_of_its_groups(count: int) -> None:
    [part] = split(found(*[5] * 6), Limits(99, 99, 5))
    cut = shares(part, count)
    assert len(cut) == min(count, 6)
    assert [group for share in cut for group in share.groups] == list(part.groups)
    assert max(len(share.groups) for share in cut) - min(len(share.groups) for share in cut) <= 1


def test_pieces_put_together_are_the_bytes_of_one(tmp_path: Path) -> None:
    """Copied, sliced or made now: only what is in a row group decides what is on the disk."""
    one = store(tmp_path / "one", [made("a"), made("b"), full()])
    whole = tables_of([made("x"), made("a"), made("b")])
    slices = {name: whole[name].slice(whole[name].num_rows // 3) for name in TABLES}
    folder = create_folder(tmp_path / "two")
    with PartWriter(folder, "part-00000") as writer:
        writer.write(joined([slices, tables_of([]), tables_of([full()])]))
        commit(folder, writer.finish("key-digest"))
    for table in TABLES:
        assert folder.part(table, "part-00000").read_bytes() == one.part(table, "part-00000").read_bytes(), (
            table
        )


def test_a_part_that_is_not_finished_leaves_nothing(tmp_path: Path) -> None:
    folder = create_folder(tmp_path / "trees")
    with pytest.raises(ZeroDivisionError), PartWriter(folder, "part-00000") as writer:
        writer.write(tables_of([made("a")]))
        raise ZeroDivisionError
    assert [path for path in folder.root.rglob("*") if path.is_file()] == []
