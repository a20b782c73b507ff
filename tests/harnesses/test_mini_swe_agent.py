"""mini-swe-agent: plain chat/completions through litellm, one tool, no label of any kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import mini_swe_agent
from tests.harnesses.rig import Rig, chain

# The first of them makes the environment.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TASK = "MAINTASK"
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def test_an_answer_without_a_tool_call_is_left_out_and_calls_that_fail_come_again(tmp_path: Path) -> None:
    slow = {"status": 429, "text": "slow down", "headers": {"retry-after": "1"}}
    steps = [
        Step(commands=("echo one",), thinking="one first"),
        Step(commands=("echo two",), faults=({"text": "I forgot the tool", "tool_calls": ()},)),
        Step(commands=(SUBMIT,), faults=(slow, {"cut_after": 1})),
    ]
    with Rig(tmp_path, {TASK: steps}) as rig:
        agent = mini_swe_agent(rig.home, rig.url)
        ran = agent.run(TASK, timeout=120)
    assert ran.code == 0, ran.err
    assert rig.story() == chain(TASK, 3) | {
        "row 1": "main: continuation <- MAINTASK-1",
        "MAINTASK-2": "main: continuation response_absent <- row 1",
        "before MAINTASK-3": "main: retry <- MAINTASK-3",
        "before MAINTASK-3 (2)": "main: retry <- MAINTASK-3",
    }
    assert (agent.workspace / "last.json").is_file()
