"""How each program is started: its command, its environment and its configuration, in a fresh home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.harnesses.programs import program
from tests.trees.export.venvs import python_with

MODEL = "fake-model"
PIN = "mini-swe-agent==2.4.6"


class Ran(NamedTuple):
    code: int
    """124 where it did not end in time."""
    out: str
    err: str


@dataclass
class Agent:
    """A program that can be told something; `run` gives it the task as its last argument."""

    home: Path
    command: Sequence[str]
    env: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.home / "work"

    def run(self, *arguments: str, timeout: float = 60) -> Ran:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Ran(124, *process.communicate())
        return Ran(process.returncode, out, err)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Nothing of the caller's environment reaches it, and it owns its process group."""
        (self.home / "tmp").mkdir(parents=True, exist_ok=True)
        self.workspace.mkdir(exist_ok=True)
        places = {"HOME": str(self.home), "TMPDIR": str(self.home / "tmp"), "PATH": os.environ["PATH"]}
        return subprocess.Popen(
            [*self.command, *arguments],
            env=places | self.env,
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def claude_code(home: Path, url: str, *flags: str, **env: str) -> Agent:
    """`url` is the execution's, without `/v1`."""
    command = [str(program("claude")), *flags, "--dangerously-skip-permissions"]
    quiet = {
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    there = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "dummy", "ANTHROPIC_MODEL": MODEL}
    return Agent(home, [*command, "--output-format", "json", "-p"], quiet | there | env)


def codex(home: Path, url: str, **settings: object) -> Agent:
    """`settings` go to the top level of its configuration."""
    lines = {"model": MODEL, "model_provider": "gyre", **settings}
    provider = {"name": "gyre", "base_url": f"{url}/v1", "env_key": "GYRE_KEY", "wire_api": "responses"}
    folder = home / ".codex"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        "\n".join([*_toml(lines), "[model_providers.gyre]", *_toml(provider), ""])
    )
    flags = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return Agent(home, [str(program("codex")), "exec", *flags], {"GYRE_KEY": "dummy"})


def qwen_code(home: Path, url: str, settings: Mapping[str, object] | None = None) -> Agent:
    folder = home / ".qwen"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps(settings or {}))
    env = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "dummy", "OPENAI_MODEL": MODEL}
    flags = ["--yolo", "--auth-type", "openai", "--output-format", "json", "-p"]
    return Agent(home, [str(program("qwen")), *flags], env)


def opencode(home: Path, url: str, window: int = 200_000, answer: int = 4096, name: str = MODEL) -> Agent:
    """Tokens: from what it believes the `window` to have, less the longest `answer`, it compacts."""
    model = {"name": name, "limit": {"context": window, "output": answer}}
    options = {"baseURL": f"{url}/v1", "apiKey": "dummy"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "gyre", "options": options}
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    providers = {"gyre": {**provider, "models": {name: model}}}
    settings = {"provider": providers, "model": f"gyre/{name}", "permission": "allow"}
    (folder / "opencode.json").write_text(json.dumps(settings))
    quiet = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return Agent(home, [str(program("opencode")), "run", "--format", "json"], quiet)


def mini_swe_agent(home: Path, url: str, *flags: str, model: str = MODEL) -> Agent:
    """It leaves its answer in `last.json` of its workspace."""
    python = python_with("mini-swe-agent", [PIN], pins=PIN)
    env = {
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": "dummy",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    usual = ["--exit-immediately", "-y", "-l", "0", "-o", "last.json", "-m", f"openai/{model}"]
    return Agent(home, [str(python.with_name("mini")), *usual, *flags, "-t"], env)


def _toml(values: Mapping[str, object]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]
