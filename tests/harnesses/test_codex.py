"""Codex: Responses, translated; it labels everything it does, which says whether the tree is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import Ran, codex
from tests.harnesses.rig import OVERFLOW, Plans, Rig, chain, shape

pytestmark = pytest.mark.harness

TASK = "MAINTASK"
DONE = Step(text="done")
ONE = Step(commands=("echo one",))
CHILDREN: Plans = {
    "SUBA": (Step(commands=("echo a",)), Step(text="found what a is")),
    "SUBB": (Step(commands=("echo b",)), Step(text="found what b is")),
}
BOTH = ("SUBA: look at the left", "SUBB: look at the right")
LONG = ["seq -s ' ' 1 2000", "seq -s ' ' 5001 7000"]
"""19,000 characters together; it begins with 38,000."""


def run(tmp_path: Path, *steps: Step, children: Plans | None = None, **settings: object) -> tuple[Rig, Ran]:
    """What its labels say and what is found without them has to be the same."""
    with Rig(tmp_path, {TASK: steps, **(children or {})}) as rig:
        ran = codex(rig.home, rig.url, **settings).run(TASK)
    tree = rig.proven()
    assert not tree.disagreements and not tree.problems
    assert shape(rig.without_labels()) == shape(tree)
    return rig, ran


def test_parallel_tool_calls_come_back_as_the_same_ids(tmp_path: Path) -> None:
    first = Step(commands=("echo one", "echo two"), thinking="two at once")
    rig, ran = run(tmp_path, first, Step(commands=("echo three",)), DONE)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out
    assert rig.story() == chain(TASK, 3)
    assert {row.wire for row in rig.rows} == {"responses"}


def test_spawned_agents_hang_under_the_call_that_spawned_them(tmp_path: Path) -> None:
    steps = [Step(delegates=BOTH), Step(waits=True), Step(commands=("echo three",)), DONE]
    rig, ran = run(tmp_path, *steps, children=CHILDREN)
    assert ran.code == 0
    spawned = "sub: delegation background <- MAINTASK-1"
    assert rig.story() == chain(TASK, 4) | chain("SUBA", 2, spawned) | chain("SUBB", 2, spawned)


def test_a_compaction_begins_a_second_context(tmp_path: Path) -> None:
    steps = [ONE, Step(commands=LONG), Step(commands=("echo three",)), DONE]
    rig, ran = run(tmp_path, *steps, model_auto_compact_token_limit=50_000)
    assert ran.code == 0
    assert rig.story() == chain(TASK, 3) | {
        "MAINTASK-3 in short": "main_summary: compaction summary <- MAINTASK-3",
        "MAINTASK-4": "main: compaction restart <- MAINTASK-3 in short",
    }
    rig.trained_once()


def test_a_refused_call_comes_again_with_its_keys_in_another_order(tmp_path: Path) -> None:
    slow = {"status": 429, "text": "slow down", "headers": {"retry-after": "1"}}
    busy = {"status": 503, "text": "overloaded"}
    steps = [ONE, Step(commands=("echo two",), faults=(slow,)), Step(text="done", faults=(busy,))]
    rig, ran = run(tmp_path, *steps)
    assert ran.code == 0
    tries = {f"before MAINTASK-{i}": f"main: retry <- MAINTASK-{i}" for i in (2, 3)}
    assert rig.story() == chain(TASK, 3) | tries
    assert [row.http_status for row in rig.rows] == [200, 429, 200, 503, 200]


def test_a_prompt_that_is_too_long_ends_the_turn(tmp_path: Path) -> None:
    rig, ran = run(tmp_path, ONE, Step(text="done", faults=(OVERFLOW,) * 9))
    assert ran.code == 1 and "ran out of room in the model's context window" in ran.out
    assert [row.http_status for row in rig.rows] == [200, 400]


@pytest.mark.parametrize("events", [1, 4], ids=["before", "in"])
def test_a_stream_that_breaks_before_an_item_is_whole_is_asked_for_again(tmp_path: Path, events: int) -> None:
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": events},))
    rig, ran = run(tmp_path, ONE, broken, DONE)
    assert ran.code == 0
    story = rig.story()
    assert story.items() >= chain(TASK, 3).items()
    assert [said for name, said in story.items() if name not in chain(TASK, 3)] == [
        "main: retry <- MAINTASK-2"
    ]


def test_what_was_whole_before_a_stream_broke_is_kept(tmp_path: Path) -> None:
    """The message came, the tool call did not: the next prompt has the one without the other."""
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": 8},))
    rig, ran = run(tmp_path, ONE, broken, DONE)
    assert ran.code == 0
    assert rig.story() == {
        "MAINTASK-1": "main: start",
        "row 1": "main: continuation <- MAINTASK-1",
        "MAINTASK-2": "main: rewritten <- row 1",
        "MAINTASK-3": "main: continuation <- MAINTASK-2",
    }
