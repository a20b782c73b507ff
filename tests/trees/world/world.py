"""Where agents act: makes calls happen and writes down what they were."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gyre.treebuilder.trees import Cause, Role
from tests.trees.world.agent import Agent
from tests.trees.world.labels import Headers, labels_of
from tests.trees.world.messages import Message, calls_of, respaced, result, system, text_of, tool, user
from tests.trees.world.model import Model
from tests.trees.world.plan import PLAIN, Plan
from tests.trees.world.row import Row
from tests.trees.world.template import Rendered, Style, Template
from tests.trees.world.tries import Request, Tries
from tests.trees.world.truth import Truth

START = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Harness:
    """How the harness treats what the model said, and what it says about itself."""

    headers: Headers = Headers.NONE
    respaces: bool = False
    """It parses arguments and writes them anew."""
    echoes_reasoning: str = "always"
    """`always`, `never`, or only in turns that call `tools`."""

    def echo(self, message: Message) -> Message:
        kept = self.echoes_reasoning == "always" or (self.echoes_reasoning == "tools" and calls_of(message))
        if not kept:
            message = {key: value for key, value in message.items() if key != "reasoning_content"}
        return respaced(message) if self.respaces else message


class World:
    def __init__(
        self,
        random: Random,
        style: Style,
        harness: Harness,
        reasons: bool = False,
        breaks_words: bool = False,
    ) -> None:
        self.random = random
        self.harness = harness
        self.template = Template(style)
        self.model = Model(random, self.template, reasons, breaks_words)
        self.rows: list[Row] = []
        self.findings: list[str] = []
        """Last words of children that are done."""
        self.titled = False
        self.contexts = 0
        tools = [tool(name) for name in ("read", "write", "delegate")]
        history = [system("you are an agent that works on code"), user(f"task {self.model.words(4)}")]
        start = Truth(Cause.START, self.new_context(), Role.MAIN)
        self.main = Agent("main", history, tools, start, start.context, START)

    def new_context(self) -> int:
        self.contexts += 1
        return self.contexts - 1

    def turn(self, agent: Agent, message: Message, plan: Plan = PLAIN) -> Row:
        """The next call of the agent, answered with that message."""
        self.read_inbox(agent)
        if agent.history[-1]["role"] == "assistant":
            agent.history = [*agent.history, user(f"now {self.model.words(3)}")]
        return self.turn_as_is(agent, message, plan)

    def turn_as_is(self, agent: Agent, message: Message, plan: Plan = PLAIN) -> Row:
        row = self.ask(agent, agent.history, agent.tools, self.trunk_truth(agent), message, plan)
        agent.before_last, agent.last = agent.last, row
        agent.coming = agent.changed = None
        agent.history = [*agent.history, self.harness.echo(message)]
        agent.final = text_of(message)
        return row

    def fail(self, agent: Agent, outcome: str) -> None:
        """The next call of the agent fails for good."""
        self.read_inbox(agent)
        truth = self.trunk_truth(agent)
        self._tries(agent, agent.history, agent.tools, truth).fail(outcome)

    def work(self, agent: Agent, calls: int = 1, plan: Plan = PLAIN) -> Row:
        """A turn that calls tools, and their results."""
        row = self.turn(agent, self.model.work(calls), plan)
        self.answer_calls(agent)
        return row

    def answer_calls(self, agent: Agent, texts: dict[str, str] | None = None) -> None:
        for call in calls_of(agent.history[-1]):
            text = (texts or {}).get(call["id"]) or self.tool_output()
            agent.history = [*agent.history, result(call["id"], text)]

    def tool_output(self) -> str:
        return "ok" if self.random.random() < 0.2 else "output: " + self.model.words(6)

    def read_inbox(self, agent: Agent) -> None:
        arrived = [text for at, text in agent.inbox if at <= agent.ready]
        agent.inbox = [(at, text) for at, text in agent.inbox if at > agent.ready]
        for text in arrived:
            agent.history = [*agent.history, user(text)]

    def trunk_truth(self, agent: Agent) -> Truth:
        if agent.coming:
            return agent.coming
        assert agent.last
        cause = self.break_of(agent.last, self.template.prompt(agent.history, agent.tools), agent.changed)
        return Truth(cause, agent.context, agent.role, agent.last.key)

    def break_of(self, last: Row, prompt: Rendered, changed: Cause | None) -> Cause:
        """Why a prompt of the same context does not begin with all that was there."""
        path = last.path
        if prompt.ids[: len(path.ids)] == path.ids:
            return Cause.CONTINUATION
        if changed:
            return changed
        pairs = zip(path.ids, prompt.ids, strict=False)
        broken = next((i for i, (one, other) in enumerate(pairs) if one != other), len(prompt.ids))
        stripped = path.kinds[broken] == "reasoning"
        return Cause.REASONING_STRIPPED if stripped else Cause.RETOKENIZED

    def ask(
        self,
        agent: Agent,
        messages: list[Message],
        tools: list[Message],
        truth: Truth,
        message: Message,
        plan: Plan = PLAIN,
        kind: str = "turn",
    ) -> Row:
        """One request with all its tries; returns the row that the harness goes on with."""
        return self._tries(agent, messages, tools, truth, kind).make(message, plan)

    def _tries(
        self, agent: Agent, messages: list[Message], tools: list[Message], truth: Truth, kind: str = "turn"
    ) -> Tries:
        labels = labels_of(self.harness.headers, agent.who, kind)
        prompt = self.template.prompt(messages, tools)
        request = Request(messages, tools, prompt, truth, labels)
        return Tries(self.random, self.model, agent, request, self.rows)
