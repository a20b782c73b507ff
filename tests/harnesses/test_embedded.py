"""Real programs on the embedded engine: tools are really called, and every call is exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.agent_script import Step
from tests.harnesses.agents import claude_code, codex, opencode, qwen_code
from tests.harnesses.embedded import MODEL, EmbeddedRig
from tests.harnesses.rig import chain

TASK = "MAINTASK"
STEPS = [
    Step(commands=("echo one", "echo two"), text="two at once"),
    Step(commands=("seq 3",)),
    Step(text="done"),
]
AGENT = Path(__file__).parents[2] / "examples" / "openai-sdk" / "agent.py"
AGENTS = Path(__file__).with_name("openai_agent.py")


@pytest.mark.harness
@pytest.mark.timeout(400)
def test_claude_code(tmp_path: Path) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        ran = claude_code(rig.home, rig.url, "--bare", ANTHROPIC_MODEL=MODEL).run(TASK, timeout=200)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out, ran
    assert rig.story() == chain(TASK, 3)
    rig.trained_once()


@pytest.mark.harness
@pytest.mark.timeout(400)
def test_codex(tmp_path: Path) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        ran = codex(rig.home, rig.url, model=MODEL).run(TASK, timeout=200)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out, ran
    assert rig.story() == chain(TASK, 3)
    rig.trained_once()


@pytest.mark.harness
@pytest.mark.timeout(400)
def test_qwen_code(tmp_path: Path) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        agent = qwen_code(rig.home, rig.url)
        agent.env["OPENAI_MODEL"] = MODEL
        ran = agent.run(TASK, timeout=200)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out, ran
    assert rig.story() == chain(TASK, 3)
    rig.trained_once()


@pytest.mark.slow
@pytest.mark.harness
@pytest.mark.timeout(400)
def test_opencode(tmp_path: Path) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        ran = opencode(rig.home, rig.url, name=MODEL).run(TASK, timeout=200)
    assert ran.code == 0 and "done (MAINTASK-3)" in ran.out, ran
    assert chain(TASK, 3).items() <= rig.story().items()


@pytest.mark.slow
@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_openai_agents(tmp_path: Path, wire: str) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        command = [sys.executable, "-P", str(AGENTS), f"{rig.url}/v1", MODEL, wire, TASK]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and "done (MAINTASK-3)" in ran.stdout, ran.stderr
    assert rig.story() == chain(TASK, 3)
    rig.trained_once()


@pytest.mark.parametrize("wire", ["chat", "responses"])
def test_the_openai_sdk(tmp_path: Path, wire: str) -> None:
    with EmbeddedRig(tmp_path, {TASK: STEPS}) as rig:
        env = {"OPENAI_BASE_URL": f"{rig.url}/v1", "OPENAI_API_KEY": "dummy"}
        command = [sys.executable, str(AGENT), "--wire", wire, "--model", MODEL, TASK]
        ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    story = rig.story()
    assert chain(TASK, 3).items() <= story.items() and len(rig.rows) >= 3
    rig.trained_once()
