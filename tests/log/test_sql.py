"""DuckDB sees journal and sealed files as one, and never changes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from gyre.proxy.log.reading.sql import connect
from gyre.proxy.log.schema import SCHEMAS
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, growing_run, message


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[LogBuilder]:
    """Three sealed calls, two in the journal of a live worker."""
    builder = LogBuilder(tmp_path / "it's logs")
    first, second = builder.worker("w1"), builder.worker("w2")
    growing_run(first, 3)
    first.event("started", group="g")
    first.die()
    seal(builder.root)
    second.call("live", [7, 8], messages=[message("e1 turn 0")])
    second.call("text", None, None)
    second.event("scored", score=1.0)
    yield builder
    second.die()


def ask(builder: LogBuilder, query: str) -> list[tuple[object, ...]]:
    with connect(builder.root) as connection:
        return list(connection.execute(query).fetchall())


def test_calls_are_those_of_journal_and_files(builder: LogBuilder) -> None:
    rows = ask(builder, 'SELECT call_id FROM calls ORDER BY "order"')
    assert [row[0] for row in rows] == ["e1-00000", "e1-00001", "e1-00002", "live", "text"]


@pytest.mark.parametrize("table", SCHEMAS)
def test_views_have_the_public_columns_in_order(builder: LogBuilder, table: str) -> None:
    with connect(builder.root) as connection:
        result = connection.execute(f"SELECT * FROM {table}")
        assert [column[0] for column in result.description or ()] == SCHEMAS[table].names


def test_a_log_without_sealed_files_has_the_same_views(tmp_path: Path) -> None:
    LogBuilder(tmp_path)
    with connect(tmp_path) as connection:
        for table in SCHEMAS:
            result = connection.execute(f"SELECT * FROM {table}")
            assert [column[0] for column in result.description or ()] == SCHEMAS[table].names
            assert result.fetchall() == []
        assert connection.execute("SELECT * FROM prompts").fetchall() == []


def test_prompts_are_whole(builder: LogBuilder) -> None:
    rows = ask(builder, "SELECT call_id, attempt, choice, prompt_ids FROM prompts")
    truth = {key: t.prompt for key, t in builder.truth.items() if t.prompt is not None}
    assert {tuple(row[:3]): row[3] for row in rows} == truth
    assert ask(builder, "SELECT prompt_ids FROM prompts WHERE call_id = 'live'") == [([7, 8],)]
    assert ask(builder, "SELECT execution_id FROM prompts LIMIT 1") == [("e1",)]


def test_a_view_can_be_asked_again(builder: LogBuilder) -> None:
    with connect(builder.root) as connection:
        for _ in range(2):
            assert connection.execute("SELECT count(*) FROM prompts").fetchall() == [(4,)]
            assert connection.execute("SELECT count(*) FROM calls").fetchall() == [(5,)]


def test_a_message_in_journal_and_files_is_found_once(builder: LogBuilder) -> None:
    builder.known.clear()
    worker = builder.worker("w3")
    worker.call("again", messages=[message("e1 turn 0")])
    worker.die()
    rows = ask(builder, "SELECT count(*), count(DISTINCT hash) FROM messages")
    assert rows[0][0] == rows[0][1]


def test_events_of_both_are_there(builder: LogBuilder) -> None:
    rows = ask(builder, 'SELECT event, "group", score FROM executions ORDER BY "order"')
    assert rows == [("started", "g", None), ("scored", None, 1.0)]


def test_the_log_cannot_be_written_through_the_views(builder: LogBuilder) -> None:
    with connect(builder.root) as connection, pytest.raises(duckdb.Error):
        connection.execute("DELETE FROM calls")
