"""The long execution that peers were measured on: compactions, sub-agents, retries, 114.6M tokens.

At scale 1 it has 382 calls: 300 of the main agent in three histories of 100 calls, each growing to 703K
tokens, with two compactions to 30K between them; six sub-agents of 12 calls; ten retries. A scale s has
s times as many calls, so histories s times as long, whose logged tokens grow with s squared and whose
new tokens grow with s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.trees.story import Agent, Turn, World, asked, content, result, said, setting, step

MAIN = setting("You are an agent. Use the tools, one step at a time.", 8_192, 12, 11)
SUB = setting("You are given a part of a task. Report what you found.", 12_288, 8, 12)
"""Lengths in whole blocks of the recorder, so that what is shared is shared to the last id."""
_TASK = 400
"""Tokens of what a sub-agent is told."""
_SUMMARISE = "Write a summary of everything above. Another agent goes on from it and sees nothing else."


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long everything is, in calls and tokens."""

    histories: int = 3
    calls: int = 100
    """Of one history, the request for its summary included."""
    start: int = 30_000
    end: int = 703_000
    output: int = 800
    """Tokens of an answer, on average."""
    summary: int = 2_000
    agents: int = 6
    agent_calls: int = 12
    agent_start: int = 14_000
    agent_end: int = 36_000
    agent_output: int = 300
    retries: int = 10

    def scaled(self, scale: float) -> Plan:
        return replace(
            self,
            calls=round(self.calls * scale),
            end=self.start + round((self.end - self.start) * scale),
            agents=round(self.agents * scale),
            retries=round(self.retries * scale),
        )

    @property
    def text_tokens(self) -> int:
        """So much text that an execution does not say the same twice."""
        new = self.histories * self.end + self.agents * self.agent_end
        return int(1.25 * new) + 50_000

    @property
    def all_calls(self) -> int:
        return self.histories * self.calls + self.agents * self.agent_calls + self.retries


@dataclass(frozen=True, slots=True)
class Size:
    """What was made."""

    calls: int
    logged: int
    """Tokens of all prompts and outputs, as a log of whole prompts would have them."""
    new: int
    """Those that no earlier call had."""
    sampled: int

    @property
    def logged_bytes(self) -> int:
        return 4 * self.logged


def size_of(turns: Sequence[Turn]) -> Size:
    sampled = sum(len(turn.output) for turn in turns)
    logged = sum(turn.prompt_tokens for turn in turns) + sampled
    return Size(len(turns), logged, sum(len(turn.new) for turn in turns) + sampled, sampled)


def long_run(name: str, seed: int, text: bytes, plan: Plan) -> Iterator[Turn]:
    """Its calls in commit order."""
    world = World(name, seed, text)
    more = plan.start - len(MAIN.ids)
    heard = world.prose(more)
    for number in range(plan.histories):
        history = _History(world, plan, number)
        history.agent.hear(said("user", content=heard), plan.start - history.agent.tokens)
        yield from history.steps()
        if number + 1 < plan.histories:
            summary = history.summarise()
            yield summary
            heard = f"This goes on from an earlier conversation.\n\n{content(summary.response)}\n\n"
            heard += world.prose(more - plan.summary)


class _History:
    """One history of the main agent, from its first prompt to its end or the request for a summary."""

    def __init__(self, world: World, plan: Plan, number: int) -> None:
        self.agent = Agent(world, MAIN)
        self._world, self._plan = world, plan
        summarised = number + 1 < plan.histories
        steps = plan.calls - summarised
        self._outputs = spread(world.sizes, plan.output * steps, steps)
        results = plan.end - plan.start - plan.output * steps - summarised * plan.summary
        self._results = [*spread(world.sizes, results, plan.calls - 1), 0][:steps]
        self._agents = _share(plan.agents, number, plan.histories)
        self._delegates = steps // 2 if self._agents else -1
        places = [place for place in range(1, steps - 1) if place != self._delegates]
        retries = _share(plan.retries, number, plan.histories)
        self._retried = set(world.sizes.choice(places, retries, replace=False).tolist() if retries else ())

    def steps(self) -> Iterator[Turn]:
        for place, (tokens, heard) in enumerate(zip(self._outputs, self._results, strict=True)):
            if place == self._delegates:
                yield from self._delegate(tokens, heard)
            else:
                yield from self._step(place, tokens, heard)

    def summarise(self) -> Turn:
        self.agent.hear(said("user", content=_SUMMARISE), 0)
        words = said("assistant", content=self._world.prose(self._plan.summary))
        return self.agent.say(words, self._plan.summary)

    def _step(self, place: int, tokens: int, heard: int) -> Iterator[Turn]:
        retried = place in self._retried
        if retried:
            yield self._failed(place, tokens)
        response = step(self._world, tokens)
        yield self.agent.say(response, tokens, retry=1 if retried else None)
        if heard:
            self.agent.hear(result(self._world, response, heard), heard)

    def _failed(self, place: int, tokens: int) -> Turn:
        """Half of them break off; the others are whole, but their reply is lost on its way."""
        if place % 2:
            return self.agent.fail(step(self._world, tokens), tokens, "ok")
        words = said("assistant", content=self._world.prose(tokens // 2))
        return self.agent.fail(words, tokens // 2, "upstream_cut")

    def _delegate(self, tokens: int, heard: int) -> Iterator[Turn]:
        """One answer starts the sub-agents of this history; their calls are interleaved."""
        world = self._world
        tasks = [world.prose(_TASK) for _ in range(self._agents)]
        calls = [asked("task", f"{world.now:x}-{i}", prompt=task) for i, task in enumerate(tasks)]
        yield self.agent.say(said("assistant", content=world.prose(40), tool_calls=calls), tokens)
        crew = [sub_agent(world, task, self._plan) for task in tasks]
        last: list[Turn] = []
        for _ in range(self._plan.agent_calls):
            last = []
            for member in crew:
                last.append(next(member))
                yield last[-1]
        for call, turn in zip(calls, last, strict=True):
            report = said("tool", tool_call_id=call["id"], content=content(turn.response))
            self.agent.hear(report, heard // len(calls))
        self.agent.hear(said("user", content=world.prose(8)), heard % len(calls))


def sub_agent(world: World, task: str, plan: Plan) -> Iterator[Turn]:
    """The calls of one sub-agent; the last answer is its report."""
    agent = Agent(world, SUB)
    agent.hear(said("user", content=task), plan.agent_start - agent.tokens)
    steps = plan.agent_calls - 1
    outputs = spread(world.sizes, plan.agent_output * (steps + 1), steps + 1)
    grown = plan.agent_end - plan.agent_start - plan.agent_output * (steps + 1)
    for tokens, heard in zip(outputs, spread(world.sizes, grown, steps), strict=False):
        response = step(world, tokens)
        yield agent.say(response, tokens)
        agent.hear(result(world, response, heard), heard)
    yield agent.say(said("assistant", content=world.prose(outputs[-1])), outputs[-1])


def spread(rng: np.random.Generator, total: int, count: int) -> list[int]:
    """`total` in `count` parts of unequal size, none below a third of the average."""
    least = total // count // 3
    weights = rng.exponential(1, count)
    cuts = np.rint(np.cumsum(weights) / weights.sum() * (total - least * count)).astype(int)
    parts: list[int] = (np.diff(cuts, prepend=0) + least).tolist()
    return parts


def _share(total: int, number: int, among: int) -> int:
    """How many of `total` fall to one of several."""
    return total * (number + 1) // among - total * number // among
