"""A log to a folder of trees, whatever the steps and the number of processes."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import Sampling
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.scores import Scored
from gyre.treebuilder import build_trees, read_log, read_trees
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline import standing
from gyre.treebuilder.offline.parts import Limits
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.verify import verify_trees
from tests.log.builders import LogBuilder, growing_run
from tests.trees.store.logs import SMALL, build, files_in, forget, go_on, times_in, write_some, write_told
from tests.trees.world.emit import View, in_commit_order, write_log
from tests.trees.world.story import FEW, Story, stories


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


@pytest.mark.parametrize("ids", [True, False])
def test_the_temperature_of_a_call_goes_from_the_log_to_its_link(
    log: LogBuilder, out: Path, ids: bool
) -> None:
    worker = log.worker()
    prompt, output = ((1, 2, 3), (4, 5)) if ids else (None, None)
    for name, temperature in (("warm", 0.7), ("cold", 0.0), ("unknown", None)):
        sampling = Sampling(temperature=temperature)
        worker.call(name, prompt, output, execution=name, sampling=sampling)
    worker.call("again", None, None, execution="warm", sampling=Sampling(0.7), delivery_of="warm")
    for at in ("journal", "sealed"):
        build(log, out.with_name(at))
        links = [link for _, tree in read_trees(out.with_name(at)) for link in tree.links]
        assert [link.temperature for link in links] == [0.7, None, 0.0, None]
        assert verify_trees(out.with_name(at)) == []
        seal(log.root)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (Sampling(), None),
        (Sampling(1.0), None),
        (Sampling(1.0, top_p=1.0), "neutral"),
        (Sampling(0.7, 1.0, 0, 0.0, 0.0, 0.0, 1.0), "neutral"),
        (Sampling(top_p=1.0, top_k=-1), "neutral"),
        (Sampling(1.0, top_p=0.9), "changed"),
        (Sampling(1.0, 1.0, top_k=20), "changed"),
        (Sampling(1.0, top_k=20), "changed"),
        (Sampling(1.0, 1.0, min_p=0.1), "changed"),
        (Sampling(1.0, 1.0, presence_penalty=0.5), "changed"),
        (Sampling(1.0, 1.0, frequency_penalty=-0.5), "changed"),
        (Sampling(1.0, 1.0, repetition_penalty=1.1), "changed"),
        (Sampling(1.0, repetition_penalty=1.1), "changed"),
    ],
)
def test_a_link_says_whether_sampling_was_from_the_whole_distribution(
    log: LogBuilder, out: Path, told: Sampling, expected: str | None
) -> None:
    worker = log.worker()
    worker.call("a", sampling=told, logprob_quality="raw")
    worker.call("b", None, None, execution="e2", sampling=told)
    worker.call("c", None, None, execution="e2", sampling=told, delivery_of="b")
    worker.close()
    build(log, out)
    links = [link for _, tree in read_trees(out) for link in tree.links]
    assert [link.sampling for link in links] == [expected, expected, None]
    assert [link.logprob_quality for link in links] == ["raw", "none", None]
    assert verify_trees(out) == []


def test_a_folder_of_an_earlier_schema_is_read_and_then_built_anew(
    log: LogBuilder, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_some(log, "ab")
    monkeypatch.setattr(standing, "SCHEMA_VERSION", 1)
    build(log, out)
    monkeypatch.undo()
    forget(out, "links", "logprob_quality", "sampling")
    links = [link for _, tree in read_trees(out) for link in tree.links]
    assert {(link.logprob_quality, link.sampling) for link in links} == {(None, None)}
    assert verify_trees(out) == []
    assert build(log, out).rebuilt == 2
    assert {link.logprob_quality for _, tree in read_trees(out) for link in tree.links} == {"sampled"}
    assert build(log, out).rebuilt == 0


def test_an_evaluation_has_no_targets(log: LogBuilder, out: Path) -> None:
    worker = log.worker()
    worker.event("started", execution="a", evaluation=True)
    growing_run(worker, 2, execution="a")
    worker.close()
    build(log, out)
    [summary] = read_trees(out).executions()
    assert (summary.targets, summary.untrained) == (0, {"evaluation": 20})
    assert read_trees(out).advantages() == {}


@settings(FEW, max_examples=15)
@given(st.lists(stories(max_actions=5), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_any_steps_give_the_bytes_of_one(told: list[Story], random: Random) -> None:
    with TemporaryDirectory() as folder:
        log, out = LogBuilder(Path(folder) / "logs"), Path(folder) / "trees"
        for step in range(3):
            for name, story in enumerate(told):
                rows = in_commit_order(story.act().rows)
                worker = log.worker(f"w{step}-{name}")
                write_log(
                    rows[len(rows) * step // 3 : len(rows) * (step + 1) // 3], worker, f"e{name}", View()
                )
                worker.close()
            if random.random() < 0.5:
                seal(log.root)
            build(log, out)
        build(log, out.with_name("at-once"))
        assert files_in(out) == files_in(out.with_name("at-once"))
