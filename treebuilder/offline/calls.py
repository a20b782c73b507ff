"""Rows of one attempt of an execution as `Call` values; decides nothing about trees. Pure.

A row whose parent belongs to another attempt of the execution is given whole. What is wrong with the rows
raises `ExecutionError` with the call's name.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

import orjson

from gyre.proxy.calls import CaptureQuality, LogprobQuality
from gyre.proxy.errors import CorruptLogError
from gyre.treebuilder.call import Call, sampling
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.proof.wholes import Row, Wholes
from gyre.treebuilder.trees import CallKey

Placed = tuple[tuple[int, str, CallKey], int, Row]
"""Where a row stands in commit order, its attempt of the execution, the row."""
_SKEW_NS = 1_000_000_000


def calls_of(
    placed: Iterable[Placed], attempt: int, evaluation: bool = False
) -> tuple[list[Call], list[str]]:
    """The calls of an attempt in commit order, and what is odd about them.

    Args:
        placed: rows of all attempts of the execution, since those of one may build on another's.

    Raises:
        ExecutionError: its rows contradict each other, or lack something.
    """
    rows = sorted(placed, key=itemgetter(0))
    reading = _Reading(Wholes(row for _, _, row in rows))
    for _, of, row in rows:
        if of == attempt:
            reading.add(row, evaluation)
    return reading.calls, reading.problems


class _Reading:
    """One attempt while its rows are read."""

    def __init__(self, wholes: Wholes) -> None:
        self.calls: list[Call] = []
        self.problems: list[str] = []
        self._wholes = wholes
        self._known: dict[CallKey, tuple[Row, Call]] = {}

    def add(self, row: Row, evaluation: bool) -> None:
        key = row.key
        if key in self._known:
            if not _same(row, self._known[key][0]):
                raise _error(row, "is in the log twice, with different content")
            return
        _check_lengths(row)
        call = _call(key, row, evaluation)
        self._join(call, row)
        self._clocks(call, row)
        self._known[key] = row, call
        self.calls.append(call)

    def _join(self, call: Call, row: Row) -> None:
        """Refer to the parent where the builder has it by then; else make the call whole."""
        parent = row.parent
        if parent is None:
            if row.prompt_shared or row.messages_shared:
                raise _error(row, "shares with a parent and names none")
            return
        if parent in self._known:
            _check_shared(row, self._known[parent][0])
            call.parent = parent
            return
        try:
            call.suffix, call.messages = self._wholes.prompt(row), self._wholes.messages(row)
        except CorruptLogError as problem:
            raise ExecutionError(problem.message) from None
        call.shared = call.messages_shared = 0

    def _clocks(self, call: Call, row: Row) -> None:
        if 0 < call.ended_ns < call.started_ns:
            self.problems.append(f"call {name(call.key)} ended before it started")
        if call.parent is None:
            return
        theirs, parent = self._known[call.parent]
        goes_on = call.shared > (theirs.prompt_tokens or 0)
        if goes_on and call.started_ns < parent.started_ns - _SKEW_NS:
            text = f"call {name(call.key)} started before {name(parent.key)}, whose answer it goes on from"
            self.problems.append(text)


def name(key: CallKey) -> str:
    """A row as errors spell it."""
    first = (key.attempt, key.choice) == (0, 0)
    return f"`{key.call_id}`" if first else f"`{key.call_id}` (attempt {key.attempt}, choice {key.choice})"


def _call(key: CallKey, row: Row, evaluation: bool) -> Call:
    return Call(
        key=key,
        shared=row.prompt_shared,
        suffix=row.prompt_suffix_ids,
        prompt_digest=bytes.fromhex(row.prompt_digest) if row.prompt_digest else None,
        output=row.output_ids,
        # Fewer than ids: then it is not known which belongs to which.
        logprobs=row.output_logprobs if row.logprobs == row.outputs else None,
        version_spans=row.version_spans,
        messages_shared=row.messages_shared,
        messages=row.message_hashes or [],
        tools=tuple(row.tool_hashes or ()),
        request_digest=bytes.fromhex(row.request_digest or ""),
        response=row.response,
        started_ns=row.started_at * 1000,
        ended_ns=row.ended_at * 1000,
        outcome=row.outcome,
        finish_reason=row.finish_reason,
        temperature=row.temperature,
        sampling=sampling(
            row.top_p,
            row.top_k,
            row.min_p,
            row.presence_penalty,
            row.frequency_penalty,
            row.repetition_penalty,
        ),
        session_id=row.session_id,
        agent_id=row.agent_id,
        parent_agent_id=row.parent_agent_id,
        hints=_hints(row.lineage_hints),
        retry_count=row.retry_count,
        delivery_of=row.delivery_of,
        capture_quality=row.capture_quality or CaptureQuality.NONE.value,
        logprob_quality=row.logprob_quality or LogprobQuality.NONE.value,
        flags=tuple(row.capture_flags or ()),
        evaluation=evaluation,
    )


def _check_lengths(row: Row) -> None:
    suffix = row.prompt_suffix_ids
    if (suffix is None) != (row.prompt_tokens is None):
        raise _error(row, "has a prompt length without ids, or ids without a length")
    if suffix is not None and row.prompt_shared + len(suffix) != row.prompt_tokens:
        have = row.prompt_shared + len(suffix)
        raise _error(row, f"should have {row.prompt_tokens} prompt ids and has {have}")
    for _, start, end in row.version_spans:
        if not 0 <= start <= end <= row.outputs:
            raise _error(row, f"has a version span {start}-{end} over {row.outputs} output ids")
    if row.capture_quality == CaptureQuality.EXACT and (suffix is None or row.outputs != row.logprobs):
        counts = f"{row.outputs} output ids and {row.logprobs} log-probabilities"
        raise _error(row, f"claims exact capture with {counts if suffix is not None else 'no prompt ids'}")


def _check_shared(row: Row, theirs: Row) -> None:
    tokens = (theirs.prompt_tokens or 0) + theirs.outputs
    if not 0 <= row.prompt_shared <= tokens:
        raise _error(row, f"shares {row.prompt_shared} ids with {name(theirs.key)}, which has {tokens}")
    count = theirs.messages_shared + len(theirs.message_hashes or ())
    if not 0 <= row.messages_shared <= count:
        text = f"shares {row.messages_shared} messages with {name(theirs.key)}, which has {count}"
        raise _error(row, text)


def _same(one: Row, other: Row) -> bool:
    """Whether two rows with one key are one row that was written twice; a seal may change the parent."""
    alike = ("outcome", "prompt_tokens", "prompt_digest", "response", "response_digest", "capture_quality")
    if any(getattr(one, column) != getattr(other, column) for column in alike):
        return False
    pairs = ((one.output_ids, other.output_ids), (one.output_logprobs, other.output_logprobs))
    return all(
        (a is None) == (b is None) and (a is None or b is None or a.tobytes() == b.tobytes())
        for a, b in pairs
    )


def _error(row: Row, text: str) -> ExecutionError:
    return ExecutionError(f"call {name(row.key)} {text}")


def _hints(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        hints = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(hints, dict):
        return {}
    return {
        key: hint if isinstance(hint, str) else orjson.dumps(hint).decode() for key, hint in hints.items()
    }
