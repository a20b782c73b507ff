"""An agent of one's own: a loop around the official `openai` client, a shell as its only tool.

    python agent.py --wire chat --model NAME "WHAT TO DO"

It knows nothing of gyre: OPENAI_BASE_URL and OPENAI_API_KEY say where the model is, and `gyre run` sets both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from typing import Any

from openai import OpenAI

RULES = "Use the tool. When everything is done, say DONE and nothing else."
CHECK = "Look with the tool whether it is done. If it is, say DONE and nothing else."
TOOL: dict[str, Any] = {
    "name": "bash",
    "description": "Runs a command with sh and gives what it prints.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    },
}


class Chat:
    """Messages as chat/completions has them."""

    def __init__(self, client: OpenAI, model: str, tokens: int) -> None:
        self.history: list[Any] = []
        self._client = client
        self._how: dict[str, Any] = {"model": model, "max_tokens": tokens}

    def ask(self) -> tuple[str, list[tuple[str, str]]]:
        """What the model says, and the tool calls that it wants: (id, arguments)."""
        tools: Any = [{"type": "function", "function": TOOL}]
        answer = self._client.chat.completions.create(messages=self.history, tools=tools, **self._how)
        message = answer.choices[0].message
        self.history.append(message)
        calls = [(call.id, call.function.arguments) for call in message.tool_calls or ()]
        return message.content or "", calls

    def result(self, call: str, output: str) -> None:
        self.history.append({"role": "tool", "tool_call_id": call, "content": output})


class Responses:
    """The same as Responses has it."""

    def __init__(self, client: OpenAI, model: str, tokens: int) -> None:
        self.history: list[Any] = []
        self._client = client
        self._how: dict[str, Any] = {"model": model, "max_output_tokens": tokens, "store": False}

    def ask(self) -> tuple[str, list[tuple[str, str]]]:
        tools: Any = [{"type": "function", "strict": False, **TOOL}]
        response = self._client.responses.create(input=self.history, tools=tools, **self._how)
        self.history += response.output
        calls = [(item.call_id, item.arguments) for item in response.output if item.type == "function_call"]
        return response.output_text, calls

    def result(self, call: str, output: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call, "output": output})


def work(model: Chat | Responses, task: str, turns: int) -> None:
    model.history.append({"role": "user", "content": f"{task}\n{RULES}"})
    for _ in range(turns):
        text, calls = model.ask()
        print(text, *(arguments for _, arguments in calls), sep="\n")
        for call, arguments in calls:
            model.result(call, run(arguments))
        if not calls:
            if text.startswith("DONE"):
                return
            model.history.append({"role": "user", "content": CHECK})


def run(arguments: str) -> str:
    """What the command prints; where there is no command, what is wrong."""
    try:
        command = json.loads(arguments)["command"]
    except (ValueError, KeyError, TypeError) as problem:
        return f"error: {problem!r}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, errors="replace")
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("task")
    options.add_argument("--wire", choices=["chat", "responses"], default="chat")
    options.add_argument("--model", required=True)
    options.add_argument("--turns", type=int, default=30)
    options.add_argument("--tokens", type=int, default=2000, help="of an answer, at most")
    given = options.parse_args()
    wire = Chat if given.wire == "chat" else Responses
    work(wire(OpenAI(), given.model, given.tokens), given.task, given.turns)


if __name__ == "__main__":
    main()
