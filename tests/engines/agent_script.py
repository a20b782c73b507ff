"""A scripted model for real agents: it acts by what a request says, with the tools that the request offers.

    script = AgentScript(
        {
            "MAINTASK": (Step(commands=("ls",)), Step(delegates=("SUBTASK: look",)), Step(text="done")),
            "SUBTASK": (Step(commands=("pwd",)), Step(text="nothing to see")),
        }
    )
    with FakeEngine(script=script) as engine: ...        # and an agent that is told "MAINTASK"

Nothing is remembered but which faults have happened. Who asks is told by the names: the first plan whose
name stands in the messages, so parents come before children, and a child's prompt does not name its parent.
How far it is, by marks like `MAINTASK-2` that commands, tool-call ids, texts and summaries carry. So
parallel agents, retries and compacted histories each get the step that is theirs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.engines.script import Answer, Request, ToolCall

Json = dict[str, Any]

SHELLS = ("bash", "exec_command", "shell", "run_shell_command")
DELEGATES = ("agent", "task", "spawn_agent")
WAITS = ("wait_agent",)
"""Names of tools as harnesses give them, in lower case and without a namespace."""
REQUIRED = {"description": "a part of the work", "subagent_type": "general"}
"""Values of arguments that some harnesses require and that say nothing."""
TAGS = ("state_snapshot", "summary")
_INSTRUCTION = re.compile(
    r"\b(create|write|produce|generate|provide)\b.{0,80}\b(summary|snapshot)", re.I | re.S
)
_AGENT_ID = re.compile(r'"agent_id"\s*:\s*"([^"]+)"')


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the model does at one point of an agent's run; all of it in one answer."""

    text: str = ""
    thinking: str = ""
    commands: Sequence[str] = ()
    """For the shell, a tool call each."""
    delegates: Sequence[str] = ()
    """Prompts for sub-agents, a tool call each."""
    waits: bool = False
    """Wait for the agents whose ids stand in the messages (Codex)."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of each tool call, where the tool has them."""
    reports: int | None = None
    """Prompt tokens to report in `usage`, in place of the true count."""
    faults: Sequence[Mapping[str, Any]] = ()
    """What goes wrong with the first tries: fields of `Answer` that differ then."""
    how: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Answer` for how it travels: `delay`, `gap`, ..."""


LAST = Step(text="there is nothing left to do")


@dataclass
class AgentScript:
    """A `Script` of the fake engine. A plan that is at its end answers with `LAST`."""

    plans: Mapping[str, Sequence[Step]]
    summary: Step = Step(text="So far the work went well: every command was run and its output was read.")
    tried: Counter[str] = field(default_factory=Counter)
    """By mark of the answer."""

    def __call__(self, request: Request) -> Answer:
        body = request.json
        agent, done = self._standing(body["messages"])
        if asks_for_summary(body):
            mark = f"{agent}-{done} in short"
            return self._tried(mark, self.summary, _summary(self.summary, mark, body))
        step, mark = self._step(agent, done), f"{agent}-{done + 1}"
        return self._tried(mark, step, _answer(step, mark, body))

    def _standing(self, messages: Sequence[Json]) -> tuple[str, int]:
        """Whose messages these are, and how many of its steps are done."""
        texts = json.dumps(messages, ensure_ascii=False)
        agent = next((name for name in self.plans if name in texts), "nobody")
        return agent, max(map(int, re.findall(rf"{agent}-(\d+)", texts)), default=0)

    def _tried(self, mark: str, step: Step, answer: Answer) -> Answer:
        tries = self.tried[mark]
        self.tried[mark] += 1
        return replace(answer, **step.faults[tries]) if tries < len(step.faults) else answer

    def _step(self, agent: str, done: int) -> Step:
        plan = self.plans.get(agent, ())
        return plan[done] if done < len(plan) else LAST


def asks_for_summary(body: Json) -> bool:
    """Whether the last words are an instruction to write a summary, or nothing can be done but to write."""
    return not body.get("tools") or bool(_INSTRUCTION.search(_last_words(body["messages"])))


def _last_words(messages: Sequence[Json]) -> str:
    """Of the user, if nothing but a harness's reminders comes after them."""
    last = next(message for message in reversed(messages) if message["role"] not in ("system", "developer"))
    return _parts(last)[-1] if last["role"] == "user" else ""


def _summary(step: Step, mark: str, body: Json) -> Answer:
    """In the tags that the instruction asks for."""
    words = _last_words(body["messages"])
    tag = next((tag for tag in TAGS if f"<{tag}>" in words), None)
    answer = _answer(step, mark, body)
    return replace(answer, text=f"<{tag}>\n{answer.text}\n</{tag}>") if tag else answer


def _answer(step: Step, mark: str, body: Json) -> Answer:
    calls = tuple(_calls(step, mark, body))
    text = step.text if calls else f"{step.text} ({mark})"
    answer = Answer(text=text, reasoning=step.thinking, tool_calls=calls, **step.how)
    if step.reports is None:
        return answer
    sampled = len(answer.output_ids)
    counts = {"prompt_tokens": step.reports, "completion_tokens": sampled}
    return replace(answer, usage={**counts, "total_tokens": step.reports + sampled})


def _calls(step: Step, mark: str, body: Json) -> Iterator[ToolCall]:
    wanted: list[tuple[Sequence[str], Json]]
    commands = [f"{command} # {mark}" for command in step.commands]
    wanted = [(SHELLS, {"command": command, "cmd": command}) for command in commands]
    wanted += [(DELEGATES, {"prompt": prompt, "message": prompt}) for prompt in step.delegates]
    if step.waits:
        wanted.append((WAITS, {"targets": _AGENT_ID.findall(_all_text(body["messages"]))}))
    for number, (names, given) in enumerate(wanted):
        tool = _tool(body.get("tools") or (), names)
        arguments = _arguments(tool, {**REQUIRED, **given}, step.arguments)
        # Spelled as nobody else does: who writes it anew, writes something else.
        spelled = json.dumps(arguments, separators=(" , ", " : "))
        yield ToolCall(tool["name"], spelled, f"call_{mark}-{number}")


def _tool(tools: Sequence[Json], names: Sequence[str]) -> Json:
    """The function with one of the names, in whatever namespace."""
    functions: list[Json] = [tool["function"] for tool in tools if tool.get("type") == "function"]
    for function in functions:
        if re.split(r"__|\.|/", function["name"])[-1].lower() in names:
            return function
    raise LookupError(f"no tool {names} among {[function['name'] for function in functions]}")


def _arguments(tool: Json, given: Json, more: Mapping[str, Any]) -> Json:
    """What the tool requires or is its point, and of the rest what the step wants."""
    schema = tool.get("parameters") or {}
    known, required = schema.get("properties") or {}, schema.get("required") or ()
    optional = {name: value for name, value in more.items() if name in known}
    points = {name: value for name, value in given.items() if name in known and name not in REQUIRED}
    return {name: given[name] for name in required} | points | optional


def _all_text(messages: Sequence[Json]) -> str:
    return "\n".join(_text(message) for message in messages)


def _text(message: Json) -> str:
    return "\n".join(_parts(message))


def _parts(message: Json) -> list[str]:
    """At least one text, maybe an empty one."""
    content = message.get("content") or ""
    return [content] if isinstance(content, str) else [str(part.get("text", "")) for part in content]
