"""Seal gives rows better parents, and never changes what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, message

draw = np.random.default_rng(3)


def ids(count: int) -> list[int]:
    return draw.integers(0, 50_000, count).tolist()


def parents(root: Path) -> dict[str, tuple[str | None, int, int]]:
    columns = ["call_id", "parent_call_id", "prompt_shared", "messages_shared"]
    rows = read_log(root).calls.select(columns).to_pylist()
    return {r["call_id"]: (r["parent_call_id"], r["prompt_shared"], r["messages_shared"]) for r in rows}


def assert_unchanged(builder: LogBuilder) -> None:
    log = read_log(builder.root)
    for key, truth in builder.truth.items():
        got = log.prompt_ids(*key)
        assert (None if got is None else got.tolist()) == truth.prompt
        assert log.message_list(*key) == truth.messages
    assert check(builder.root).findings == []


def alternating(builder: LogBuilder, calls: int, step: int = 100) -> None:
    """One execution whose calls go to two workers in turn; each knows its own calls only."""
    workers = [builder.worker("w0"), builder.worker("w1")]
    last: list[tuple[str, int, int] | None] = [None, None]
    prompt, messages = ids(400), [message("system", "system")]
    for i in range(calls):
        output = ids(20)
        workers[i % 2].call(f"c{i}", prompt, output, messages, parent=last[i % 2])
        last[i % 2] = (f"c{i}", 0, 0)
        prompt = [*prompt, *output, *ids(step)]
        messages = [*messages, message(f"turn {i}")]
    for worker in workers:
        worker.die()


def test_calls_over_two_workers_become_one_chain(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    alternating(builder, 6)
    assert parents(tmp_path)["c1"] == (None, 0, 0)
    assert parents(tmp_path)["c4"][0] == "c2"
    report = seal(tmp_path)
    assert report.reparented == 5
    assert parents(tmp_path) == {
        "c0": (None, 0, 0),
        **{f"c{i}": (f"c{i - 1}", 400 + 120 * (i - 1) + 20, i) for i in range(1, 6)},
    }
    assert_unchanged(builder)


def test_a_call_after_a_restart_extends_a_sealed_one(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt, output = ids(500), ids(10)
    first = builder.worker("w1")
    first.call("c1", prompt, output)
    first.die()
    seal(tmp_path)
    second = builder.worker("w2")
    second.call("c2", [*prompt, *output, *ids(30)])
    second.die()
    assert seal(tmp_path).reparented == 1
    assert parents(tmp_path)["c2"] == ("c1", 510, 1)
    assert_unchanged(builder)


def test_a_sub_agent_shares_the_beginning_of_its_sibling(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    system = ids(700)
    worker = builder.worker()
    worker.call("a", [*system, *ids(300)])
    worker.call("b", [*system, *ids(300)])
    worker.die()
    seal(tmp_path)
    parent, shared, _ = parents(tmp_path)["b"]
    assert parent == "a"
    assert 640 <= shared <= 700
    assert_unchanged(builder)


def test_choices_of_one_call_share_its_prompt(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt = ids(600)
    worker = builder.worker()
    for choice in range(3):
        worker.call("c", prompt, ids(5), choice=choice)
    worker.die()
    seal(tmp_path)
    rows = read_log(tmp_path).calls.select(["choice", "parent_call_id", "prompt_shared"]).to_pylist()
    assert [(r["parent_call_id"], r["prompt_shared"]) for r in rows] == [(None, 0), ("c", 600), ("c", 600)]
    assert_unchanged(builder)


def test_other_executions_are_never_parents(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt = ids(600)
    worker = builder.worker()
    worker.call("a", prompt, execution="e1")
    worker.call("b", prompt, execution="e2")
    worker.die()
    assert seal(tmp_path).reparented == 0
    assert parents(tmp_path)["b"] == (None, 0, 0)


def test_a_later_row_is_never_a_parent(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt = ids(600)
    early, late = builder.worker("w1"), builder.worker("w2")
    early.call("early", prompt)
    late.call("late", [*prompt, *ids(10)])
    late.die()
    seal(tmp_path)
    early.die()
    assert seal(tmp_path).reparented == 0
    assert_unchanged(builder)


def test_short_prompts_that_stand_alone_are_left_alone(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    prompt = ids(200)
    worker.call("a", prompt)
    worker.call("b", prompt)
    worker.die()
    assert seal(tmp_path).reparented == 0


def test_calls_without_ids_find_a_parent_by_their_messages(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    history = [message(str(i)) for i in range(5)]
    one, two = builder.worker("w1"), builder.worker("w2")
    one.call("a", None, None, history)
    two.call("b", None, None, [*history, message("more")])
    one.call("c", None, None, [message("another start"), message("x")])
    for worker in (one, two):
        worker.die()
    seal(tmp_path)
    assert parents(tmp_path)["b"] == ("a", 0, 5)
    assert parents(tmp_path)["c"] == (None, 0, 0)
    assert_unchanged(builder)


def test_a_prompt_that_does_not_have_its_digest_is_not_touched(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt = ids(600)
    worker = builder.worker()
    worker.call("a", prompt)
    worker.call("b", prompt, prompt_digest=b"\x00" * 16)
    worker.die()
    assert seal(tmp_path).reparented == 0
    assert [finding.code for finding in check(tmp_path).findings] == ["prompt_digest"]


def test_a_row_whose_parent_is_lost_does_not_stop_the_seal(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    prompt = ids(600)
    worker, other = builder.worker("w1"), builder.worker("w2")
    worker.call("a", prompt)
    worker.call("b", [*prompt, *ids(100)], parent=("a", 0, 0), parent_call_id="gone")
    other.call("c", [*prompt, *ids(100)])
    for segment in (worker, other):
        segment.die()
    seal(tmp_path)
    assert parents(tmp_path)["c"][0] == "a"
    codes = {finding.code for finding in check(tmp_path).findings}
    assert codes == {"bad_parent", "cannot_rebuild"}


@pytest.mark.parametrize("calls", [60])
def test_the_sealed_log_of_alternating_workers_is_no_larger_than_of_one(tmp_path: Path, calls: int) -> None:
    alternating(LogBuilder(tmp_path), calls, step=1000)
    report = seal(tmp_path)
    # 4 bytes for every id that is new, once: 3 would be a third sharing lost.
    new = 4 * (400 + calls * 1020)
    assert report.sealed_bytes < 1.5 * new + 60_000


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 900)), max_size=8))
def test_whatever_the_branches_every_prompt_stays_the_same(
    tmp_path_factory: Any, plan: list[tuple[int, int, int]]
) -> None:
    builder = LogBuilder(tmp_path_factory.mktemp("log"))
    workers = [builder.worker(f"w{i}") for i in range(3)]
    prompts = [ids(300)]
    for i, (source, worker, cut) in enumerate(plan):
        prompt = [*prompts[source % len(prompts)][:cut], *ids(150)]
        output = ids(7)
        workers[worker].call(f"c{i}", prompt, output)
        prompts.append([*prompt, *output])
    for segment in workers:
        segment.die()
    seal(builder.root)
    assert_unchanged(builder)
