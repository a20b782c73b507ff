"""The real programs, started by their presets: they understand their arguments and their files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.log.live import TOKEN_ENV
from gyre.trainer.rollout.harness import PRESETS, Harness
from tests.engines.agent_script import AgentScript, Step
from tests.harnesses.agents import PIN
from tests.harnesses.programs import PINS, program
from tests.rollout.harnesses import Stage
from tests.trees.export.venvs import python_with

TOLD = '- MAINTASK: a file with 007 lines,  "quoted" {workspace}\nand more'
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
WORK = Step(commands=("echo made > made.txt",))


@pytest.fixture(autouse=True)
def guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy takes calls only from those who show its token as their key."""
    monkeypatch.setenv(TOKEN_ENV, "secret")


def ran(folder: Path, harness: Harness, executable: Path, *arguments: str, last: Step) -> Any:
    """Run it on two calls, and check what holds of every harness; gives the rows of its calls."""
    script = AgentScript({"MAINTASK": (WORK, last)})
    with Stage(folder, script=script) as stage:
        state = stage.run(
            arguments,
            harness=harness,
            program=str(executable),
            model="fake",
            instruction=TOLD,
            context=100_000,
            timeout_s=100,
            score="cat made.txt | wc -l",
        )
        rows = [row for row in stage.proxy.rows(2) if row.wire != "opaque"]
        prompts = [request.prompt_text for request in stage.engine.calls]
    assert (state.outcome, state.score, state.reason) == ("completed", 1, ""), Path(state.stderr).read_text()
    assert state.details["left_running"] == 0
    assert {row.identity.execution_id for row in rows} == {"e1"}
    assert all(row.capture_quality == "exact" for row in rows)
    assert all(row.model == "fake" for row in rows)
    assert any(TOLD in prompt for prompt in prompts)
    assert (Path(state.workspace) / "made.txt").read_text() == "made\n"
    return rows


@pytest.mark.harness
@pytest.mark.parametrize(
    ("harness", "command", "arguments"),
    [
        (Harness.CLAUDE_CODE, "claude", ("--bare",)),
        (Harness.CODEX, "codex", ("-c", "model_reasoning_effort=low")),
        (Harness.QWEN_CODE, "qwen", ("--bare",)),
    ],
)
def test_a_program_of_npm_works(
    tmp_path: Path, harness: Harness, command: str, arguments: tuple[str, ...]
) -> None:
    rows = ran(tmp_path, harness, program(command), *arguments, last=Step(text="done"))
    assert len(rows) == 2


@pytest.mark.harness
@pytest.mark.slow
def test_opencode_works_and_fetches_no_packages(tmp_path: Path) -> None:
    rows = ran(tmp_path, Harness.OPENCODE, program("opencode"), last=Step(text="done"))
    assert len(rows) == 3  # a title too
    assert not (tmp_path / "runs" / "e1" / "home" / ".npm" / "_cacache").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mini_swe_agent_works(tmp_path: Path) -> None:
    mini = python_with("mini-swe-agent", [PIN], pins=PIN).with_name("mini")
    rows = ran(tmp_path, Harness.MINI_SWE_AGENT, mini, last=Step(commands=(SUBMIT,)))
    assert len(rows) == 2
    assert (tmp_path / "runs" / "e1" / "home" / "trajectory.json").is_file()


@pytest.mark.parametrize("harness", Harness)
def test_what_presets_name_is_what_is_tested(harness: Harness) -> None:
    preset = PRESETS[harness]
    pins = PINS | {"mini": PIN}
    assert preset.install.split()[-1] == pins[os.path.basename(preset.program)]
