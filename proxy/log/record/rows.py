"""A finished attempt as rows for the journal: one per choice, prompts and bodies as deltas."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gyre.proxy.calls import CallRecord, NewMessage, OwnReport, Sampling, VersionSpan, WeightDigest
from gyre.proxy.capture.captured import Captured, ChoiceCapture, behaviour, float32, judge, logprob_quality
from gyre.proxy.capture.continued import continued
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.capture.usage import read_usage
from gyre.proxy.log.record.attempt import Attempt, Call
from gyre.proxy.log.record.delta import DeltaIndex, Match, RowKey
from gyre.proxy.log.record.parts import KnownMessages, Parts, take_apart

_KEPT = 1 << 16
"""Of bodies that are not taken apart, so much is kept."""


@dataclass(slots=True)
class Rows:
    """Rows for the journal, and what may be referred to once they are there."""

    records: list[CallRecord]
    match: Match | None
    addresses: list[bytes]
    pieces: list[bytes]
    """Of a prompt given as text."""

    @property
    def bytes(self) -> int:
        """What they weigh, roughly."""
        return sum(
            len(record.prompt_suffix or b"") + sum(len(message.body) for message in record.new_messages)
            for record in self.records
        )

    def learn(self, index: DeltaIndex, messages: KnownMessages) -> None:
        """The rows are committed: later calls may share with them."""
        for record in self.records:
            key = RowKey(record.call_id, record.attempt, record.choice)
            index.add(record.identity.execution_id, key, self.match, record.output, self.addresses)
            messages.remember(record.new_messages)
        if self.pieces:
            index.add_text(self.records[0].identity.execution_id, self.pieces)


@dataclass(slots=True)
class _Request:
    """The request's columns."""

    envelope: bytes | None = None
    raw: bytes | None = None
    parent: RowKey | None = None
    shared: int = 0
    addresses: list[bytes] = field(default_factory=list)
    tools: list[bytes] = field(default_factory=list)
    new: list[NewMessage] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)


def rows_of(
    attempt: Attempt, index: DeltaIndex, messages: KnownMessages, order: Callable[[], int], worker: str
) -> Rows:
    """Build the rows of `attempt`; `order` gives the next commit number."""
    captured = _captured(attempt)
    execution = attempt.call.identity.execution_id
    ids = captured.prompt_ids
    prompt = None if ids is None else ids.astype("<i4", copy=False).tobytes()
    match = None if prompt is None else index.match(execution, prompt)
    request = _request(attempt, captured, index, messages, match)
    common = _common_columns(attempt, request, worker) | _prompt_columns(prompt, match)
    choices = captured.choices or [ChoiceCapture(0)]
    records = [
        CallRecord(order=order(), **common, **_choice_columns(attempt, captured, choice))
        for choice in choices
    ]
    records[0].new_messages = request.new
    return Rows(records, match, request.addresses, request.pieces)


def _captured(attempt: Attempt) -> Captured:
    captured, ask = attempt.captured or Captured(), attempt.call.ask
    if ask is None or ask.given is None or attempt.engine != Engine.GYRE:
        return captured
    return continued(captured, ask.given, ask.stream)


def _request(
    attempt: Attempt, captured: Captured, index: DeltaIndex, messages: KnownMessages, match: Match | None
) -> _Request:
    """Store the body in pieces where they give it back exactly, else whole. Opaque bodies are kept short."""
    call = attempt.call
    if not attempt.last:
        return _Request()
    if call.top is None:
        return _Request(raw=call.body[:_KEPT] or None)
    parts = take_apart(call.body, call.top, call.wire, captured.prompt_ids)
    execution = call.identity.execution_id
    pieces = index.split_text(execution, bytes(parts.messages[0])) if parts.kind == "prompt" else []
    try:
        addresses, new = messages.addresses([*pieces] or parts.messages, parts.kind)
        tools, new_tools = messages.addresses(parts.tools, "tool")
    except UnicodeDecodeError:
        return _Request(raw=call.body)
    parent = match.parent if match else index.match_messages(execution, addresses)
    return _Request(
        envelope=parts.envelope if _is_text(parts) else None,
        raw=None if parts.exact else call.body,
        parent=parent,
        shared=index.shared_messages(execution, parent, addresses),
        addresses=addresses,
        tools=tools,
        new=_distinct(new + new_tools),
        pieces=pieces,
    )


def _is_text(parts: Parts) -> bool:
    return parts.exact or not parts.envelope.translate(None, bytes(range(128)))


def _distinct(new: list[NewMessage]) -> list[NewMessage]:
    return list({message.hash: message for message in new}.values())


def _common_columns(attempt: Attempt, request: _Request, worker: str) -> dict[str, Any]:
    call, parent = attempt.call, request.parent
    return dict(
        worker=worker,
        call_id=call.call_id,
        attempt=attempt.number,
        execution_attempt=call.execution_attempt,
        identity=call.identity,
        parent_call_id=parent.call_id if parent else None,
        parent_attempt=parent.attempt if parent else 0,
        parent_choice=parent.choice if parent else 0,
        wire=call.wire.value,
        method=call.method,
        path=call.path,
        model=call.ask.model if call.ask else None,
        upstream_model=attempt.upstream_model,
        backend=attempt.backend,
        cell=attempt.cell,
        engine=attempt.engine,
        stream=bool(call.ask and call.ask.stream),
        started_ns=attempt.started_ns,
        first_byte_ns=attempt.first_byte_ns,
        ended_ns=time.time_ns(),
        held_s=call.held_s,
        outcome=attempt.outcome.value,
        phase=attempt.phase.value,
        http_status=attempt.status,
        error=attempt.error,
        request=request.envelope,
        request_bytes=call.body_bytes,
        request_digest=call.digest,
        raw_request=request.raw,
        messages_shared=request.shared,
        message_suffix=request.addresses[request.shared :],
        tools=request.tools,
        response_bytes=attempt.response_bytes,
        response_digest=attempt.response_digest,
        raw_response=attempt.raw_response,
        delivery_of=attempt.delivery_of,
        upstream_wire=attempt.upstream_wire,
    )


def _prompt_columns(prompt: bytes | None, match: Match | None) -> dict[str, Any]:
    if match is None or prompt is None:
        return {}
    return dict(
        prompt_tokens=len(prompt) // 4,
        prompt_digest=match.digest,
        prompt_shared=match.shared,
        prompt_suffix=prompt[4 * match.shared :],
    )


def _choice_columns(attempt: Attempt, captured: Captured, choice: ChoiceCapture) -> dict[str, Any]:
    call = attempt.call
    sampling = effective_sampling(call, captured, attempt.defaults)
    if choice.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=choice.seed)
    if attempt.version_changed and not choice.spans and choice.ids:
        captured.flag("version_unsure")
    usage = captured.usage if choice.index == 0 else None
    sampled = attempt.captured is not None and attempt.delivery_of is None
    quality, flags = judge(captured, choice, read_usage(captured.usage), sampled)
    logprobs, raw_logprobs = behaviour(choice, sampling)
    return dict(
        choice=choice.index,
        finish_reason=choice.finish_reason,
        response=choice.message,
        response_meta=captured.meta,
        output=None if choice.ids is None else struct.pack(f"<{len(choice.ids)}i", *choice.ids),
        logprobs=float32(logprobs),
        version_spans=_spans(attempt, choice),
        usage=usage,
        sampling=sampling,
        capture_quality=quality.value,
        logprob_quality=logprob_quality(choice, sampling).value,
        capture_flags=[*call.identity.flags, *call.flags, *attempt.flags, *flags],
        own=_own(captured, choice, raw_logprobs) if attempt.engine == Engine.GYRE else None,
    )


def _own(captured: Captured, choice: ChoiceCapture, raw_logprobs: list[float | None] | None) -> OwnReport:
    digests = [WeightDigest(*pair) for pair in captured.weight_digests.items()]
    return OwnReport(float32(raw_logprobs), choice.kv_spans, digests or None, captured.spliced_tokens)


def effective_sampling(call: Call, captured: Captured, defaults: Sampling) -> Sampling:
    """What the engine says it used; else the request's values over the backend's defaults."""
    if captured.sampling is not None:
        return captured.sampling
    if call.ask is None:
        return defaults
    asked = call.ask.sampling
    if asked == Sampling():
        return defaults
    names = Sampling.__struct_fields__
    return Sampling(
        *(getattr(defaults, n) if getattr(asked, n) is None else getattr(asked, n) for n in names)
    )


def _spans(attempt: Attempt, choice: ChoiceCapture) -> list[VersionSpan]:
    count = len(choice.ids or ())
    if choice.spans:
        return choice.version_spans
    if attempt.version is None or attempt.version_changed or not count:
        return []
    return [VersionSpan(attempt.version, 0, count)]
