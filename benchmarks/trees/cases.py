"""The six executions that a peer's builder was measured on: what of each reaches training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.trees.long_run import Plan, sub_agent
from benchmarks.trees.story import (
    Agent,
    Turn,
    World,
    asked,
    content,
    result,
    said,
    setting,
    step,
)

_OUTPUT = 300
_RESULT = 700
_REASONING = 200
MAIN = setting("You are an agent. Use the tools, one step at a time.", 1_024, 4, 21)
TITLE = setting("Give this conversation a title of at most six words.", 64, 0, 22)


@dataclass(frozen=True)
class Case:
    name: str
    calls: int
    peer_percent: float
    """Share of the sampled tokens that the peer delivers to training."""
    turns: Callable[[World], Iterator[Turn]]


def append_only(world: World, calls: int = 30) -> Iterator[Turn]:
    yield from _steps(_begin(world), calls)


def one_compaction(world: World) -> Iterator[Turn]:
    agent = _begin(world)
    yield from _steps(agent, 20)
    agent.hear(said("user", content="Write a summary of everything above."), 20)
    summary = agent.say(said("assistant", content=world.prose(_OUTPUT)), _OUTPUT)
    yield summary
    agent = Agent(world, MAIN)
    told = f"This goes on from an earlier conversation.\n\n{content(summary.response)}"
    agent.hear(said("user", content=told), _OUTPUT + 20)
    yield from _steps(agent, 20)


def two_sub_agents(world: World) -> Iterator[Turn]:
    """Main, then A1 B1 A2 B2 ..., then main."""
    agent = _begin(world)
    yield from _steps(agent, 4)
    tasks = [world.prose(100) for _ in range(2)]
    calls = [asked("task", f"{world.now:x}-{i}", prompt=task) for i, task in enumerate(tasks)]
    yield agent.say(said("assistant", content=world.prose(40), tool_calls=calls), _OUTPUT)
    plan = Plan(agent_calls=10, agent_start=14_000, agent_end=14_000 + 10 * 1000, agent_output=_OUTPUT)
    last: list[Turn] = []
    for pair in zip(*(sub_agent(world, task, plan) for task in tasks), strict=True):
        yield from pair
        last = list(pair)
    for call, turn in zip(calls, last, strict=True):
        agent.hear(said("tool", tool_call_id=call["id"], content=content(turn.response)), _RESULT)
    yield from _steps(agent, 5)


def title_first(world: World) -> Iterator[Turn]:
    titled = Agent(world, TITLE)
    task = world.prose(400)
    titled.hear(said("user", content=task), 420)
    yield titled.say(said("assistant", content=world.prose(12)), 12)
    yield from _steps(_begin(world, task), 20)


def reasoning_stripped(world: World) -> Iterator[Turn]:
    """The template leaves out earlier reasoning, the messages keep it."""
    yield from _steps(_begin(world), 20, stripped=_REASONING)


def last_call_again(world: World) -> Iterator[Turn]:
    """Both tries are whole, and nothing says which of them the harness had."""
    agent = _begin(world)
    yield from _steps(agent, 6)
    yield agent.fail(said("assistant", content=world.prose(_OUTPUT)), _OUTPUT, "ok")
    yield agent.say(said("assistant", content=world.prose(_OUTPUT)), _OUTPUT)


CASES = (
    Case("append only", 30, 100, append_only),
    Case("one compaction in the middle", 41, 53, one_compaction),
    Case("two interleaved sub-agents", 30, 33, two_sub_agents),
    Case("a title call of 12 tokens first", 21, 0.2, title_first),
    Case("reasoning stripped by the template", 20, 5, reasoning_stripped),
    Case("the last call again", 8, 86, last_call_again),
)


def _begin(world: World, task: str | None = None) -> Agent:
    agent = Agent(world, MAIN)
    agent.hear(said("user", content=task or world.prose(400)), 420)
    return agent


def _steps(agent: Agent, calls: int, stripped: int = 0) -> Iterator[Turn]:
    for _ in range(calls):
        response = step(agent.world, _OUTPUT, reasoning=stripped)
        yield agent.say(response, _OUTPUT, stripped=stripped)
        agent.hear(result(agent.world, response, _RESULT), _RESULT)
