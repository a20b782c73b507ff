"""Made-up executions as a log on disk: journal rows as a worker writes them, sealed as a proxy seals."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.trees.story import SECOND, START, Turn
from gyre.proxy.calls import CallRecord, CloseRecord, ExecutionRecord, Identity, Phase, VersionSpan, Wire
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.record.journal import Segment
from gyre.proxy.log.record.parts import KnownMessages
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.settings import Log

WORKER = "w0"
_ENVELOPE = b'{"model":"bench","messages":"gyre:messages:,"%b}'
_TOOLS = b',"tools":"gyre:tools:,"'


class LogWriter:
    """One worker; a segment is left for a fresh one and sealed as soon as it is as large as by default."""

    def __init__(self, root: Path) -> None:
        self.folder = create_folder(root)
        self._known = KnownMessages(most=10_000_000)
        self._order = START
        self._segment = self._open()

    def call(self, turn: Turn) -> None:
        self._order = turn.order
        record = record_of(turn, self._known)
        self._segment.append([record])
        self._known.remember(record.new_messages)
        if self._segment.bytes > Log().rotate_bytes:
            self.seal()
            self._segment = self._open()

    def event(self, execution: str, event: str, **columns: Any) -> None:
        self._order += 1
        row: dict[str, Any] = dict(
            order=self._order, worker=WORKER, execution_id=execution, event=event, at_ns=self._order
        )
        self._segment.append([ExecutionRecord(**(row | columns))])

    def seal(self) -> None:
        """Leave the segment in order, and put it into Parquet."""
        self._order += 1
        self._segment.append([CloseRecord(self._order, WORKER)])
        self._segment.close()
        seal(self.folder.root)

    def _open(self) -> Segment:
        return Segment(self.folder.segment(self._order, WORKER))


def write_log(root: Path, executions: Sequence[Iterable[Turn]], group: str | None = None) -> None:
    """Executions that run at the same time; each has a score at its end."""
    writer = LogWriter(root)
    names: dict[str, None] = {}
    for turn in heapq.merge(*executions, key=lambda turn: turn.order):
        if turn.execution not in names:
            writer.event(turn.execution, "started", task=group, group=group)
            names[turn.execution] = None
        writer.call(turn)
    for number, name in enumerate(names):
        writer.event(name, "ended", outcome="completed", score=number % 3 / 2)
    writer.seal()


def record_of(turn: Turn, known: KnownMessages) -> CallRecord:
    addresses, new = known.addresses(list(turn.messages), "message")
    tools, new_tools = known.addresses(list(turn.tools), "tool")
    whole = turn.outcome == "ok"
    return CallRecord(
        order=turn.order,
        worker=WORKER,
        call_id=turn.call_id,
        identity=Identity(turn.execution, "url", retry_count=turn.retry_count),
        parent_call_id=turn.parent,
        wire=Wire.CHAT.value,
        method="POST",
        path="/v1/chat/completions",
        model="bench",
        upstream_model="bench",
        backend="b1",
        engine="vllm",
        started_ns=turn.started_ns,
        first_byte_ns=turn.started_ns + SECOND // 5,
        ended_ns=turn.order,
        outcome=turn.outcome,
        phase=(Phase.DONE if whole else Phase.IDLE).value,
        http_status=200,
        finish_reason="stop" if whole else None,
        request=_ENVELOPE % (_TOOLS if turn.tools else b""),
        request_bytes=turn.body_bytes,
        request_digest=turn.body_digest,
        messages_shared=turn.messages_shared,
        message_suffix=addresses,
        tools=tools,
        new_messages=list({message.hash: message for message in [*new, *new_tools]}.values()),
        response=turn.response,
        response_bytes=len(turn.response),
        prompt_tokens=turn.prompt_tokens,
        prompt_digest=turn.digest,
        prompt_shared=turn.shared,
        prompt_suffix=turn.new.tobytes(),
        output=turn.output.tobytes(),
        logprobs=turn.logprobs.tobytes(),
        version_spans=[VersionSpan("1", 0, len(turn.output))],
        usage=orjson.dumps({"prompt_tokens": turn.prompt_tokens, "completion_tokens": len(turn.output)}),
        capture_quality="exact" if whole else "incomplete",
        logprob_quality="sampled",
        capture_flags=[] if whole else ["cut"],
    )
