"""Hand-written executions: calls in the words of a real harness, and their links as lines of text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xxhash

from gyre.proxy.calls import Identity
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import CallKey, Confidence, ExecutionTree, Link
from gyre.treebuilder.verify import verify_trees
from tests.log.builders import LogBuilder, Worker, address, body_of
from tests.trees.world.labels import Headers, Who, labels_of

Body = dict[str, Any]
MS = 1_000_000
START = 1_700_000_000_000 * MS
_REASONS = ("reasoning_content", "thinking", "summary")
_SILENT = ("role", "cache_control", "id", "call_id", "tool_use_id", "tool_call_id", "type", "signature")
"""What a chat template does not write down."""

MAIN = Who("main", None, 0, 0)


@dataclass
class Scene:
    """`headers` is how the harness names its agents; NONE hides it."""

    headers: Headers = Headers.NONE
    ids: bool = True
    calls: list[Call] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    clock: int = 0
    """Milliseconds."""
    words: dict[str, int] = field(default_factory=dict)

    def call(
        self,
        name: str,
        messages: Sequence[Body],
        answer: Body | Sequence[Body] | None,
        tools: Sequence[str] = ("read", "write"),
        who: Who = MAIN,
        kind: str = "turn",
        times: tuple[int, int] | None = None,
        stripped: bool = False,
        tried: Sequence[tuple[int, int]] = (),
        **fields: Any,
    ) -> str:
        """One row of the log; `times` in milliseconds where calls overlap. `stripped`: the template leaves
        reasoning out. `tried`: times of attempts at other engines before, each a row without the request."""
        started, ended = times or (self.clock + 10, self.clock + 100)
        self.clock = max(self.clock, ended)
        key = CallKey(name, len(tried))
        call = Call(key, started_ns=START + started * MS, ended_ns=START + ended * MS)
        call.messages = [self._address(message) for message in messages]
        call.tools = tuple(self._address({"type": "function", "function": {"name": tool}}) for tool in tools)
        sent = body_of(*([self.bodies[each] for each in part] for part in (call.messages, call.tools)))
        call.request_digest = xxhash.xxh3_128_digest(sent)
        call.response = None if answer is None else json.dumps(answer).encode()
        whole = fields.get("outcome", "ok") == "ok" and fields.get("finish_reason") != "length"
        if self.ids and answer is not None:
            self._fill_ids(call, tools, messages, answer, stripped, whole)
        labels = labels_of(self.headers, who, kind)
        call.session_id, call.agent_id = labels.session_id, labels.agent_id
        call.parent_agent_id, call.hints = labels.parent_agent_id, labels.hints
        for field_name, value in fields.items():
            setattr(call, field_name, value)
        if self.headers is Headers.NONE:
            call.retry_count = None
        self.calls += [*(_failed_over(call, n, *span) for n, span in enumerate(tried)), call]
        return name

    def tree(self) -> ExecutionTree:
        builder = Builder("e1", bodies=self.bodies)
        for call in sorted(self.calls, key=lambda call: call.ended_ns):
            builder.add(call)
        return builder.tree()

    def story(self) -> dict[str, str]:
        """By call: `role: cause step <- origin`, with `?` where it is quarantined.

        The same execution goes from a log to trees on disk, and these are proven.
        """
        story = _story(self.tree())
        with TemporaryDirectory() as folder:
            logs, trees = Path(folder) / "logs", Path(folder) / "trees"
            self.write(LogBuilder(logs).worker())
            assert build_trees(logs, trees).ok
            assert verify_trees(trees) == []
            assert _story(read_trees(trees).tree("e1")) == story
        return story

    def write(self, worker: Worker) -> None:
        """The rows that a proxy would have written."""
        for call in sorted(self.calls, key=lambda call: call.ended_ns):
            labels = (call.session_id, "header", call.agent_id, "header", call.parent_agent_id, "header")
            identity = Identity("e1", "url", *labels, retry_count=call.retry_count, hints=call.hints)
            columns: dict[str, Any] = dict(
                identity=identity,
                started_ns=call.started_ns,
                ended_ns=call.ended_ns,
                outcome=call.outcome,
                finish_reason=call.finish_reason,
                response=call.response,
                request_digest=call.request_digest,
                capture_flags=list(call.flags),
            )
            if call.suffix is not None and call.logprobs is not None:
                columns |= dict(logprobs=call.logprobs.tobytes(), capture_quality=call.capture_quality)
            worker.call(
                call.key.call_id,
                None if call.suffix is None else call.suffix.tolist(),
                None if call.output is None else call.output.tolist(),
                [self.bodies[address] for address in call.messages],
                [self.bodies[address] for address in call.tools],
                attempt=call.key.attempt,
                choice=call.key.choice,
                **columns,
            )
        worker.close()

    def contexts(self) -> list[list[str]]:
        found: dict[int, list[str]] = {}
        for link in self.tree().links:
            found.setdefault(link.context_id, []).append(link.call.call_id)
        return sorted(found.values())

    def _address(self, body: Body) -> str:
        encoded = json.dumps(body).encode()
        self.bodies[address(encoded).hex()] = encoded
        return address(encoded).hex()

    def _fill_ids(
        self,
        call: Call,
        tools: Sequence[str],
        messages: Sequence[Body],
        answer: Any,
        stripped: bool,
        whole: bool,
    ) -> None:
        words = [*tools, *written(messages, stripped), "<assistant>"]
        call.suffix = self.numbered(words)
        call.prompt_digest = xxhash.xxh3_128_digest(call.suffix.tobytes())
        call.output = self.numbered([*spoken(answer, False), *["<end>"] * whole])
        call.logprobs = np.full(len(call.output), -0.5, np.float32)

    def numbered(self, words: list[str]) -> Any:
        return np.array([self.words.setdefault(word, len(self.words)) for word in words], np.int32)


def _failed_over(call: Call, attempt: int, started: int, ended: int) -> Call:
    """An attempt at another engine, as the log has it: of the request no more than the digest."""
    return Call(
        CallKey(call.key.call_id, attempt),
        request_digest=call.request_digest,
        started_ns=START + started * MS,
        ended_ns=START + ended * MS,
        outcome="upstream_error",
        session_id=call.session_id,
        agent_id=call.agent_id,
        parent_agent_id=call.parent_agent_id,
        hints=call.hints,
        retry_count=call.retry_count,
    )


def _story(tree: ExecutionTree) -> dict[str, str]:
    last = {link.call.call_id: link.call for link in sorted(tree.links, key=lambda link: link.call.attempt)}
    tried = [link for link in tree.links if link.call != last[link.call.call_id]]
    more = {f"{link.call.call_id} try {link.call.attempt}": line(link) for link in tried}
    return more | {link.call.call_id: line(link) for link in tree.links if link not in tried}


def line(link: Link) -> str:
    if link.confidence is Confidence.QUARANTINED:
        return f"{link.role}: {link.cause} ?"
    step = f" {link.step}" if link.step else ""
    origin = f" <- {link.origin.call_id}" if link.origin else ""
    return f"{link.role}: {link.cause}{step}{origin}"


def written(messages: Sequence[Body], stripped: bool) -> list[str]:
    """What a chat template makes of messages or items; all that the model said in a row is one turn."""
    words: list[str] = []
    for speaker, grouped in groupby(messages, _speaker):
        turn = list(grouped)
        for piece in [turn] if speaker == "assistant" else [[body] for body in turn]:
            words += [f"<{speaker}>", *spoken(piece, stripped), "<end>"]
    return words


def _speaker(body: Body) -> str:
    said = body.get("type") in ("reasoning", "function_call")
    return "assistant" if said else str(body.get("role", body.get("type")))


def spoken(value: Any, stripped: bool) -> Iterator[str]:
    """The words of a message that a template writes down."""
    match value:
        case str():
            yield from value.split()
        case list() | tuple():
            for item in value:
                yield from spoken(item, stripped)
        case dict():
            for key in sorted(value, key=lambda key: (key not in _REASONS, key)):
                if key not in _SILENT and not (stripped and key in _REASONS):
                    yield from spoken(value[key], stripped)
