"""Agents that give work to others."""

from __future__ import annotations

from enum import Enum

from gyre.treebuilder.trees import CallKey, Cause, Role
from tests.trees.world.agent import Agent
from tests.trees.world.messages import Message, calls_of, result, system, tool, user
from tests.trees.world.plan import PLAIN, Plan
from tests.trees.world.truth import Decided, Truth
from tests.trees.world.world import World

_TICK = 1_000_000


class Mode(Enum):
    BLOCKING = "blocking"
    BACKGROUND = "background"
    FORKED = "forked"
    """The child's history begins with its parent's, the delegating call included."""


def delegate(
    world: World, parent: Agent, mode: Mode, count: int = 1, same: bool = False, plan: Plan = PLAIN
) -> list[Agent]:
    """The parent's call that starts children; blocking ones have to be told to `come_back` afterwards.

    `same`: all are asked the same.
    """
    prompts = [f"please {world.model.words(6)}"] * count if same else _prompts(world, count)
    calls = [world.model.call("delegate", {_key(world): prompt}) for prompt in prompts]
    row = world.turn(parent, world.model.answer(world.model.words(1), calls), plan)
    thin = same and count > 1
    children = [
        _child(world, parent, mode, call, prompt, row.key, thin)
        for call, prompt in zip(calls_of(parent.history[-1]), prompts, strict=True)
    ]
    if mode is not Mode.BLOCKING:
        launched = {child.started_by: f"launched agent {child.name}" for child in children}
        world.answer_calls(parent, launched)
    return children


def come_back(world: World, parent: Agent, children: list[Agent]) -> None:
    """All children are done: their last words are the results of the parent's calls."""
    texts = {child.started_by: f"{child.final}\nagent: {child.name}" for child in children}
    world.answer_calls(parent, texts)
    parent.ready = max(parent.ready, *(child.ready for child in children)) + _TICK


def report(child: Agent) -> None:
    """A background child is done: its parent will hear of it."""
    assert child.parent
    text = f"<task-notification> {child.started_by} {child.final} </task-notification>"
    child.parent.inbox.append((child.ready, text))


def _prompts(world: World, count: int) -> list[str]:
    """Sometimes with what an earlier child found, word for word."""
    prompts = [f"please {world.model.words(6)}" for _ in range(count)]
    if world.findings and world.random.random() < 0.3:
        prompts[0] += " given that " + world.findings[-1]
    return prompts


def _key(world: World) -> str:
    return world.random.choice(("prompt", "message", "input"))


def _child(
    world: World, parent: Agent, mode: Mode, call: Message, prompt: str, origin: CallKey, thin: bool
) -> Agent:
    truth = Truth(
        Cause.DELEGATION,
        world.new_context(),
        Role.SUB,
        origin,
        "forked" if mode is Mode.FORKED else "nested" if parent.depth else mode.value,
        decided=Decided.HARDLY if thin else Decided.ALWAYS,
    )
    name = world.model.unique("agent")
    forked = mode is Mode.FORKED
    history = _forked(parent, prompt) if forked else _fresh(world, parent, mode, prompt)
    tools = parent.tools if forked else [tool(name) for name in ("read", "delegate")]
    start = parent.ready + 2 * _TICK
    return Agent(
        name, history, tools, truth, truth.context, start, parent.depth + 1, parent, started_by=call["id"]
    )


def _fresh(world: World, parent: Agent, mode: Mode, prompt: str) -> list[Message]:
    """Codex can copy what users said to the parent, but none of its tool calls."""
    worked = any(message["role"] == "tool" for message in parent.history)
    if mode is Mode.BACKGROUND and worked and world.random.random() < 0.2:
        told = [message for message in parent.history if message["role"] == "user"]
        return [*parent.history[:1], *told, user(prompt)]
    reminder = "<system-reminder> be brief </system-reminder> " if world.random.random() < 0.5 else ""
    return [system("you help another agent"), user(reminder + prompt)]


def _forked(parent: Agent, prompt: str) -> list[Message]:
    stubs = [result(call["id"], "fork started") for call in calls_of(parent.history[-1])]
    return [*parent.history, *stubs, user(f"you are a fork, do this: {prompt}")]
