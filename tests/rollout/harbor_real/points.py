"""Run with Harbor's Python: where its agents are pointed and what tells trials apart, as a line of JSON."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.environments.base import ExecResult
from harbor.models.agent.context import AgentContext
from harbor.models.trial.config import AgentConfig

LOGS = Path("jobs/first/reverse-lines__AbC1234/agent")
OWN = ("ClaudeCode", "Codex", "OpenCode", "QwenCode", "MiniSweAgent")


class Recorder:
    """In place of an environment: remembers what it is to run."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    async def exec(self, command: str, **_: Any) -> ExecResult:
        self.commands.append(command)
        return ExecResult(stdout="", stderr="", return_code=0)


def made(name: str, model: str, base_url: str, **kwargs: Any) -> Any:
    config = AgentConfig(name=name, model_name=model, base_url=base_url, kwargs=kwargs)
    AgentFactory.run_preflight(config)
    agent = AgentFactory.create_agent_from_config(config, logs_dir=LOGS)
    agent.session_id = "reverse-lines__AbC1234__agent"
    return agent


def url_of(name: str) -> str:
    model = "anthropic/m" if name == "ClaudeCode" else "openai/m"
    agent = made(f"own_url:{name}", model, "http://host:8400")
    return str(agent.model_connection.execution_base_url)


async def said_by_mini_swe_agent() -> str:
    environment = Recorder()
    agent = made("mini-swe-agent", "openai/m", "http://host:8400/v1")
    await agent.run("Do it.", environment, AgentContext())
    return "\n".join(environment.commands)


os.environ |= {"OPENAI_API_KEY": "token", "ANTHROPIC_API_KEY": "token"}
terminus = made("terminus-2", "openai/m", "http://host:8400/v1", session_id_headers=["x-gyre-execution"])
found = {
    "urls": {name: url_of(name) for name in OWN},
    "mini": asyncio.run(said_by_mini_swe_agent()),
    "terminus": terminus.options.session_id_headers,
}
print(json.dumps(found))
