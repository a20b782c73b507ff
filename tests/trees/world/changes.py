"""What harnesses do to a history besides adding to it."""

from __future__ import annotations

from dataclasses import replace

from gyre.treebuilder.trees import Cause, Role
from tests.trees.world.agent import Agent
from tests.trees.world.messages import Message, assistant, result, system, text_of, tool, tool_call, user
from tests.trees.world.plan import PLAIN, Plan
from tests.trees.world.truth import Truth
from tests.trees.world.world import World

_CLEARED = "[old tool result cleared]"
_CUT = Plan(condition="cut")


def clear_results(world: World, agent: Agent) -> None:
    """Old tool results are replaced by a stub; the next call begins a new context."""
    while agent.last is None or not any(map(_is_long_result, agent.last.messages)):
        world.work(agent)
    seen = len(agent.last.messages)
    history = [
        message | {"content": _CLEARED} if i < seen and _is_long_result(message) else message
        for i, message in enumerate(agent.history)
    ]
    agent.begin(Truth(Cause.EDIT, world.new_context(), agent.role, agent.last.key), history)
    world.work(agent)


def _is_long_result(message: Message) -> bool:
    return message["role"] == "tool" and text_of(message).startswith("output:")


def change_tools(world: World, agent: Agent) -> None:
    agent.tools = [*agent.tools, tool(world.model.unique("tool"))]
    agent.changed = Cause.TOOLS_CHANGED
    world.work(agent)


def drop_answer(world: World, agent: Agent) -> None:
    """An answer without a tool call is an error to mini-swe-agent: it is left out of the next prompt."""
    row = world.turn(agent, world.model.talk())
    agent.history = [*agent.history[:-1], user(f"format error: {world.model.words(3)}")]
    prompt = world.template.prompt(agent.history, agent.tools)
    kept = row.prompt.ids[: -world.template.opening]
    whole = prompt.ids[: len(kept)] == kept
    cause = Cause.CONTINUATION if whole else world.break_of(row, prompt, None)
    agent.coming = Truth(cause, agent.context, agent.role, row.key, "response_absent")
    world.work(agent)


def insert_aborted_call(world: World, agent: Agent) -> None:
    """opencode: a stream was cut in a tool call and asked again; later the broken call is there too."""
    world.turn(agent, world.model.work(), Plan(tries=("cut",)))
    *before, real = agent.history
    broken = tool_call(world.model.unique("call_"), "read", {})
    agent.history = [*before, assistant(calls=[broken]), result(broken["id"], "tool execution aborted"), real]
    agent.changed = Cause.REWRITTEN
    world.answer_calls(agent)
    world.work(agent)


def recover(world: World, agent: Agent) -> None:
    """qwen-code: a cut answer is resumed, and later both halves are one message."""
    world.turn(agent, world.model.talk(), _CUT)
    *before, half = agent.history
    agent.history = [*before, half, user("go on where you stopped")]
    world.turn_as_is(agent, world.model.work())
    rest = agent.history[-1]
    agent.history = [*before, half | rest | {"content": f"{text_of(half)} {text_of(rest)}"}]
    agent.changed = Cause.REWRITTEN
    world.answer_calls(agent)
    world.work(agent)


def resume(world: World, agent: Agent) -> None:
    """codex: what was complete before a stream was cut stays, and the model goes on from there."""
    world.turn(agent, world.model.talk(), _CUT)
    world.turn_as_is(agent, world.model.work())
    world.answer_calls(agent)


def insert_canned_answer(world: World, agent: Agent) -> None:
    """aider: words in the model's mouth."""
    if agent.last is None or agent.history[-1]["role"] == "assistant":
        world.work(agent)
    agent.history = [*agent.history, assistant("Ok, I will."), user(f"then {world.model.words(2)}")]
    world.work(agent)


def side_call(world: World, agent: Agent, plan: Plan = PLAIN) -> None:
    """A title before the work or a commit message after it: no tools, and the answer goes nowhere."""
    if agent.last is None and not agent.depth and not world.titled:
        world.titled = True
        asked = [system("you name conversations"), user(f"a title for: {text_of(agent.history[-1])}")]
    else:
        asked = [system("you write commit messages"), user(f"diff: {world.model.words(5)}")]
    truth = Truth(Cause.SIDE, world.new_context(), Role.SIDE)
    world.ask(replace(agent), asked, [], truth, world.model.talk(), plan, kind="side")


def give_up(world: World, agent: Agent, outcome: str) -> None:
    """The agent's next call fails and is not tried again: killed, or too long a prompt."""
    if agent.last is None or agent.history[-1]["role"] == "assistant":
        world.work(agent)
    world.fail(agent, outcome)
