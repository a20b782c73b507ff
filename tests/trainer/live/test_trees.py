"""Trees of executions that have just ended are those that a build of the whole log makes of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import CallRecord, Outcome
from gyre.proxy.log.sealing.seal import seal
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.settings import TreeTable
from gyre.trainer.live.trees import OnlineTrees, options_of, store
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.options import Rule
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.store.read import Trees, read_trees
from gyre.treebuilder.trees import ExecutionTree
from tests.engines.fake import FakeEngine
from tests.log.builders import LogBuilder, Worker, growing_run, message
from tests.proxy.running import RunningProxy
from tests.trees.test_whole_way import comparable
from tests.trees.world.emit import View, write_log
from tests.trees.world.story import FEW, Story, stories
from tests.trees.world.wires import Form

TABLE = TreeTable()
MOMENTS = st.lists(
    st.sampled_from(("", "", "poll", "rotate", "die", "seal", "hidden", "restart")), min_size=12, max_size=40
)
"""What happens before each row. `hidden`: a segment that is begun and sealed between two looks."""
TABLES = st.builds(TreeTable, cap=st.integers(1, 5), seed=st.integers(0, 9), select=st.sampled_from(Rule))


class Watched:
    """A log that is written, and whoever builds its trees meanwhile."""

    def __init__(self, logs: Path, table: TreeTable, moments: Sequence[str]) -> None:
        self.log = LogBuilder(logs)
        self.table = table
        self.moments = iter(moments)
        self.workers = [Unsteady(self, f"w{i}") for i in range(2)]
        self.online = OnlineTrees(logs, table)
        self.lost = 0

    def happen(self, worker: Unsteady, execution: str) -> None:
        match next(self.moments, ""):
            case "poll":
                self.online.poll()
            case "rotate":
                worker.close()
                worker.begin()
            case "die":
                self.lost += 1
                worker.intent(f"lost-{self.lost}", execution)
                worker.die()
                worker.begin()
            case "seal":
                seal(self.log.root)
            case "hidden":
                worker.close()
                worker.begin()
                worker.hides = True
            case "restart":
                self.online.close()
                self.online = OnlineTrees(self.log.root, self.table)

    def end(self) -> None:
        self.online.close()
        for worker in self.workers:
            worker.close()


class Unsteady(Worker):
    """Something may happen before each of its rows."""

    def __init__(self, watched: Watched, name: str) -> None:
        self.watched = watched
        self.hides = False
        super().__init__(watched.log, name)

    def begin(self) -> None:
        super().__init__(self.log, self.name)

    def call(self, call_id: str, *args: Any, **columns: Any) -> CallRecord:
        self.watched.happen(self, _execution(args, columns))
        record = super().call(call_id, *args, **columns)
        if self.hides:
            self.hides = False
            self.close()
            seal(self.log.root)
            self.begin()
        return record


def _execution(args: Sequence[Any], columns: Mapping[str, Any]) -> str:
    return str(columns.get("execution", args[5] if len(args) > 5 else "e1"))


def same(tree: ExecutionTree, trees: Trees) -> bool:
    return bool(comparable(tree) == comparable(trees.tree(tree.execution_id, tree.execution_attempt)))


def offline(logs: Path, table: TreeTable = TABLE) -> Trees:
    build_trees(logs, logs.parent / "offline", options=options_of(table))
    return read_trees(logs.parent / "offline")


CASES = given(
    st.lists(stories(max_actions=4), min_size=1, max_size=3),
    st.builds(View, ids=st.booleans(), form=st.sampled_from(Form)),
    MOMENTS,
    TABLES,
)


@settings(FEW, max_examples=12)
@CASES
def test_they_are_the_same_whenever_one_looks_and_whatever_is_sealed(
    told: list[Story], view: View, moments: list[str], table: TreeTable
) -> None:
    check(told, view, moments, table)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(FEW, max_examples=300)
@CASES
def test_they_are_the_same_in_many_more_cases(
    told: list[Story], view: View, moments: list[str], table: TreeTable
) -> None:
    check(told, view, moments, table)


def check(told: list[Story], view: View, moments: list[str], table: TreeTable) -> None:
    with TemporaryDirectory() as folder:
        watched = Watched(Path(folder) / "logs", table, moments)
        made: list[ExecutionTree] = []
        for number, story in enumerate(told):
            name = f"e{number}"
            write_log(story.act().rows, watched.workers, name, view)
            made.append(watched.online.tree(name))
            watched.online.forget([name])
        watched.end()
        trees = offline(watched.log.root, table)
        assert all(same(tree, trees) for tree in made)
        # What was forgotten is read again where somebody asks.
        with OnlineTrees(watched.log.root, table) as again:
            again.forget(["e0"])
            assert same(again.tree("e0"), trees)


def test_a_running_proxy_is_followed_over_its_seals_and_its_end(tmp_path: Path) -> None:
    flags = {"log.sync_s": 0.02, "log.rotate_s": 0.05}
    made: list[ExecutionTree] = []
    with FakeEngine(kind="vllm", model="fake") as engine, OnlineTrees(tmp_path / "logs", TABLE) as online:
        for life in range(2):
            with RunningProxy(tmp_path / "logs", engine, **flags) as proxy:
                for number in range(4):
                    name = f"life{life}-{number}"
                    for said in _talk(proxy, name):
                        assert said
                    made.append(online.tree(name))
                    online.forget([name])
    trees = offline(tmp_path / "logs")
    assert len(made) == 8 and all(tree.kept_targets for tree in made)
    assert all(same(tree, trees) for tree in made)


def _talk(proxy: RunningProxy, name: str) -> Iterator[str]:
    messages: list[dict[str, str]] = []
    for turn in range(4):
        messages.append({"role": "user", "content": f"{name} says {turn}"})
        answer = proxy.chat(name, messages=messages).json()["choices"][0]["message"]
        messages.append({"role": "assistant", "content": answer["content"]})
        yield answer["content"]


def test_rows_are_read_once(tmp_path: Path) -> None:
    """What was taken is not looked for again: it may be gone from the disk."""
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    with OnlineTrees(log.root, TABLE) as online:
        for name in ("a", "b"):
            growing_run(worker, 3, execution=name)
        online.poll()
        for segment in log.folder.segments():
            segment.unlink()
        assert [len(tree.links) for tree in online.trees([("a", 0), ("b", 0)]).values()] == [3, 3]
        online.forget(["a"])
        assert online.tree("a").links == []
        assert len(online.tree("b").links) == 3


def test_after_a_restart_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    for name in ("a", "b"):
        worker = log.worker(name)
        growing_run(worker, 3, execution=name)
        worker.close()
        seal(log.root)
    first, _ = log.folder.sealed("calls")
    with OnlineTrees(log.root, TABLE) as online:
        first.write_bytes(b"")  # that of `a`
        assert len(online.tree("b").links) == 3
        with pytest.raises(ExecutionError, match="cannot be read"):
            online.tree("a")


def test_a_call_that_is_still_open_is_not_waited_for(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    growing_run(worker, 2)
    worker.intent("late")
    with OnlineTrees(log.root, TABLE) as online:
        assert len(online.tree("e1").links) == 2
        worker.call("late", [9, 9], [8], outcome=Outcome.CLIENT_GONE.value, capture_flags=["late"])
        tree = online.tree("e1")
        assert len(tree.links) == 3 and tree.untrained == {"late": 1}


def test_a_call_whose_proxy_died_is_in_the_tree_without_an_answer(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    growing_run(worker, 2)
    worker.intent("lost")
    with OnlineTrees(log.root, TABLE) as online:
        assert len(online.tree("e1").links) == 2
        worker.die()
        for _ in range(2):
            last = online.tree("e1").links[-1]
            assert (last.call.call_id, last.untrained) == ("lost", "outcome_interrupted")
            seal(log.root)


def test_attempts_of_one_name_are_trees_of_their_own(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    worker.call("a", [1, 2, 3], [4, 5])
    worker.call("b", [1, 2, 3, 4, 5, 6], [7], parent=("a", 0, 0), execution_attempt=1)
    with OnlineTrees(log.root, TABLE) as online:
        keys: list[AttemptKey] = [("e1", 0), ("e1", 1), ("e1", 2)]
        trees = online.trees(keys)
        assert [[link.prompt_tokens for link in trees[key].links] for key in keys] == [[3], [6], []]
        worker.close()
        assert all(same(trees[key], offline(log.root)) for key in keys[:2])


def test_a_row_that_is_damaged_costs_its_execution_alone(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    start = worker.path.stat().st_size
    worker.call("bad-1", [1, 2, 3], [4, 5], execution="bad")
    end = worker.path.stat().st_size
    worker.call("bad-2", [1, 2, 3, 4, 5, 6], [7], parent=("bad-1", 0, 0), execution="bad")
    growing_run(worker, 3, execution="good")
    content = bytearray(worker.path.read_bytes())
    content[(start + end) // 2] ^= 0xFF
    worker.path.write_bytes(content)
    with OnlineTrees(log.root, TABLE) as online:
        made = online.trees([("bad", 0), ("good", 0)])
        assert isinstance(made["bad", 0], ExecutionError) and "bad-1" in made["bad", 0].message
        assert isinstance(made["good", 0], ExecutionTree) and len(made["good", 0].links) == 3


def test_executions_of_an_evaluation_are_known_and_not_kept(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    worker = log.worker()
    worker.event("started", execution="held", evaluation=True)
    growing_run(worker, 2, execution="held")
    growing_run(worker, 2, execution="trained")
    for sealed in (False, True):
        with OnlineTrees(log.root, TABLE) as online:
            online.poll()
            assert online.is_evaluation("held") and not online.is_evaluation("trained")
            assert online.tree("held").untrained == {"evaluation": 20}
            assert online.tree("trained").targets == 20
        if not sealed:
            worker.close()
            seal(log.root)


def test_messages_that_another_execution_wrote_are_found_in_older_files(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path / "logs")
    hello, more = message("the same for all"), message("go on")
    first = log.worker("first")
    first.call("a", None, None, [hello, more], execution="earlier")
    first.close()
    seal(log.root)
    worker = log.worker()
    with OnlineTrees(log.root, TABLE) as online:
        for number, listed in enumerate(([hello], [hello, message("ok", "assistant"), more])):
            worker.call(f"b{number}", None, None, listed, execution="e1")
        tree = online.tree("e1")
        assert len({link.context_id for link in tree.links}) == 1
        shutil.rmtree(log.folder.table("messages"))
    with OnlineTrees(log.root, TABLE) as online, pytest.raises(ExecutionError, match="is not in the log"):
        online.tree("e1")


def test_the_trees_of_a_run_are_those_of_its_log(tmp_path: Path) -> None:
    folder = LiveFolder(tmp_path)
    log = LogBuilder(folder.logs)
    worker = log.worker()
    table = TreeTable(cap=1, seed=3)
    for name in ("a", "b"):
        growing_run(worker, 2, execution=name)
        assert store(folder, table).rebuilt == 1
    trees = read_trees(folder.trees)
    with OnlineTrees(folder.logs, table) as online:
        assert all(same(tree, trees) for tree in online.trees([("a", 0), ("b", 0)]).values())
