"""Qwen Code: chat/completions, no label of any kind, arguments written anew, a recovery of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import Ran, qwen_code
from tests.harnesses.rig import OVERFLOW, Plans, Rig, chain

pytestmark = pytest.mark.harness

TASK = "MAINTASK"
DONE = Step(text="done")
ONE = Step(commands=("echo one",))
CHILDREN: Plans = {
    "SUBA": (Step(commands=("echo a",)), Step(text="found what a is")),
    "SUBB": (Step(commands=("echo b",)), Step(text="found what b is")),
}
BOTH = ("SUBA: look at the left", "SUBB: look at the right")
SMALL_WINDOW = {"model": {"generationConfig": {"contextWindowSize": 127_000}}}
"""Tokens. It compacts from 94,000 on, refuses from 104,000 on, and begins with 76,000."""
LONG = "seq -s ' ' 1 5000; sleep 0.3"
"""24,000 characters. Of a command that ends at once with so many it may lose some."""


def run(tmp_path: Path, *steps: Step, children: Plans | None = None, window: bool = False) -> tuple[Rig, Ran]:
    """It writes arguments of tool calls anew; the proxy is told to put back what was sampled."""
    with Rig(tmp_path, {TASK: steps, **(children or {})}, restore_arguments=True) as rig:
        ran = qwen_code(rig.home, rig.url, SMALL_WINDOW if window else None).run(TASK)
    return rig, ran


def test_parallel_tool_calls_and_their_thinking_come_back_as_the_same_ids(tmp_path: Path) -> None:
    """It writes arguments anew; the proxy puts back what was sampled."""
    first = Step(commands=("echo one", "echo two"), thinking="two at once")
    rig, ran = run(tmp_path, first, Step(commands=("echo three",)), DONE)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out
    assert rig.story() == chain(TASK, 3)


def test_without_being_told_the_proxy_sends_what_it_wrote(tmp_path: Path) -> None:
    with Rig(tmp_path, {TASK: (ONE, DONE)}) as rig:
        assert qwen_code(rig.home, rig.url).run(TASK).code == 0
    assert rig.story() == {"MAINTASK-1": "main: start", "MAINTASK-2": "main: retokenized <- MAINTASK-1"}


def test_background_agents_hang_under_the_call_that_launched_them(tmp_path: Path) -> None:
    rig, ran = run(
        tmp_path, Step(delegates=BOTH), Step(commands=("echo meanwhile",)), DONE, children=CHILDREN
    )
    assert ran.code == 0
    story = rig.story()
    children = {name: said for name, said in story.items() if name.startswith("SUB")}
    launched = "sub: delegation background <- MAINTASK-1"
    assert children == chain("SUBA", 2, launched) | chain("SUBB", 2, launched)
    # The last calls of the parent read what the children have to tell, together or one by one.
    main = {name: said for name, said in story.items() if name not in children}
    assert main == chain(TASK, len(main)) and len(main) >= 4


def test_agents_in_the_foreground_block_their_parent(tmp_path: Path) -> None:
    both = Step(delegates=BOTH, arguments={"run_in_background": False})
    rig, ran = run(tmp_path, both, DONE, children=CHILDREN)
    assert ran.code == 0
    started = "sub: delegation blocking <- MAINTASK-1"
    assert rig.story() == chain(TASK, 2) | chain("SUBA", 2, started) | chain("SUBB", 2, started)


def test_a_compaction_begins_a_second_context_with_the_last_round_kept(tmp_path: Path) -> None:
    steps = [Step(commands=(command,)) for command in ("echo one", LONG, "echo three", "echo four")]
    rig, ran = run(tmp_path, *steps, DONE, window=True)
    assert ran.code == 0
    assert rig.story() == chain(TASK, 3) | {
        "MAINTASK-3 in short": "main_summary: compaction summary <- MAINTASK-3",
        "MAINTASK-4": "main: compaction restart <- MAINTASK-3 in short",
        # It puts a reminder before the summary, in the same message.
        "MAINTASK-5": "main: rewritten <- MAINTASK-4",
    }
    assert rig.link("MAINTASK-4").family == "kept_tail"
    rig.trained_once()


def test_a_refused_call_comes_again(tmp_path: Path) -> None:
    busy = {"status": 429, "text": "slow down", "headers": {"retry-after": "1"}}
    rig, ran = run(tmp_path, ONE, Step(text="done", faults=(busy,)))
    assert ran.code == 0
    assert rig.story() == chain(TASK, 2) | {"before MAINTASK-2": "main: retry <- MAINTASK-2"}
    assert [row.http_status for row in rig.rows] == [200, 429, 200]


def test_a_prompt_that_is_too_long_is_compacted(tmp_path: Path) -> None:
    steps = [ONE, Step(commands=("echo two",)), Step(commands=("echo three",), faults=(OVERFLOW,)), DONE]
    rig, ran = run(tmp_path, *steps)
    assert ran.code == 0 and "done (MAINTASK-4)" in ran.out
    assert rig.story() == chain(TASK, 2) | {
        "row 2": "main: continuation <- MAINTASK-2",
        "MAINTASK-2 in short": "main_summary: compaction summary <- MAINTASK-2",
        "MAINTASK-3": "main: compaction restart <- MAINTASK-2 in short",
        "MAINTASK-4": "main: rewritten <- MAINTASK-3",
    }
    assert [row.http_status for row in rig.rows] == [200, 200, 400, 200, 200, 200]


def test_a_stream_that_breaks_before_any_text_is_asked_for_again(tmp_path: Path) -> None:
    rig, ran = run(tmp_path, ONE, Step(text="done", faults=({"cut_after": 1},)))
    assert ran.code == 0
    assert rig.story() == chain(TASK, 2) | {"before MAINTASK-2": "main: retry <- MAINTASK-2"}


def test_a_stream_that_breaks_in_its_text_is_taken_up_where_it_broke(tmp_path: Path) -> None:
    """The rest is asked for with the words that came, and later stands in one message with them."""
    broken = Step(text="Now I look into it", commands=("echo two",), faults=({"cut_after": 4},))
    rig, ran = run(tmp_path, ONE, broken, DONE)
    assert ran.code == 0
    assert rig.story() == {
        "MAINTASK-1": "main: start",
        "row 1": "main: continuation <- MAINTASK-1",
        "MAINTASK-2": "main: continuation <- row 1",
        "MAINTASK-3": "main: rewritten <- MAINTASK-2",
    }
