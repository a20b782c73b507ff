"""Claude Code: Messages, translated to an engine that gives ids for chat/completions alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import Ran, claude_code
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
LONG = [f"seq -s ' ' {first}0000 {first}4850" for first in (1, 2, 3, 4)]
"""29,100 characters each, just under what it takes of a command; 195,000 tokens with what it begins with."""


def run(tmp_path: Path, *steps: Step, children: Plans | None = None, **env: str) -> tuple[Rig, Ran]:
    """What its headers say of agents and what is found without them has to be the same."""
    with Rig(tmp_path, {TASK: steps, **(children or {})}) as rig:
        ran = claude_code(rig.home, rig.url, **env).run(TASK)
    assert shape(rig.without_labels()) == shape(rig.proven())
    return rig, ran


def test_parallel_tool_calls_and_their_thinking_come_back_as_the_same_ids(tmp_path: Path) -> None:
    first = Step(commands=("echo one", "echo two"), thinking="two at once")
    rig, ran = run(tmp_path, first, Step(commands=("echo three",)), DONE)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out
    assert rig.story() == chain(TASK, 3)
    assert {row.wire for row in rig.rows} == {"messages"}


def test_background_agents_hang_under_the_call_that_launched_them(tmp_path: Path) -> None:
    rig, ran = run(
        tmp_path, Step(delegates=BOTH), Step(commands=("echo meanwhile",)), DONE, children=CHILDREN
    )
    assert ran.code == 0
    story = rig.story()
    children = {name: said for name, said in story.items() if name.startswith("SUB")}
    launched = "sub: delegation background <- MAINTASK-1"
    assert children == chain("SUBA", 2, launched) | chain("SUBB", 2, launched)
    # The parent's later calls read what the children have to tell, together or one by one.
    main = {name: said for name, said in story.items() if name not in children}
    assert main == chain(TASK, len(main)) and len(main) >= 3


def test_agents_in_the_foreground_block_their_parent(tmp_path: Path) -> None:
    rig, ran = run(
        tmp_path, Step(delegates=BOTH), DONE, children=CHILDREN, CLAUDE_CODE_DISABLE_BACKGROUND_TASKS="1"
    )
    assert ran.code == 0
    started = "sub: delegation blocking <- MAINTASK-1"
    assert rig.story() == chain(TASK, 2) | chain("SUBA", 2, started) | chain("SUBB", 2, started)
    tree = rig.proven()
    assert not tree.disagreements and not tree.problems


def test_agents_whose_first_call_failed_over_to_another_engine_are_the_same_agents(tmp_path: Path) -> None:
    busy = {"status": 503, "text": "busy"}
    steps: dict[str, Sequence[Step]] = {TASK: (Step(delegates=BOTH), DONE)}
    for name, plan in CHILDREN.items():
        steps[name] = (replace(plan[0], faults=(busy,)), *plan[1:])
    with Rig(tmp_path, steps, engines=2) as rig:
        agent = claude_code(rig.home, rig.url, CLAUDE_CODE_DISABLE_BACKGROUND_TASKS="1")
        assert agent.run(TASK).code == 0
    started = "sub: delegation blocking <- MAINTASK-1"
    tries = {f"before {name}-1": f"sub: retry <- {name}-1" for name in CHILDREN}
    assert rig.story() == chain(TASK, 2) | chain("SUBA", 2, started) | chain("SUBB", 2, started) | tries
    assert shape(rig.without_labels()) == shape(rig.proven())


def test_a_usage_of_195000_tokens_gives_two_contexts_and_the_kept_round_counts_once(tmp_path: Path) -> None:
    """The usage is what the prompt really has, so that the row stays exact."""
    steps = [ONE, Step(commands=LONG), Step(commands=("echo three",)), Step(commands=("echo four",)), DONE]
    rig, ran = run(tmp_path, *steps, CLAUDE_CODE_AUTO_COMPACT_WINDOW="200000")
    assert ran.code == 0
    assert rig.story() == chain(TASK, 3) | {
        "MAINTASK-2 in short": "main_summary: compaction summary <- MAINTASK-2",
        "MAINTASK-4": "main: compaction restart <- MAINTASK-2 in short",
        "MAINTASK-5": "main: continuation <- MAINTASK-4",
    }
    assert rig.link("MAINTASK-3").prompt_tokens > 195_000
    assert rig.link("MAINTASK-4").family == "kept_tail"
    rig.trained_once()


def test_agents_of_agents_hang_under_them_and_are_compacted_like_them(tmp_path: Path) -> None:
    """A sub-agent's first words are gone after its compaction; its name stays."""
    steps = [
        Step(delegates=("SUBB: look further",)),
        Step(commands=LONG[:3]),
        Step(commands=("echo c",)),
        Step(commands=("echo d",)),
        Step(text="found what a is"),
    ]
    children = {"SUBA": steps, "SUBB": CHILDREN["SUBB"]}
    window = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "140000", "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
    rig, ran = run(tmp_path, Step(delegates=BOTH[:1]), DONE, children=children, **window)
    assert ran.code == 0
    main, deeper = chain(TASK, 2), chain("SUBB", 2, "sub: delegation nested <- SUBA-1")
    assert rig.story() == main | deeper | chain("SUBA", 3, "sub: delegation blocking <- MAINTASK-1") | {
        "SUBA-2 in short": "sub_summary: compaction summary <- SUBA-2",
        "SUBA-4": "sub: compaction restart <- SUBA-2 in short",
        "SUBA-5": "sub: continuation <- SUBA-4",
    }
    rig.trained_once()


def test_a_refused_call_comes_again(tmp_path: Path) -> None:
    slow = {"status": 429, "text": "slow down", "headers": {"retry-after": "1"}}
    busy = {"status": 529, "text": "overloaded"}
    steps = [ONE, Step(commands=("echo two",), faults=(slow,)), Step(text="done", faults=(busy,))]
    rig, ran = run(tmp_path, *steps)
    assert ran.code == 0
    tries = {f"before MAINTASK-{i}": f"main: retry <- MAINTASK-{i}" for i in (2, 3)}
    assert rig.story() == chain(TASK, 3) | tries
    assert [row.http_status for row in rig.rows] == [200, 429, 200, 529, 200]


def test_a_prompt_that_is_too_long_is_compacted(tmp_path: Path) -> None:
    """The engine's refusal reaches it in the words by which it knows it."""
    steps = [ONE, Step(commands=("echo two",)), Step(commands=("echo three",), faults=(OVERFLOW,)), DONE]
    rig, ran = run(tmp_path, *steps)
    assert ran.code == 0 and "done (MAINTASK-4)" in ran.out
    story = rig.story()
    assert story.items() >= (chain(TASK, 2) | {"MAINTASK-4": "main: continuation <- MAINTASK-3"}).items()
    assert story["MAINTASK-1 in short"] == "main_summary: compaction summary <- MAINTASK-1"
    assert story["MAINTASK-3"] == "main: compaction restart <- MAINTASK-1 in short"
    assert [row.http_status for row in rig.rows] == [200, 200, 400, 200, 200, 200]


@pytest.mark.parametrize("events", [1, 4], ids=["before", "in"])
def test_a_stream_that_breaks_before_a_block_is_whole_is_asked_for_again(tmp_path: Path, events: int) -> None:
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": events},))
    rig, ran = run(tmp_path, ONE, broken, DONE)
    assert ran.code == 0
    assert rig.story() == chain(TASK, 3) | {"before MAINTASK-2": "main: retry <- MAINTASK-2"}
    assert [row.outcome for row in rig.rows] == ["ok", "upstream_cut", "ok", "ok"]


def test_a_stream_that_breaks_after_its_text_ends_the_run(tmp_path: Path) -> None:
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": 8, "gap": 0.05},))
    rig, ran = run(tmp_path, ONE, broken, DONE)
    assert ran.code == 1 and "may be incomplete" in ran.out
    assert rig.story() == {"MAINTASK-1": "main: start", "row 1": "main: continuation <- MAINTASK-1"}
    assert rig.link("row 1").untrained == "outcome_upstream_cut"
