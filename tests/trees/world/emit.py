"""Rows of the world as the builder takes them, and as a log holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from typing import Any

import numpy as np
import xxhash

from gyre.proxy.calls import Identity, VersionSpan
from gyre.treebuilder.call import Call
from gyre.treebuilder.trees import CallKey
from tests.log.builders import Worker, address, body_of, common
from tests.trees.world.labels import Labels
from tests.trees.world.row import Row
from tests.trees.world.wires import Form, request_bodies, response_body, tool_bodies


@dataclass(frozen=True)
class View:
    """How much of the truth the record shows."""

    labels: bool = True
    """Headers of the harness and counts of retries."""
    ids: bool = True
    deltas: bool = True
    """Prompts as what is new in them; else whole."""
    form: Form = Form.CHAT


@dataclass
class Record:
    calls: list[Call] = field(default_factory=list)
    bodies: dict[str, bytes] = field(default_factory=dict)
    """Messages and tools by address."""


def in_commit_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.ended, row.key.choice))


def emit(rows: list[Row], view: View) -> Record:
    writer = _Writer(view, final_attempts(rows))
    for row in in_commit_order(rows):
        writer.write(row)
    return writer.record


def final_attempts(rows: list[Row]) -> dict[str, int]:
    """By call: the attempt whose row carries the request."""
    return {row.key.call_id: row.key.attempt for row in sorted(rows, key=lambda row: row.key.attempt)}


class _Writer:
    def __init__(self, view: View, final: dict[str, int]) -> None:
        self.view = view
        self.final = final
        self.record = Record()
        self.random = Random(0)
        self.rows: dict[CallKey, Row] = {}
        self.lists: dict[CallKey, list[str]] = {}

    def write(self, row: Row) -> None:
        messages = self._addresses(request_bodies(row.messages, self.view.form))
        tools = self._addresses(tool_bodies(row.tools, self.view.form))
        call = Call(row.key, messages=messages, tools=tuple(tools))
        call.request_digest = xxhash.xxh3_128_digest(" ".join([*messages, "", *tools]).encode())
        _describe(call, row, self.view)
        if row.key.attempt < self.final[row.key.call_id]:
            call.messages, call.tools = [], ()
            self.record.calls.append(call)
            return
        if self.view.ids and row.has_ids:
            _fill_ids(call, row)
        parent = self._parent(row) if self.view.deltas else None
        if parent:
            self._shorten(call, row, parent)
        self.rows[row.key], self.lists[row.key] = row, messages
        self.record.calls.append(call)

    def _addresses(self, bodies: list[bytes]) -> list[str]:
        self.record.bodies.update((address(body).hex(), body) for body in bodies)
        return [address(body).hex() for body in bodies]

    def _parent(self, row: Row) -> Row | None:
        """Mostly where it came from; storage needs no more than any earlier row."""
        origin = row.truth.origin
        likely = self.rows.get(origin) if origin else None
        anyone = self.random.choice(list(self.rows.values())) if self.rows else None
        parent = likely if self.random.random() < 0.8 else anyone
        return parent if parent and (parent.has_ids or not row.has_ids) else None

    def _shorten(self, call: Call, row: Row, parent: Row) -> None:
        call.parent = parent.key
        call.messages_shared = common(self.lists[parent.key], call.messages)
        call.messages = call.messages[call.messages_shared :]
        if call.suffix is not None:
            call.shared = common(parent.path.ids, row.prompt.ids)
            call.suffix = call.suffix[call.shared :]


def _describe(call: Call, row: Row, view: View) -> None:
    call.started_ns, call.ended_ns = row.started, row.ended
    call.outcome, call.finish_reason = row.outcome, row.finish
    call.delivery_of, call.flags = row.delivery_of, row.flags
    call.response = response_body(row.reply.message, view.form) if row.reply else None
    call.capture_quality = call.logprob_quality = "none"
    if view.labels:
        labels = row.labels
        call.session_id, call.agent_id = labels.session_id, labels.agent_id
        call.parent_agent_id, call.hints = labels.parent_agent_id, dict(labels.hints)
        call.retry_count = row.retry_count


def _fill_ids(call: Call, row: Row) -> None:
    assert row.reply
    prompt = np.array(row.prompt.ids, np.int32)
    call.suffix, call.prompt_digest = prompt, xxhash.xxh3_128_digest(prompt.tobytes())
    call.output = np.array(row.reply.sampled.ids, np.int32)
    call.logprobs = np.array(row.reply.logprobs, np.float32)
    call.version_spans = list(row.spans)
    call.capture_quality, call.logprob_quality = row.capture_quality, row.logprob_quality


def write_log(rows: list[Row], workers: Worker | Sequence[Worker], execution: str, view: View) -> None:
    """The same rows through the journal of a proxy; several workers take turns."""
    taking = cycle([workers] if isinstance(workers, Worker) else workers)
    earlier: dict[CallKey, Row] = {}
    final = final_attempts(rows)
    for row in in_commit_order(rows):
        carries = row.key.attempt == final[row.key.call_id]
        parent = _stored_parent(row, earlier) if carries else None
        _append(row, next(taking), execution, view, parent, carries)
        if carries:
            earlier[row.key] = row


def _stored_parent(row: Row, earlier: dict[CallKey, Row]) -> CallKey | None:
    origin = row.truth.origin
    return origin if origin in earlier and earlier[origin].has_ids >= row.has_ids else None


def _append(
    row: Row, worker: Worker, execution: str, view: View, parent: CallKey | None, carries: bool
) -> None:
    """`carries`: the row has the request, not only its digest."""
    exact = view.ids and row.has_ids
    messages, tools = request_bodies(row.messages, view.form), tool_bodies(row.tools, view.form)
    reply = row.reply
    columns: dict[str, Any] = dict(
        identity=_identity(execution, row.labels if view.labels else Labels(), row, view),
        started_ns=row.started,
        ended_ns=row.ended,
        outcome=row.outcome,
        finish_reason=row.finish,
        response=response_body(reply.message, view.form) if reply else None,
        delivery_of=row.delivery_of,
        capture_flags=list(row.flags),
    )
    if exact and reply:
        columns |= dict(
            logprobs=np.array(reply.logprobs, "<f4").tobytes(),
            version_spans=[VersionSpan(*span) for span in row.spans],
            capture_quality=row.capture_quality,
            logprob_quality=row.logprob_quality,
        )
    if not carries:
        columns |= dict(request=None, request_digest=xxhash.xxh3_128_digest(body_of(messages, tools)))
    worker.call(
        row.key.call_id,
        row.prompt.ids if exact else None,
        reply.sampled.ids if exact and reply else None,
        messages if carries else [],
        tools if carries else [],
        (parent.call_id, parent.attempt, parent.choice) if parent else None,
        execution,
        row.key.attempt,
        row.key.choice,
        **columns,
    )


def _identity(execution: str, labels: Labels, row: Row, view: View) -> Identity:
    return Identity(
        execution,
        "url",
        session_id=labels.session_id,
        agent_id=labels.agent_id,
        parent_agent_id=labels.parent_agent_id,
        retry_count=row.retry_count if view.labels else None,
        hints=dict(labels.hints),
    )
