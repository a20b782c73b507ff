"""A row of the journal is the row that is read once it is sealed, whatever way it is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.calls import CallRecord, Identity, Sampling, VersionSpan
from gyre.proxy.log.sealing.widen import calls_table
from gyre.treebuilder.offline.records import placed_record
from gyre.treebuilder.offline.source import COLUMNS, placed_rows
from tests.log.builders import LogBuilder, message
from tests.trees.world.built import plain

ODD: list[dict[str, Any]] = [
    {},
    {"prompt": None, "output": None},
    {"output": ()},
    {"sampling": Sampling(0.7, 0.9, 40, 0.1, 0.2, 0.3, 1.1, 5)},
    {"sampling": Sampling(top_k=2**64 - 1)},
    {"sampling": Sampling(top_k=-(2**63))},
    {"response": b"\xff\xfe"},
    {"response": "ü".encode()},
    {"response": None, "ended_ns": 0, "finish_reason": None},
    {"version_spans": [VersionSpan("1", 0, 1), VersionSpan("2", 1, 2)]},
    {"request_digest": b"", "capture_flags": ["late"], "tools": [message("a tool", "tool")]},
    {"identity": Identity("e1", "url", session_id="s", agent_id="a", hints={"x": ["ü", 1]}, retry_count=2)},
    {"identity": Identity("e1", "url", retry_count=2**40)},
    {"attempt": 2, "choice": 1, "execution_attempt": 3, "delivery_of": "another"},
]


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ",".join(odd) or "plain")
def test_they_are_the_same(tmp_path: Path, odd: dict[str, Any]) -> None:
    worker = LogBuilder(tmp_path / "logs").worker()
    worker.call("first", [1, 2, 3], [4])
    record = worker.call("c", **({"prompt": [1, 2, 3, 4, 5], "parent": ("first", 0, 0)} | odd))
    [(name, placed)] = placed_rows(calls_table([_copy(record)]).select(list(COLUMNS)))
    assert name == "e1"
    assert plain(placed_record(record)) == plain(placed)


def _copy(record: CallRecord) -> CallRecord:
    """Widening takes what is no text out of a record."""
    return CallRecord(**{field: getattr(record, field) for field in CallRecord.__struct_fields__})
