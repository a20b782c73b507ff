"""Agents that talk: calls with token ids, texts and tools, as a recorder would commit them. Seeded.

Ids are drawn by Zipf's law, and every prompt and every answer ends as a chat template ends them, so
that the last id tells little. Texts have four bytes for each token. What an earlier call had is stored
as a reference to it, by the recorder's own rule. Nothing says which agent calls: an execution's name is
its only label, as with harnesses that send no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from benchmarks.bodies import Reader, tool_list
from benchmarks.material import BYTES_PER_TOKEN, SEED, VOCABULARY

Ids = npt.NDArray[np.int32]
SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
BODY_START = b'{"model":"bench","messages":['
_AROUND = 12
"""Tokens of a chat template around a message."""
_TURN = (5, 9, 1)
"""Ids that a template puts before an answer; like the one after it they are common in texts too."""
_END = 2


@dataclass(frozen=True)
class Setting:
    """A system prompt with its tools: the same ids wherever it is used."""

    system: bytes
    tools: tuple[bytes, ...]
    ids: Ids


def setting(text: str, tokens: int, tools: int, seed: int) -> Setting:
    ids = zipf(np.random.default_rng(SEED + seed), tokens)
    listed = orjson.loads(tool_list(tools) or b"[]")
    return Setting(said("system", content=text), tuple(orjson.dumps(tool) for tool in listed), ids)


@dataclass(slots=True)
class Turn:
    """One finished call. Its prompt is (parent.prompt + parent.output)[:shared] + new."""

    execution: str
    call_id: str
    order: int
    """Commit order: also when it ended, in nanoseconds."""
    started_ns: int
    parent: str | None
    shared: int
    new: Ids
    digest: bytes
    """xxh3-128 of the whole prompt."""
    output: Ids
    logprobs: npt.NDArray[np.float32]
    messages_shared: int
    messages: list[bytes]
    """JSON of those after `messages_shared`."""
    tools: tuple[bytes, ...]
    body_bytes: int
    body_digest: bytes
    """xxh3-128 of the request's body."""
    response: bytes
    outcome: str = "ok"
    retry_count: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.shared + len(self.new)


class World:
    """One execution: its name, clock, numbers and text, none of them used twice."""

    def __init__(self, name: str, seed: int, text: bytes) -> None:
        self.name = name
        self.rng = np.random.default_rng([SEED, seed])
        self.sizes = np.random.default_rng([SEED, seed, 1])
        """How long everything is, apart from what it consists of."""
        self.now = START + seed * 1009
        self.first: dict[bytes, Turn] = {}
        """The first call of each setting, by its system prompt."""
        self._reader = Reader(text, seed * 104_729 * BYTES_PER_TOKEN % len(text))
        self._calls = 0

    def ids(self, count: int) -> Ids:
        return zipf(self.rng, count)

    def prose(self, tokens: int) -> str:
        return self._reader.read(max(8, BYTES_PER_TOKEN * tokens)).decode()

    def next_call(self) -> tuple[str, int, int]:
        """Its id, when it started and when it ended."""
        self._calls += 1
        started = self.now
        self.now += int(self.rng.integers(2 * SECOND, 9 * SECOND))
        return f"{self.name}-{self._calls:05d}", started, self.now


class Agent:
    """One context: messages, and the ids they are rendered to. Both only grow."""

    def __init__(self, world: World, place: Setting) -> None:
        self.world = world
        self.place = place
        beside = world.first.get(place.system)
        self._parent = beside.call_id if beside else None
        self._shared = len(place.ids) if beside else 0
        self._messages_shared = 1 if beside else 0
        self._new: list[Ids] = [] if beside else [place.ids]
        self._messages = [] if beside else [place.system]
        self._listed = 1
        self._prompt = xxhash.xxh3_128(place.ids.data)
        self._body = xxhash.xxh3_128(BODY_START + place.system)
        self._body_bytes = len(BODY_START + place.system)

    @property
    def tokens(self) -> int:
        """Length of the next prompt as it stands."""
        return self._shared + sum(len(ids) for ids in self._new)

    def hear(self, message: bytes, tokens: int) -> None:
        """A message of someone else."""
        ids = self.world.ids(tokens)
        ids[-len(_TURN) :] = _TURN[-tokens:] if tokens else ()
        self._take_ids(ids)
        self._take_message(message)

    def say(self, response: bytes, tokens: int, *, stripped: int = 0, retry: int | None = None) -> Turn:
        """A call; the history goes on with its answer, less the leading ids that a template strips."""
        turn = self._turn(response, tokens, retry)
        if stripped:
            self._go_on(turn, turn.prompt_tokens)
            self._take_ids(turn.output[stripped:])
        else:
            self._go_on(turn, turn.prompt_tokens + tokens)
            self._prompt.update(turn.output.data)
        self._take_message(response)
        return turn

    def fail(self, response: bytes, tokens: int, outcome: str) -> Turn:
        """A call whose answer the harness never had, or not whole."""
        turn = self._turn(response, tokens, None)
        turn.outcome = outcome
        self._go_on(turn, turn.prompt_tokens)
        return turn

    def _turn(self, response: bytes, tokens: int, retry: int | None) -> Turn:
        call_id, started, ended = self.world.next_call()
        output = self.world.ids(tokens)
        output[-1] = _END
        end = self._body_end()
        body = self._body.copy()
        body.update(end)
        turn = Turn(
            execution=self.world.name,
            call_id=call_id,
            order=ended,
            started_ns=started,
            parent=self._parent,
            shared=self._shared,
            new=np.concatenate(self._new) if self._new else np.zeros(0, np.int32),
            digest=self._prompt.digest(),
            output=output,
            logprobs=-self.world.rng.exponential(0.4, tokens).astype(np.float32),
            messages_shared=self._messages_shared,
            messages=self._messages,
            tools=self.place.tools,
            body_bytes=self._body_bytes + len(end),
            body_digest=body.digest(),
            response=response,
            retry_count=retry,
        )
        self.world.first.setdefault(self.place.system, turn)
        return turn

    def _body_end(self) -> bytes:
        return b"]" + (b',"tools":[' + b",".join(self.place.tools) + b"]" if self.place.tools else b"") + b"}"

    def _go_on(self, turn: Turn, shared: int) -> None:
        """The next prompt is told by what it has of this call."""
        self._parent, self._shared, self._new = turn.call_id, shared, []
        self._messages_shared, self._messages = self._listed, []

    def _take_ids(self, ids: Ids) -> None:
        self._new.append(ids)
        self._prompt.update(ids.data)

    def _take_message(self, message: bytes) -> None:
        self._messages.append(message)
        self._listed += 1
        self._body.update(b"," + message)
        self._body_bytes += 1 + len(message)


def zipf(rng: np.random.Generator, count: int) -> Ids:
    """Ids of which the n-th is as common as 1/n."""
    ids: Ids = np.exp(rng.random(count, np.float32) * np.float32(np.log(VOCABULARY))).astype(np.int32) - 1
    return ids


def said(role: str, **fields: object) -> bytes:
    return orjson.dumps({"role": role, **fields})


def asked(name: str, number: str, **arguments: str) -> dict[str, object]:
    """A tool call as it stands in an answer."""
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    return {"id": f"call-{number}", "type": "function", "function": function}


def step(world: World, tokens: int, reasoning: int = 0) -> bytes:
    """An answer that uses a tool: half of it words, half the command."""
    rest = tokens - reasoning
    call = asked("tool_0", f"{world.now:x}", path=world.prose(rest // 2))
    thought = {"reasoning_content": world.prose(reasoning)} if reasoning else {}
    return said("assistant", content=world.prose(rest - rest // 2), **thought, tool_calls=[call])


def content(response: bytes) -> str:
    told: str = orjson.loads(response)["content"]
    return told


def result(world: World, response: bytes, tokens: int) -> bytes:
    """What the tool of that answer gave."""
    call = orjson.loads(response)["tool_calls"][0]["id"]
    return said("tool", tool_call_id=call, content=world.prose(tokens - _AROUND))


def whole_prompts(turns: Sequence[Turn]) -> list[tuple[Ids, Ids]]:
    """(prompt, output) of every call, each an array of its own, as an engine saw and gave them."""
    known: dict[str, tuple[Ids, Ids]] = {}
    for turn in turns:
        prompt = np.empty(turn.prompt_tokens, np.int32)
        if turn.parent is not None:
            earlier, output = known[turn.parent]
            common = min(turn.shared, len(earlier))
            prompt[:common] = earlier[:common]
            prompt[common : turn.shared] = output[: turn.shared - common]
        prompt[turn.shared :] = turn.new
        known[turn.call_id] = prompt, turn.output
    return list(known.values())
