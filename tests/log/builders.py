"""Logs for tests: journal segments written record by record, as a proxy's worker would."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from gyre.proxy.calls import (
    CallRecord,
    CloseRecord,
    ExecutionRecord,
    Identity,
    IntentRecord,
    NewMessage,
    Outcome,
    Phase,
    Wire,
)
from gyre.proxy.log.folder import Folder, create_folder
from gyre.proxy.log.record.journal import Segment

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
Ids = Sequence[int]
Key = tuple[str, int, int]


def packed(ids: Iterable[int]) -> bytes:
    return np.array(list(ids), "<i4").tobytes()


def digest_of(ids: Iterable[int]) -> bytes:
    return xxhash.xxh3_128_digest(packed(ids))


def address(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:16]


def message(text: str, role: str = "user") -> bytes:
    return b'{"role":"%s","content":"%s"}' % (role.encode(), text.encode())


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length


@dataclass
class Truth:
    """What a row stands for, to compare with what is read back."""

    prompt: list[int] | None
    output: list[int] | None
    messages: list[bytes]
    body: bytes


@dataclass
class LogBuilder:
    root: Path
    clock: int = START
    truth: dict[Key, Truth] = field(default_factory=dict)
    known: set[bytes] = field(default_factory=set)
    """Messages that are in the log."""

    def __post_init__(self) -> None:
        self.folder: Folder = create_folder(self.root)

    def tick(self) -> int:
        self.clock += 1_000_000
        return self.clock

    def worker(self, name: str = "w0") -> Worker:
        return Worker(self, name)


class Worker:
    """One segment in the making. `die` leaves it as a kill does, `close` in order."""

    def __init__(self, log: LogBuilder, name: str) -> None:
        self.log = log
        self.name = name
        self.path = log.folder.segment(log.tick(), name)
        self.segment = Segment(self.path)

    def intent(self, call_id: str, execution: str = "e1", attempt: int = 0) -> None:
        now = self.log.tick()
        self.segment.append(
            [
                IntentRecord(
                    now, self.name, call_id, attempt, execution, 0, Wire.CHAT.value, "POST",
                    "/v1/chat/completions", "m", "b1", False, now, digest_of([1]),
                )
            ]
        )  # fmt: skip

    def call(
        self,
        call_id: str,
        prompt: Ids | None = (1, 2, 3),
        output: Ids | None = (4, 5),
        messages: Sequence[bytes] | None = None,
        tools: Sequence[bytes] = (),
        parent: Key | None = None,
        execution: str = "e1",
        attempt: int = 0,
        choice: int = 0,
        **columns: Any,
    ) -> CallRecord:
        """Append a finished call; `prompt` and `messages` are whole, the delta is made here."""
        messages = [message("hi")] if messages is None else messages
        body = body_of(messages, tools)
        record = self.record(
            call_id, prompt, output, messages, tools, parent, execution, attempt, choice, columns
        )
        self.segment.append([record])
        self.log.truth[call_id, attempt, choice] = Truth(
            None if prompt is None else list(prompt),
            None if output is None else list(output),
            list(messages),
            columns.get("raw_request") or body,
        )
        return record

    def record(
        self,
        call_id: str,
        prompt: Ids | None,
        output: Ids | None,
        messages: Sequence[bytes],
        tools: Sequence[bytes],
        parent: Key | None,
        execution: str,
        attempt: int,
        choice: int,
        columns: dict[str, Any],
    ) -> CallRecord:
        truth = self.log.truth[parent] if parent else None
        # A row without prompt ids is nobody's parent in tokens, as in the recorder.
        earlier = [*truth.prompt, *(truth.output or ())] if truth and truth.prompt is not None else []
        shared = common(earlier, prompt or ())
        shared_messages = common(truth.messages, messages) if truth else 0
        body = body_of(messages, tools)
        now = self.log.tick()
        fields: dict[str, Any] = dict(
            order=now,
            worker=self.name,
            call_id=call_id,
            attempt=attempt,
            choice=choice,
            identity=Identity(execution, "url", client="test/1"),
            parent_call_id=parent[0] if parent else None,
            parent_attempt=parent[1] if parent else 0,
            parent_choice=parent[2] if parent else 0,
            wire=Wire.CHAT.value,
            method="POST",
            path="/v1/chat/completions",
            model="m",
            backend="b1",
            engine="vllm",
            started_ns=now - SECOND,
            first_byte_ns=now - SECOND // 2,
            ended_ns=now,
            outcome=Outcome.OK.value,
            phase=Phase.DONE.value,
            http_status=200,
            finish_reason="stop",
            request=envelope_of(tools),
            request_bytes=len(body),
            request_digest=xxhash.xxh3_128_digest(body),
            messages_shared=shared_messages,
            message_suffix=[address(m) for m in messages[shared_messages:]],
            tools=[address(t) for t in tools],
            new_messages=self._new(messages, tools),
            response=b'{"role":"assistant","content":"ok"}',
            usage=b'{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}',
        )
        if prompt is not None:
            fields |= dict(
                prompt_tokens=len(prompt),
                prompt_digest=digest_of(prompt),
                prompt_shared=shared,
                prompt_suffix=packed(prompt[shared:]),
                output=packed(output or ()),
                logprobs=np.linspace(-1, 0, len(output or ()), dtype="<f4").tobytes(),
                capture_quality="exact",
                logprob_quality="sampled",
            )
        return CallRecord(**(fields | columns))

    def event(self, event: str, execution: str = "e1", **columns: Any) -> None:
        now = self.log.tick()
        self.segment.append(
            [
                ExecutionRecord(
                    order=now, worker=self.name, execution_id=execution, event=event, at_ns=now, **columns
                )
            ]
        )

    def close(self) -> None:
        self.segment.append([CloseRecord(self.log.tick(), self.name)])
        self.segment.close()

    def die(self) -> None:
        self.segment.close()

    def _new(self, messages: Sequence[bytes], tools: Sequence[bytes]) -> list[NewMessage]:
        new = []
        for kind, bodies in (("message", messages), ("tool", tools)):
            for body in bodies:
                if address(body) not in self.log.known:
                    self.log.known.add(address(body))
                    new.append(NewMessage(address(body), kind, body))
        return new


def envelope_of(tools: Sequence[bytes]) -> bytes:
    more = b',"tools":"gyre:tools:,"' if tools else b""
    return b'{"model":"m","messages":"gyre:messages:, "' + more + b"}"


def body_of(messages: Sequence[bytes], tools: Sequence[bytes]) -> bytes:
    more = b',"tools":[' + b",".join(tools) + b"]" if tools else b""
    return b'{"model":"m","messages":[' + b", ".join(messages) + b"]" + more + b"}"


def growing_run(
    worker: Worker, calls: int, execution: str = "e1", step: int = 40, output: int = 10, seed: int = 0
) -> None:
    """An agent's run: every call extends the one before by its output and something new."""
    draw = np.random.default_rng(seed)
    ids: list[int] = []
    messages = [message(f"system of {execution}", "system")]
    parent: Key | None = None
    for i in range(calls):
        ids = [*ids, *draw.integers(0, 50_000, step).tolist()]
        messages = [*messages, message(f"{execution} turn {i}")]
        sampled = draw.integers(0, 50_000, output).tolist()
        worker.call(f"{execution}-{i:05d}", ids, sampled, messages, parent=parent, execution=execution)
        parent = (f"{execution}-{i:05d}", 0, 0)
        ids = [*ids, *sampled]
