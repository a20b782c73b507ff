"""From a proxy's journal to trees on disk: nothing of an execution is lost or changed on the way."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import Wire
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import ExecutionTree
from gyre.treebuilder.verify import verify_trees
from tests.log.builders import LogBuilder
from tests.trees.world.built import build, plain
from tests.trees.world.confusion import misgrouped, wrong
from tests.trees.world.emit import View, emit, write_log
from tests.trees.world.oracle import violations
from tests.trees.world.story import FEW, Action, Story, stories

TWO = st.lists(stories(labelled=True, max_actions=4), min_size=1, max_size=2)


@settings(FEW, max_examples=20)
@given(TWO, st.booleans())
def test_trees_read_back_are_those_built_in_memory(told: list[Story], ids: bool) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        worlds = {f"e{i}": story.act() for i, story in enumerate(told)}
        worker = LogBuilder(root / "logs").worker()
        for name, world in worlds.items():
            write_log(world.rows, worker, name, View(ids=ids))
        worker.close()
        report = build_trees(root / "logs", root / "trees", jobs=1)
        assert report.ok and not report.skipped
        assert verify_trees(root / "trees") == []
        trees = read_trees(root / "trees")
        for name, world in worlds.items():
            stored = trees.tree(name)
            assert comparable(stored) == comparable(build(emit(world.rows, View(ids=ids)), name))
            if ids:
                assert not violations(stored, world.rows)


def comparable(tree: ExecutionTree) -> Any:
    """Blocks of messages have numbers only while a tree is built."""
    values = plain(tree)
    for node in values["nodes"]:
        node["token_ids"] = node["token_ids"] if tree.exact else len(node["token_ids"])
    return values


def test_what_is_no_call_is_in_no_tree(tmp_path: Path) -> None:
    """`count_tokens`, `models` and probes are answered and recorded, and stay out."""
    world = Story((Action("work"), Action("work"))).act()
    worker = LogBuilder(tmp_path / "logs").worker()
    worker.call(
        "probe", None, None, [], wire=Wire.MODELS.value, path="/v1/models", method="GET", response=None
    )
    write_log(world.rows, worker, "e1", View())
    worker.call("count", None, None, wire=Wire.OPAQUE.value, path="/v1/messages/count_tokens")
    worker.close()
    assert build_trees(tmp_path / "logs", tmp_path / "trees").ok
    tree = read_trees(tmp_path / "trees").tree("e1")
    assert [link.call for link in tree.links] == [row.key for row in world.rows]


def test_two_workers_that_wrote_one_execution_are_read_in_the_order_of_their_rows(tmp_path: Path) -> None:
    world = Story((Action("blocking", pick=3), Action("work"), Action("compact"))).act()
    log = LogBuilder(tmp_path / "logs")
    workers = [log.worker("w1"), log.worker("w0")]
    write_log(world.rows, workers, "e1", View())
    for worker in workers:
        worker.close()
    assert build_trees(tmp_path / "logs", tmp_path / "trees").ok
    tree = read_trees(tmp_path / "trees").tree("e1")
    truths = {row.key: row.truth for row in world.rows}
    assert not [text for link in tree.links for text in wrong(link, truths[link.call])]
    assert not misgrouped(tree, world.rows, labels=True)
    assert not violations(tree, world.rows)
    assert Counter(link.call for link in tree.links) == Counter(list(truths))
