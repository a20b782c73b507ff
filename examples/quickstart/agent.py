"""The agent of `agent_tiny.py` for a model that has to be shown how, on the official `openai` client.

    python agent.py --family write|copy MODEL "WHAT TO DO"

`write` has the same commands, each a message of a chat. `copy` looks like a terminal, for engines that are
given the template `plain.jinja`. There is no shell behind it: three of its words do what the commands do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agent_tiny import TOKENS, TURNS, act
from openai import OpenAI

RULES = "You work on files. Commands: READ file, WRITE file text, DONE. Answer with one command."
Turn = tuple[str, str]
"""(role, what is said)"""


def terminal(command: str) -> str | None:
    """`act`, spoken to as if it were a shell."""
    match command.split():
        case ["exit"]:
            return None
        case ["cat", name]:
            return act(f"READ {name}")
        case ["echo", word, ">", name] if act(f"WRITE {name} {word}") == "OK":
            return ""
    return "ERROR"


class Family(NamedTuple):
    """How a conversation looks."""

    shown: list[Turn]
    """What stands before the task."""
    task: str
    """With a place for the instruction."""
    act: Callable[[str], str | None]
    how: dict[str, Any]
    """For every request."""


def written(word: str, name: str) -> list[Turn]:
    task = f"Write the word {word} to the file {name}."
    return [("user", task), ("assistant", f"WRITE {name} {word}"), ("user", "OK"), ("assistant", "DONE")]


def copied(word: str, given: str, goal: str) -> list[Turn]:
    return [
        ("user", f"Task: Copy {given} to {goal}."),
        ("assistant", f" cat {given}"),
        ("user", word),
        ("assistant", f" echo {word} > {goal}"),
        ("assistant", " exit"),
    ]


FAMILIES = {
    "write": Family(
        shown=[("system", RULES), *written("river", "log.txt"), *written("stone", "todo.txt")],
        task="{}",
        act=act,
        how={},
    ),
    "copy": Family(
        shown=[*copied("river", "sky.txt", "sea.txt"), *copied("stone", "sun.txt", "tea.txt")],
        task="Task: {}",
        act=terminal,
        # A line is a message, its end included: the next prompt then goes on from the very tokens.
        how={"stop": ["\n"], "extra_body": {"include_stop_str_in_output": True}},
    ),
}


def work(client: OpenAI, model: str, family: Family, task: str) -> bool:
    """Whether the model said by itself that it is done."""
    messages: Any = [{"role": role, "content": said} for role, said in family.shown]
    messages.append({"role": "user", "content": family.task.format(task.strip())})
    for _ in range(TURNS):
        answer = client.chat.completions.create(
            model=model, messages=messages, max_tokens=TOKENS, **family.how
        )
        said = answer.choices[0].message.content or ""
        print(said.strip(), flush=True)
        told = family.act(said.strip().partition("\n")[0])
        if told is None:
            return True
        print(f"> {told}")
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return False


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--family", choices=FAMILIES, required=True)
    options.add_argument("model")
    options.add_argument("task")
    given = options.parse_args()
    if not work(OpenAI(), given.model, FAMILIES[given.family], given.task):
        Path(".unfinished").touch()


if __name__ == "__main__":
    main()
