"""A log to a folder of trees, whatever the steps, the number of processes, and what is broken."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gyre.proxy.calls import VersionSpan
from gyre.proxy.errors import CorruptLogError, LogFormatError
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.scores import Scored
from gyre.treebuilder import build_trees, read_log, read_trees
from gyre.treebuilder.errors import ExecutionError, TreeError
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.store.parts import Limits
from tests.log.builders import LogBuilder, Worker, digest_of, growing_run, message
from tests.trees.store.logs import SMALL, damage, files_in, go_on, times_in, write_some, write_told


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path / "logs")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "trees"


def build(log: LogBuilder, out: Path, **more: Any) -> Any:
    return build_trees(log.root, out, **({"limits": SMALL} | more))


def test_a_build_in_steps_gives_the_bytes_of_one(log: LogBuilder, out: Path) -> None:
    write_some(log)
    build(log, out)
    go_on(log, "b", 2)
    write_told(log)
    seal(log.root)
    build(log, out)
    go_on(log, "f")
    write_some(log, "gh")
    report = build(log, out)
    assert report.rebuilt == 3
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))
    assert len(list((out / "nodes").iterdir())) == 5


@pytest.mark.parametrize("limits", [SMALL, Limits(group_bytes=600)], ids=["parts", "groups of one part"])
def test_several_processes_give_the_bytes_of_one(log: LogBuilder, out: Path, limits: Limits) -> None:
    write_some(log)
    write_told(log)
    one = build(log, out, limits=limits)
    seen: list[tuple[int, int]] = []
    two = build(
        log, out.with_name("two"), limits=limits, jobs=2, progress=lambda *told: seen.append(told[:2])
    )
    assert files_in(out) == files_in(out.with_name("two"))
    assert (two.rebuilt, two.totals) == (one.rebuilt, one.totals)
    assert seen == [(number, 7) for number in range(1, 8)]


def test_a_sealed_log_gives_the_trees_of_its_journal(log: LogBuilder, out: Path) -> None:
    write_some(log)
    write_told(log)
    build(log, out)
    before = files_in(out)
    seal(log.root)
    assert build(log, out).rebuilt == 0
    assert files_in(out) == before
    build(log, out.with_name("sealed"))
    assert files_in(out.with_name("sealed")) == before


def test_only_what_has_new_calls_is_built_and_other_parts_are_not_touched(log: LogBuilder, out: Path) -> None:
    write_some(log)
    assert build(log, out).rebuilt == 6
    before = times_in(out)
    go_on(log, "f")
    report = build(log, out)
    assert (report.rebuilt, report.executions, report.parts_written) == (1, 6, 1)
    touched = {name for name, at in times_in(out).items() if before.get(name) != at}
    assert {Path(name).name for name in touched} == {"part-00002.parquet"}
    assert build(log, out).rebuilt == 0


def test_a_log_read_by_the_caller_can_be_built_from(log: LogBuilder, out: Path) -> None:
    write_some(log)
    report = build_trees(read_log(log.root), out)
    assert report.ok and report.rebuilt == 6
    assert [summary.execution_id for summary, _ in read_trees(out)] == list("abcdef")


def test_other_options_build_everything_again(log: LogBuilder, out: Path) -> None:
    write_some(log)
    build(log, out)
    report = build(log, out, options=Options(cap=1, rule=Rule.COVERAGE))
    assert report.rebuilt == 6
    assert read_trees(out).options == Options(cap=1, rule=Rule.COVERAGE)


def test_scores_outweigh_the_log_and_change_only_what_they_name(log: LogBuilder, out: Path) -> None:
    write_some(log)
    build(log, out)
    given = {
        ("c", None): Scored("c", score=7.5),
        ("d", 0): Scored("d", 0, outcome="scorer_failed", reason="it hung"),
        ("misspelt", None): Scored("misspelt", score=1.0),
    }
    report = build(log, out, scores=given)
    assert report.rebuilt == 2
    assert [(each.code, each.where) for each in report.findings] == [("unknown_execution", "misspelt")]
    told = {one.execution_id: one for one in read_trees(out).executions()}
    assert (told["c"].score, told["c"].outcome, told["c"].group) == (7.5, None, "g0")
    assert (told["d"].score, told["d"].outcome, told["d"].reason) == (None, "scorer_failed", "it hung")
    assert told["b"].score == 1.0
    assert set(read_trees(out).advantages()) == {("a", 0), ("b", 0), ("c", 0), ("e", 0), ("f", 0)}
    build(log, out)
    build(log, out.with_name("without"))
    assert files_in(out) == files_in(out.with_name("without"))


def test_executions_that_the_log_lost_are_kept_unless_said_otherwise(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    build(log, out)
    before = files_in(out)
    shorter = LogBuilder(log.root.with_name("shorter"))
    write_some(shorter, "b")
    with pytest.raises(TreeError, match="no longer in the log: `a`") as refused:
        build(shorter, out)
    assert "--prune" in refused.value.hint
    assert files_in(out) == before
    report = build(shorter, out, prune=True)
    assert (report.removed, report.executions) == (1, 1)
    build(shorter, out.with_name("fresh"))
    assert files_in(out) == files_in(out.with_name("fresh"))


def test_events_alone_are_kept_without_a_tree(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    worker.event("started", execution="empty", task="t", evaluation=True)
    worker.event("ended", execution="empty", outcome="no_artifact")
    worker.call("probe", None, None, execution="nobody", wire="models")
    worker.close()
    assert build(log, out).ok
    [summary] = read_trees(out).executions()
    assert (summary.execution_id, summary.task, summary.outcome) == ("empty", "t", "no_artifact")
    assert summary.evaluation and summary.skipped is None and summary.calls == 0
    assert read_trees(out).tree("empty").nodes == []


def test_a_later_attempt_has_a_tree_of_its_own_and_may_build_on_rows_of_the_first(
    log: LogBuilder, out: Path
) -> None:
    worker = log.worker()
    growing_run(worker, 3, execution="again")
    first = log.truth["again-00002", 0, 0]
    assert first.prompt and first.output
    worker.event("started", execution="again", task="t")
    worker.event("ended", execution="again", outcome="failed")
    worker.call(
        "second", [*first.prompt[:50], 9], [8], first.messages, parent=("again-00002", 0, 0),
        execution="again", execution_attempt=1,
    )  # fmt: skip
    worker.close()
    assert build(log, out).ok
    old, new = read_trees(out).executions()
    assert (old.superseded, old.outcome, new.superseded, new.outcome) == (True, "failed", False, None)
    assert new.task == "t"
    tree = read_trees(out).tree("again")
    assert tree.execution_attempt == 1
    assert np.concatenate([node.token_ids for node in tree.nodes]).tolist() == [*first.prompt[:50], 9, 8]
    assert len(read_trees(out).tree("again", 0).links) == 3


def test_an_evaluation_has_no_targets(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    worker.event("started", execution="a", evaluation=True)
    growing_run(worker, 2, execution="a")
    worker.close()
    build(log, out)
    [summary] = read_trees(out).executions()
    assert (summary.targets, summary.untrained) == (0, {"evaluation": 20})
    assert read_trees(out).advantages() == {}


BROKEN: dict[str, tuple[Callable[[Worker], object], str]] = {}


def broken(text: str) -> Callable[[Callable[[Worker], object]], Callable[[Worker], object]]:
    def register(write: Callable[[Worker], object]) -> Callable[[Worker], object]:
        BROKEN[write.__name__] = (write, text)
        return write

    return register


def second(worker: Worker, **columns: Any) -> None:
    """Two calls, the second of which goes on from the first."""
    worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.call("x2", [1, 2, 3, 4, 5], [6], execution="x", parent=("x1", 0, 0), **columns)


@broken("`x2` cannot be rebuilt: `gone` is missing")
def missing_parent(worker: Worker) -> None:
    second(worker, parent_call_id="gone")


@broken("`x2` cannot be rebuilt: its parents form no chain")
def cycle(worker: Worker) -> None:
    second(worker, parent_call_id="x2")


@broken("`x2` shares 5 ids with `x1`, which has 4")
def shared_too_much(worker: Worker) -> None:
    second(worker, prompt_shared=5, prompt_tokens=6)


@broken("`x2` shares 9 messages with `x1`, which has 1")
def shared_messages(worker: Worker) -> None:
    second(worker, messages_shared=9)


@broken("`x1` shares with a parent and names none")
def no_parent_named(worker: Worker) -> None:
    worker.call("x1", [1, 2, 3], [4], execution="x", messages_shared=1)


@broken("its prompt ids are not those that were captured")
def digest(worker: Worker) -> None:
    second(worker, prompt_digest=digest_of([1]))


@broken("`x2` should have 7 prompt ids and has 5")
def length(worker: Worker) -> None:
    second(worker, prompt_tokens=7)


@broken("`x2` has a prompt length without ids")
def ids_without_length(worker: Worker) -> None:
    second(worker, prompt_suffix=None)


@broken("`x2` claims exact capture with 1 output ids and 0 log-probabilities")
def logprobs(worker: Worker) -> None:
    second(worker, logprobs=b"")


@broken("`x2` has a version span 0-9 over 1 output ids")
def spans(worker: Worker) -> None:
    second(worker, version_spans=[VersionSpan("1", 0, 9)])


@broken("`x1` is in the log twice, with different content")
def twins(worker: Worker) -> None:
    worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.call("x1", [1, 2, 3], [5], execution="x")


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_execution_is_skipped_by_name_and_stops_no_other(
    log: LogBuilder, out: Path, name: str, sealed: bool
) -> None:
    write, text = BROKEN[name]
    write_some(log, "ab")
    worker = log.worker()
    write(worker)
    worker.close()
    write_some(log, "c")
    if sealed:
        seal(log.root)
    report = build(log, out)
    assert not report.ok and list(report.skipped) == ["x"] and text in report.skipped["x"]
    assert report.totals["skipped"] == [
        {"execution_id": "x", "execution_attempt": 0, "reason": report.skipped["x"]}
    ]
    assert [summary.execution_id for summary, _ in read_trees(out)] == ["a", "b", "c"]
    with pytest.raises(TreeError, match="could not be rebuilt"):
        read_trees(out).tree("x")
    before = times_in(out)
    assert build(log, out).rebuilt == 1
    assert times_in(out) == before
    with pytest.raises(ExecutionError, match="execution `x`"):
        build(log, out.with_name("strict"), strict=True)


def test_a_row_that_was_written_twice_counts_once(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    record = worker.call("x1", [1, 2, 3], [4], execution="x")
    worker.close()
    seal(log.root)
    other = log.worker("w1")
    other.segment.append([record])
    other.close()
    seal(log.root)
    assert build(log, out).ok
    assert len(read_trees(out).tree("x").links) == 1


def test_clocks_that_run_backwards_are_told(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    worker.call("x1", [1, 2, 3], [4], execution="x", started_ns=9_000_000_000, ended_ns=8_000_000_000)
    worker.call(
        "x2", [1, 2, 3, 4, 5], [6], execution="x", parent=("x1", 0, 0), started_ns=1_000, ended_ns=2_000
    )
    worker.close()
    report = build(log, out)
    assert report.ok
    texts = [each["text"] for each in report.totals["problems"]]
    assert any("`x1` ended before it started" in text for text in texts)
    assert any("`x2` started before `x1`" in text for text in texts)


def newest(folder: Path) -> Path:
    return max(folder.iterdir())


@pytest.mark.parametrize("column", ["call_id", "prompt_suffix_ids.list.element", "response"])
def test_a_damaged_page_costs_the_executions_that_have_rows_there(
    log: LogBuilder, out: Path, column: str
) -> None:
    write_some(log, "ab")
    seal(log.root)
    write_some(log, "z")
    seal(log.root)
    damage(newest(log.root / "calls"), column)
    report = build(log, out)
    assert list(report.skipped) == ["z"] and "cannot be read" in report.skipped["z"]
    assert {each.code for each in report.findings} == {"corrupt_file"}
    assert len(list(read_trees(out))) == 2
    with pytest.raises((ExecutionError, CorruptLogError)):
        build(log, out.with_name("strict"), strict=True)


def test_what_was_damaged_is_built_once_it_is_whole(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    seal(log.root)
    path = newest(log.root / "calls")
    whole = path.read_bytes()
    damage(path, "output_ids.list.element")
    assert list(build(log, out).skipped) == ["a", "b"]
    path.write_bytes(whole)
    assert build(log, out).ok
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_a_damaged_column_that_says_whose_rows_they_are_is_told(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    seal(log.root)
    damage(newest(log.root / "calls"), "execution_id")
    report = build(log, out)
    assert not report.ok and "corrupt_file" in {each.code for each in report.findings}
    with pytest.raises(CorruptLogError):
        build(log, out.with_name("strict"), strict=True)


def test_a_message_that_is_missing_costs_those_who_need_it(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    seal(log.root)
    write_told(log)
    seal(log.root)
    newest(log.root / "messages").unlink()
    report = build(log, out)
    assert list(report.skipped) == ["told"] and "is not in the log" in report.skipped["told"]


KILLED = """
import os, sys
from gyre.treebuilder import build_trees
from tests.trees.store.logs import SMALL
log, out, at = sys.argv[1:]
build_trees(log, out, limits=SMALL, progress=lambda done, *_: done == int(at) and os._exit(9))
"""


@pytest.mark.parametrize(("at", "left"), [(1, 6), (4, 4), (6, 2)])
def test_a_build_that_was_killed_is_taken_up_by_the_next(
    log: LogBuilder, out: Path, at: int, left: int
) -> None:
    write_some(log)
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", KILLED, str(log.root), str(out), str(at)], cwd=root)
    assert done.returncode == 9
    with pytest.raises(TreeError, match="did not finish") as refused:
        read_trees(out)
    assert "build` again" in refused.value.hint
    report = build(log, out)
    assert report.ok and report.rebuilt == left
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


@pytest.mark.parametrize("table", ["executions", "nodes", "links", "trajectories"])
def test_a_file_of_trees_that_is_gone_or_damaged_is_built_again(
    log: LogBuilder, out: Path, table: str
) -> None:
    write_some(log)
    build(log, out)
    before = files_in(out)
    (out / table / "part-00000.parquet").unlink()
    (out / table / "part-00001.parquet").write_bytes(b"PAR1 no more")
    assert build(log, out).ok
    assert files_in(out) == before


def test_what_cannot_be_copied_any_more_is_built_again(log: LogBuilder, out: Path) -> None:
    write_some(log, "ab")
    build(log, out, limits=Limits())
    damage(out / "nodes" / "part-00000.parquet", "token_ids.list.element")
    write_some(log, "c")
    assert build(log, out, limits=Limits()).rebuilt == 3
    build(log, out.with_name("at-once"), limits=Limits())
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_files_of_two_builds_are_never_taken_for_one(log: LogBuilder, out: Path) -> None:
    """As a kill between two renames leaves them."""
    write_some(log)
    build(log, out, options=Options(cap=1))
    old = (out / "nodes" / "part-00000.parquet").read_bytes()
    build(log, out)
    before = files_in(out)
    (out / "nodes" / "part-00000.parquet").write_bytes(old)
    with pytest.raises(TreeError, match="did not finish"):
        read_trees(out)
    assert build(log, out).rebuilt == 2
    assert files_in(out) == before


@contextmanager
def no_file_longer_than(count: int) -> Iterator[None]:
    """As a disk with so much room would: writing beyond it fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("count", [0, 100, 3000])
def test_a_full_disk_is_told_and_leaves_what_was_there(log: LogBuilder, out: Path, count: int) -> None:
    write_some(log, "abc")
    build(log, out)
    write_some(log, "def")
    with no_file_longer_than(count), pytest.raises(TreeError, match="cannot write") as told:
        build(log, out)
    assert str(out) in told.value.message
    assert not [name for name in files_in(out) if name.endswith(".tmp")]
    assert build(log, out).rebuilt == 3
    build(log, out.with_name("at-once"))
    assert files_in(out) == files_in(out.with_name("at-once"))


def test_what_is_no_log_makes_no_folder(tmp_path: Path, out: Path) -> None:
    with pytest.raises(LogFormatError):
        build_trees(tmp_path / "nothing", out)
    assert not out.exists()


def test_a_folder_with_other_files_is_not_built_into(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    out.mkdir()
    (out / ".gyre-trees.json.tmp").write_text("left by a kill")
    build(log, out)
    (out / "gyre-trees.json").unlink()
    (out / "thesis.tex").write_text("dear to me")
    with pytest.raises(TreeError, match="holds other files"):
        build(log, out)


def test_two_builds_at_a_time_are_refused(log: LogBuilder, out: Path) -> None:
    write_some(log, "a")
    refused: list[str] = []

    def again(*_: object) -> None:
        with pytest.raises(TreeError) as problem:
            build(log, out)
        refused.append(problem.value.message)

    build(log, out, progress=again)
    assert refused == [f"another process builds into `{out}`"]


TOKENIZERS = '''
from types import SimpleNamespace

class Tokenizer:
    """One token a word."""

    @staticmethod
    def from_file(path):
        with open(path) as file:
            if "broken" in file.read():
                raise Exception("expected value at line 1")
        return Tokenizer()

    def encode(self, text, add_special_tokens=True):
        return SimpleNamespace(ids=text.split())
'''


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A tokenizer.json, and a package that reads it."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "tokenizers.py").write_text(TOKENIZERS)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "tokenizers", raising=False)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    yield path
    sys.modules.pop("tokenizers", None)


def text_log(log: LogBuilder) -> None:
    worker = log.worker()
    talk = [message("say one two"), message("three four", "assistant"), message("go on now please")]
    worker.call(
        "t1", None, None, talk[:1], execution="t", response=b'{"role":"assistant","content":"three four"}'
    )
    worker.call("t2", None, None, talk, execution="t", parent=("t1", 0, 0), response=b'"five six seven"')
    worker.close()


def test_texts_without_ids_are_a_tree_of_blocks_for_analysis(log: LogBuilder, out: Path) -> None:
    text_log(log)
    report = build(log, out)
    assert report.ok and report.totals["executions"]["text_only"] == 1
    [(summary, tree)] = read_trees(out)
    assert not tree.exact and summary.targets == 0
    assert [len(node.token_ids) for node in tree.nodes] == [1, 1, 1, 1]


def test_a_tokenizer_counts_them(log: LogBuilder, out: Path, tokenizer: Path) -> None:
    text_log(log)
    write_some(log, "a")
    build(log, out)
    report = build(log, out, tokenizer=tokenizer)
    assert report.rebuilt == 2
    rows = stored_nodes(out)
    assert [row["text_tokens"] for row in rows if row["execution_id"] == "t"] == [3, 2, 4, 3]
    assert {row["text_tokens"] for row in rows if row["execution_id"] == "a"} == {None}


def stored_nodes(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(out / "nodes").to_pylist()
    return rows


def test_a_tokenizer_that_cannot_be_used_is_told(log: LogBuilder, out: Path, tokenizer: Path) -> None:
    text_log(log)
    with pytest.raises(TreeError, match=r"cannot read .*none\.json"):
        build(log, out, tokenizer=out.with_name("none.json"))
    tokenizer.write_text("broken")
    with pytest.raises(TreeError, match="is no tokenizer: expected value"):
        build(log, out, tokenizer=tokenizer)


def test_without_the_package_a_tokenizer_names_it(
    log: LogBuilder, out: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text_log(log)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TreeError, match="`tokenizers`") as told:
        build(log, out, tokenizer=tokenizer)
    assert told.value.hint == "pip install tokenizers"
