"""DuckDB over a log: views `calls`, `messages`, `executions` and `prompts`, journal included.

DuckDB reads and never writes the log. The views are of the moment of `connect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.reading.sealed import SealedFile, read_sealed
from gyre.proxy.log.schema import IDS, SCHEMAS
from gyre.proxy.log.sealing.widen import calls_table, executions_table, messages_table

_PROMPTS = """
CREATE VIEW prompts AS
SELECT execution_id, call_id, attempt, choice, gyre_prompt_ids(call_id, attempt, choice) AS prompt_ids
FROM calls WHERE prompt_tokens IS NOT NULL
"""


def connect(path: str | Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection with the log's views.

    `prompts` has whole prompts, rebuilt when a query asks for them: name the calls you want.

    Raises:
        LogFormatError: no log, or one of a newer format.
    """
    log = read_log(path)
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    _view(connection, "calls", log.sealed.calls, calls_table(log.pending.calls))
    _view(connection, "executions", log.sealed.executions, executions_table(log.pending.executions))
    _view(connection, "messages", log.sealed.messages, _unsealed_messages(log))
    _add_prompts(connection, log)
    return connection


def _view(
    connection: duckdb.DuckDBPyConnection, table: str, files: Sequence[SealedFile], journal: pa.Table
) -> None:
    connection.register(f"journal_{table}", journal)
    query = f"SELECT * FROM journal_{table}"
    if files:
        columns = ", ".join(f'"{name}"' for name in SCHEMAS[table].names)
        paths = ", ".join("'" + str(file.path).replace("'", "''") + "'" for file in files)
        sealed = f"SELECT * FROM read_parquet([{paths}], union_by_name = true)"
        query = f"SELECT {columns} FROM ({query} UNION ALL BY NAME {sealed})"
    connection.execute(f"CREATE VIEW {table} AS {query}")


def _unsealed_messages(log: Log) -> pa.Table:
    """The journal's messages that no sealed file has, so that a join finds each message once."""
    pending = messages_table(log.pending.messages)
    hashes = {message.hash.hex() for message in log.pending.messages}
    if not hashes:
        return pending
    sealed = read_sealed("messages", log.sealed.messages, [], ["hash"], ("hash", hashes))
    return pending.filter(pc.invert(pc.is_in(pending["hash"], value_set=sealed["hash"])))


def _add_prompts(connection: duckdb.DuckDBPyConnection, log: Log) -> None:
    def prompt_ids(call_id: pa.ChunkedArray, attempt: pa.ChunkedArray, choice: pa.ChunkedArray) -> pa.Array:
        keys = zip(call_id.to_pylist(), attempt.to_pylist(), choice.to_pylist(), strict=True)
        return pa.array([log.prompt_ids(*key) for key in keys], IDS)

    # The stubs want an enum that moved between DuckDB versions; its name is taken by all of them.
    connection.create_function(  # type: ignore[call-overload]
        "gyre_prompt_ids", prompt_ids, ["VARCHAR", "INTEGER", "INTEGER"], "INTEGER[]", type="arrow"
    )
    connection.execute(_PROMPTS)
