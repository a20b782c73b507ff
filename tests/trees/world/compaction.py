"""Agents that replace their history by a summary, as the harnesses do it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gyre.treebuilder.trees import Cause
from tests.trees.world.agent import Agent
from tests.trees.world.messages import Message, assistant, rounds, system, text_of, transcript, user
from tests.trees.world.plan import PLAIN, Plan
from tests.trees.world.truth import Truth
from tests.trees.world.world import World

_INSTRUCTION = "summarise the conversation so far so that another agent can go on"
_HANDED_OVER = "another agent left this summary"


class Family(Enum):
    CODEX = "codex"
    """The whole history and an instruction, no tools; user messages are kept."""
    QWEN = "qwen"
    """The whole history and an instruction; the latest round is kept, merged into a canned answer."""
    CLAUDE = "claude"
    """The history without its latest round and an instruction; that round is kept."""
    OPENCODE = "opencode"
    """The transcript as text; nothing is kept."""
    HARD_LIMIT = "hard_limit"
    """qwen-code in need: another system prompt and no tools before the same history; then as `QWEN`."""
    DEEPAGENTS = "deepagents"
    """The transcript as text; the latest round is kept."""


class Request(NamedTuple):
    messages: list[Message]
    tools: list[Message]
    family: str


def compact(world: World, agent: Agent, family: Family, plan: Plan = PLAIN, restart: Plan = PLAIN) -> None:
    """The summary call and the first call of the new history."""
    world.read_inbox(agent)
    if agent.last is None or agent.history[-1]["role"] != "tool":
        world.work(agent)
    request = _request(agent, family)
    said, inner = world.model.summary(wrapped=family is Family.CLAUDE)
    truth = _summary_truth(world, agent, request.family)
    row = world.ask(agent, request.messages, request.tools, truth, said, plan, kind="compaction")
    kept = None if family in (Family.CODEX, Family.OPENCODE) else "kept_tail"
    again = Truth(Cause.COMPACTION, world.new_context(), agent.role, row.key, "restart", kept)
    agent.begin(again, _after(agent.history, family, inner))
    agent.window += 1
    world.work(agent, plan=restart)


def remind(agent: Agent) -> None:
    """After a compaction qwen-code puts reminders before the summary."""
    first = next(i for i, message in enumerate(agent.history) if message["role"] == "user")
    reminded = user(
        "<system-reminder> tools are read write </system-reminder>\n" + text_of(agent.history[first])
    )
    agent.history = [*agent.history[:first], reminded, *agent.history[first + 1 :]]
    agent.changed = Cause.REWRITTEN


def _summary_truth(world: World, agent: Agent, family: str) -> Truth:
    """Of a history without its latest round both its last answer and its last prompt are the end."""
    assert agent.last
    also = agent.before_last.key if agent.before_last else None
    context = world.new_context()
    return Truth(Cause.COMPACTION, context, agent.summary_role, agent.last.key, "summary", family, also=also)


def _request(agent: Agent, family: Family) -> Request:
    history = agent.history
    asked = [*history, user(_INSTRUCTION)]
    match family:
        case Family.CODEX:
            return Request(asked, [], "suffix_prompt")
        case Family.QWEN:
            return Request(asked, agent.tools, "suffix_prompt")
        case Family.CLAUDE:
            return Request([*history[: rounds(history)], user(_INSTRUCTION)], agent.tools, "suffix_prompt")
        case Family.HARD_LIMIT:
            return Request([system("you compress histories"), *asked[1:]], [], "suffix_prompt")
        case Family.OPENCODE:
            rendered = user(f"{transcript(history[1:])}\n{_INSTRUCTION}")
            return Request([system("you write summaries"), rendered], [], "rendered_transcript")
        case Family.DEEPAGENTS:
            return Request([user(f"{_INSTRUCTION}\n{transcript(history)}")], [], "rendered_transcript")


def _after(history: list[Message], family: Family, summary: str) -> list[Message]:
    head, tail = history[:1], history[rounds(history) :]
    match family:
        case Family.CODEX:
            said = [m for m in history if m["role"] == "user" and not text_of(m).startswith(_HANDED_OVER)]
            return [*head, *said, user(f"{_HANDED_OVER}: {summary}")]
        case Family.QWEN | Family.HARD_LIMIT:
            merged = tail[0] | {"content": "Got it. " + text_of(tail[0])}
            return [*head, user(summary), merged, *tail[1:]]
        case Family.CLAUDE:
            return [*head, user(f"this session goes on from: {summary}"), *tail]
        case Family.OPENCODE:
            return [*head, user("what did we do so far?"), assistant(summary), user("continue")]
        case Family.DEEPAGENTS:
            return [*head, user(f"a summary of the conversation: {summary}"), *tail]
