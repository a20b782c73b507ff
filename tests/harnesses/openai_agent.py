"""A program: an agent of the published package openai-agents with a shell as its tool, streamed.

    python -P openai_agent.py BASE_URL MODEL WIRE TASK

`-P`: the package `agents` must not be taken for the module beside this file.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from openai import AsyncOpenAI


@function_tool
def bash(command: str) -> str:
    """Runs a command with sh and gives what it prints."""
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True).stdout


async def main(base_url: str, model: str, wire: str, task: str) -> None:
    client = AsyncOpenAI(base_url=base_url, api_key="dummy")
    kind = OpenAIChatCompletionsModel if wire == "chat" else OpenAIResponsesModel
    speaks = kind(model=model, openai_client=client)
    agent = Agent(name="worker", instructions="Use the tool.", model=speaks, tools=[bash])
    result = Runner.run_streamed(agent, task, run_config=RunConfig(tracing_disabled=True))
    async for _ in result.stream_events():
        pass
    print(result.final_output)
    await client.close()


asyncio.run(main(*sys.argv[1:]))
