"""OpenCode: chat/completions, a session per agent, titles on the side, summaries of a rendered transcript."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import Ran, opencode
from tests.harnesses.rig import Plans, Rig, chain

pytestmark = [pytest.mark.harness, pytest.mark.slow, pytest.mark.timeout(300)]

TASK = "MAINTASK"
DONE = Step(text="done")
ONE = Step(commands=("echo one",))
CHILDREN: Plans = {
    "SUBA": (Step(commands=("echo a",)), Step(text="found what a is")),
    "SUBB": (Step(commands=("echo b",)), Step(text="found what b is")),
}
BOTH = ("SUBA: look at the left", "SUBB: look at the right")
TITLE = {"MAINTASK-0 in short": "side: side"}
"""It has no tools, so the script takes it for a request to sum up."""


def run(
    tmp_path: Path, *steps: Step, children: Plans | None = None, window: int = 200_000
) -> tuple[Rig, Ran]:
    with Rig(tmp_path, {TASK: steps, **(children or {})}, restore_arguments=True) as rig:
        ran = opencode(rig.home, rig.url, window).run(TASK, timeout=120)
    return rig, ran


def test_parallel_tool_calls_and_their_thinking_come_back_as_the_same_ids(tmp_path: Path) -> None:
    first = Step(commands=("echo one", "echo two"), thinking="two at once")
    rig, ran = run(tmp_path, first, Step(commands=("echo three",)), DONE)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out
    assert rig.story() == TITLE | chain(TASK, 3)


def test_agents_block_the_call_that_started_them(tmp_path: Path) -> None:
    rig, ran = run(tmp_path, Step(delegates=BOTH), DONE, children=CHILDREN)
    assert ran.code == 0
    started = "sub: delegation blocking <- MAINTASK-1"
    assert rig.story() == TITLE | chain(TASK, 2) | chain("SUBA", 2, started) | chain("SUBB", 2, started)


def test_a_summary_of_the_transcript_begins_a_second_context(tmp_path: Path) -> None:
    long = Step(commands=("seq -s ' ' 1 3000", "seq -s ' ' 5001 8000"))
    rig, ran = run(tmp_path, ONE, long, Step(commands=("echo three",)), DONE, window=60_000)
    assert ran.code == 0
    assert rig.story() == TITLE | chain(TASK, 3) | {
        "MAINTASK-3 in short": "main_summary: compaction summary <- MAINTASK-3",
        "MAINTASK-4": "main: compaction restart <- MAINTASK-3 in short",
    }
    assert rig.link("MAINTASK-3 in short").family == "rendered_transcript"
    rig.trained_once()


def test_refused_and_broken_calls_come_again(tmp_path: Path) -> None:
    slow = {"status": 429, "text": "slow down", "headers": {"retry-after": "1"}}
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": 4},))
    rig, ran = run(tmp_path, ONE, broken, Step(text="done", faults=(slow,)))
    assert ran.code == 0
    tries = {f"before MAINTASK-{i}": f"main: retry <- MAINTASK-{i}" for i in (2, 3)}
    assert rig.story() == TITLE | chain(TASK, 3) | tries
