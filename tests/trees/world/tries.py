"""One request and all its tries: some fail, one is kept, some are thrown away."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gyre.treebuilder.trees import CallKey, Cause
from tests.trees.world.agent import Agent
from tests.trees.world.labels import Labels
from tests.trees.world.messages import Message
from tests.trees.world.model import Model
from tests.trees.world.plan import Plan, spoil
from tests.trees.world.row import Row
from tests.trees.world.template import Rendered
from tests.trees.world.truth import Decided, Truth

MS = 1_000_000
_PARTIAL = {"cut": "upstream_cut", "gone": "client_gone", "timeout": "timeout"}


@dataclass(frozen=True)
class Request:
    messages: list[Message]
    tools: list[Message]
    prompt: Rendered
    truth: Truth
    """Of the try that is kept."""
    labels: Labels


class Tries:
    def __init__(self, random: Random, model: Model, agent: Agent, request: Request, rows: list[Row]) -> None:
        self.random = random
        self.model = model
        self.agent = agent
        self.request = request
        self.rows = rows
        """Where to write them down."""
        self._started = self._ended = 0

    def make(self, message: Message, plan: Plan) -> Row:
        """Returns the row that the harness goes on with."""
        keys = self._keys(plan.tries)
        kept = keys[-1]
        again = 0
        for name, key in zip(plan.tries, keys, strict=False):
            self._try(name, key, kept, again)
            again = 0 if name == "resampled" else again + 1
        row = self._keep(message, kept, again, plan)
        if plan.delivered_again:
            self._deliver(row)
        if plan.resampled_after:
            self._lose("resampled", CallKey(self.model.unique("c")), kept, 0)
        return row

    def fail(self, outcome: str) -> None:
        """One try, and no other."""
        row = self._record(CallKey(self.model.unique("c")), self.request.truth, 0)
        self._break(row, outcome)

    def _keys(self, tries: tuple[str, ...]) -> list[CallKey]:
        keys = [CallKey(self.model.unique("c"))]
        for name in tries:
            last = keys[-1]
            same = name == "attempt"
            keys.append(CallKey(last.call_id, last.attempt + 1) if same else CallKey(self.model.unique("c")))
        return keys

    def _try(self, name: str, key: CallKey, kept: CallKey, again: int) -> None:
        if name in ("marked", "resampled"):
            self._lose(name, key, kept, again)
            return
        self._break(self._record(key, self._retry_of(kept), again), name)

    def _break(self, row: Row, name: str) -> None:
        row.outcome = _PARTIAL.get(name, "upstream_error")
        row.finish = None
        if name in _PARTIAL:
            row.reply = self.model.cut(self.random.randint(0, 3))

    def _lose(self, name: str, key: CallKey, kept: CallKey, again: int) -> None:
        """A complete answer that the harness does not go on with."""
        marked = name == "marked"
        decided = Decided.LABEL if marked else Decided.NEVER
        if self.request.truth.decided is Decided.HARDLY:
            # Another agent was asked the very same: the answer may as well be that agent's.
            decided = Decided.HARDLY if marked else Decided.NEVER_HARDLY
        truth = self._retry_of(kept)._replace(decided=decided)
        row = self._record(key, truth, again)
        row.reply = self.model.sample(self.model.work())
        row.reply_lost = marked

    def _keep(self, message: Message, key: CallKey, again: int, plan: Plan) -> Row:
        chosen = self.random.randrange(plan.choices)
        rows = []
        for choice in range(plan.choices):
            row = self._record(key._replace(choice=choice), self.request.truth, again, waits=choice == 0)
            said = message if choice == chosen else self.model.talk()
            row.reply = self.model.sample(said, stop=plan.condition not in ("length", "cut"))
            spoil(row, plan.condition)
            rows.append(row)
        return rows[chosen]

    def _deliver(self, row: Row) -> None:
        """The client asked again, and the proxy sent what it had."""
        again = self._record(CallKey(self.model.unique("c")), self._retry_of(row.key), 1)
        again.reply = row.reply
        again.delivery_of = row.key.call_id
        again.capture_quality = again.logprob_quality = "none"

    def _retry_of(self, kept: CallKey) -> Truth:
        truth = self.request.truth
        return Truth(Cause.RETRY, truth.context, truth.role, kept)

    def _record(self, key: CallKey, truth: Truth, again: int, waits: bool = True) -> Row:
        if waits:
            self._pass_time()
        asked, times = self.request, (self._started, self._ended)
        row = Row(key, asked.messages, asked.tools, asked.prompt, *times, asked.labels, truth)
        row.retry_count = again
        self.rows.append(row)
        return row

    def _pass_time(self) -> None:
        self._started = self.agent.ready
        self._ended = self._started + self.random.randint(200 * MS, 1500 * MS)
        self.agent.ready = self._ended + self.random.randint(5 * MS, 50 * MS)
