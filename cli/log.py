"""`gyre log`: look at a log, score it, prove it, seal it, prune it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gyre.cli import output
from gyre.cli.log_harbor import import_harbor
from gyre.cli.log_score import score

if TYPE_CHECKING:
    from gyre.proxy import Log
    from gyre.proxy.calls import CallRecord

SCHEMA = 1
POLL_S = 0.25

app = typer.Typer(
    name="log", help="Look at a log, score it, prove it, seal it, prune it.", no_args_is_help=True
)
app.command()(score)
app.command("import-harbor")(import_harbor)

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The folder that `gyre proxy --logs` writes.")]
Executions = Annotated[
    list[str] | None, typer.Option("--execution", "-x", help="Only this execution; may be repeated.")
]

_SHOWN = (
    *("ended_at", "execution_id", "call_id", "attempt", "choice", "wire", "outcome", "http_status"),
    *("prompt_tokens", "prompt_shared", "output_tokens", "seconds", "capture_quality"),
)
_LOADED = (
    *("execution_id", "call_id", "attempt", "choice", "wire", "model", "backend", "engine", "stream"),
    *("started_at", "ended_at", "outcome", "http_status", "finish_reason", "prompt_tokens"),
    *("prompt_shared", "output_ids", "capture_quality", "logprob_quality", "capture_flags"),
)
_USUAL = {"attempt": 0, "choice": 0, "http_status": 200, "wire": "chat"}
"""Columns that are shown only where they say something else."""


@app.command()
def calls(
    directory: Dir,
    execution: Executions = None,
    outcome: Annotated[str | None, typer.Option(help="Only calls that ended like this.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="The newest so many; 0 for all.")] = 50,
    json: output.JsonOption = False,
) -> None:
    """List recorded calls, one row per attempt and choice, in commit order."""
    from gyre.proxy import read_log

    log = read_log(directory, executions=execution or None, columns=_LOADED)
    rows = [row for row in _summaries(log) if outcome is None or row["outcome"] == outcome]
    shown = rows[-limit:] if limit else rows
    if json:
        output.print_json({"schema": SCHEMA, "total": len(rows), "open": log.open, "calls": shown})
    else:
        names = [n for n in _SHOWN if n not in _USUAL or any(row[n] != _USUAL[n] for row in shown)]
        output.print_table("", names, [[_short(row[name]) for name in names] for row in shown])
        if len(shown) < len(rows):
            output.say(f"{len(shown)} of {len(rows):,} rows; `--limit 0` shows all")
    for problem in log.problems:
        output.say(f"{problem.severity}: {problem.where}: {problem.message}")


@app.command()
def show(
    directory: Dir,
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="As sent back in `x-gyre-call-id`.")],
    json: output.JsonOption = False,
) -> None:
    """Show all that is recorded of one call: every column, its messages, its tokens."""
    import pyarrow.compute as pc

    from gyre.proxy import read_log

    found = read_log(directory, columns=("call_id", "execution_id")).calls
    hits = found.filter(pc.equal(found["call_id"], call_id))
    if not hits.num_rows:
        output.fail(f"no call `{call_id}` in `{directory}`", "`gyre log calls` lists them")
    log = read_log(directory, executions=set(hits["execution_id"].to_pylist()))
    rows = log.calls.filter(pc.equal(log.calls["call_id"], call_id)).to_pylist()
    for row in rows:
        _complete(log, row)
    if json:
        output.print_json({"schema": SCHEMA, "call_id": call_id, "rows": rows})
        return
    for row in rows:
        fields = [(name, _brief(value)) for name, value in row.items() if value not in (None, [], "")]
        title = f"{call_id} attempt {row['attempt']} choice {row['choice']}"
        output.print_table(title, ("column", "value"), fields)


@app.command()
def tail(
    directory: Dir,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Start with so many calls.")] = 10,
    json: output.JsonOption = False,
) -> None:
    """Print the newest calls as they are recorded; with `--json` one JSON document a line."""
    from gyre.proxy import read_log
    from gyre.proxy.log.reading.follow import Follower

    # Watching begins before the snapshot, so that no row falls between the two.
    with Follower(directory) as follower, suppress(KeyboardInterrupt):
        follower.poll()
        rows = _summaries(read_log(directory, columns=_LOADED))
        known = {(row["call_id"], row["attempt"], row["choice"]) for row in rows}
        for row in rows[-lines:] if lines else []:
            _print_line(row, json)
        while follow:
            time.sleep(POLL_S)
            for record in follower.poll():
                if (record.call_id, record.attempt, record.choice) not in known:
                    _print_line(_summary_of(record), json)


@app.command()
def sql(
    directory: Dir,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL over the views of the log.")],
    json: output.JsonOption = False,
) -> None:
    """Ask DuckDB: views `calls`, `messages`, `executions`, `prompts`, journal included."""
    import duckdb

    from gyre.proxy.log.reading.sql import connect

    with connect(directory) as connection:
        try:
            result = connection.execute(query)
            names = [column[0] for column in result.description or ()]
            rows = result.fetchall()
        except duckdb.Error as problem:
            output.fail(f"DuckDB: {problem}", "docs/log-format.md has the columns")
    if json:
        output.print_json({"schema": SCHEMA, "columns": names, "rows": rows})
    else:
        output.print_table("", names, [[_short(value) for value in row] for row in rows])


@app.command()
def check(
    directory: Dir,
    answered: Annotated[
        Path | None, typer.Option(help="File of call ids that a client saw answered, one a line.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option(metavar="URL", help="Compare ids and texts with this engine as well.")
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Rebuild every prompt and body and compare with what was captured; exit 1 on any error."""
    from gyre.proxy.log.check import check as run

    report = run(directory, answered=answered, engine=engine)
    if json:
        output.print_json({"schema": SCHEMA, **report.as_dict()})
    else:
        output.print_table("", ("checked", "number"), sorted(report.counts.items()))
        if report.findings:
            rows = [(f.severity, f.code, f.where, f.message) for f in report.findings]
            output.print_table("findings", ("severity", "code", "where", "what"), rows)
        output.say("all recorded data is as captured" if report.ok else "recorded data is missing or altered")
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def seal(directory: Dir, json: output.JsonOption = False) -> None:
    """Bring the journal into Parquet; a running proxy is asked to seal what it has open."""
    from gyre.proxy.log.folder import open_folder
    from gyre.proxy.log.live import ask_proxy
    from gyre.proxy.log.sealing.seal import seal as run

    answer = ask_proxy(open_folder(directory), "/gyre/v1/log/seal")
    reports = answer["reports"] if answer else [run(directory, wait_s=5.0).as_dict()]
    totals = {
        name: sum(report[name] for report in reports)
        for name in ("segments", "calls", "messages", "executions", "interrupted", "duplicates")
    }
    if json:
        by = "proxy" if answer else "command"
        output.print_json({"schema": SCHEMA, "sealed_by": by, **totals, "reports": reports})
        return
    output.print_table("", ("sealed", "number"), list(totals.items()))
    for report in reports:
        for problem in report["problems"]:
            output.say(f"{problem['severity']}: {problem['where']}: {problem['message']}")


@app.command()
def prune(
    directory: Dir,
    before: Annotated[
        str | None,
        typer.Option(help="Executions that did nothing since: `2026-01-31`, a time, or an age: `7d`, `12h`."),
    ] = None,
    execution: Executions = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; change nothing.")] = False,
    json: output.JsonOption = False,
) -> None:
    """Remove whole executions, and messages that no row refers to any more."""
    from gyre.proxy.log.folder import open_folder
    from gyre.proxy.log.live import ask_proxy
    from gyre.proxy.log.sealing.prune import prune as run

    forgot = not dry_run and ask_proxy(open_folder(directory), "/gyre/v1/log/forget") is not None
    report = run(
        directory,
        before=_time(before) if before else None,
        executions=execution or None,
        dry_run=dry_run,
        forgetful=forgot,
    )
    if json:
        output.print_json({"schema": SCHEMA, **report.as_dict()})
        return
    numbers = {"executions": len(report.executions), "kept, a proxy runs": len(report.kept)}
    numbers |= {"calls": report.calls, "events": report.events, "messages": report.messages}
    output.print_table("", ("removed", "number"), [*numbers.items(), ("bytes freed", report.bytes_freed)])
    if report.messages_kept:
        output.say("messages stay while a proxy runs that may refer to them")
    if dry_run:
        output.say("dry run: nothing was changed")


app.command()(score)
app.command("import-harbor")(import_harbor)


def _summaries(log: Log) -> list[dict[str, Any]]:
    import pyarrow.compute as pc

    rows = log.calls.drop_columns(["output_ids"]).to_pylist()
    outputs = pc.list_value_length(log.calls["output_ids"]).to_pylist()
    for row, count in zip(rows, outputs, strict=True):
        row["output_tokens"] = count
        row["seconds"] = _seconds(row["started_at"], row["ended_at"])
    return list(rows)


def _summary_of(record: CallRecord) -> dict[str, Any]:
    from gyre.proxy.log.sealing.widen import calls_table

    row: dict[str, Any] = calls_table([record]).select(_LOADED).to_pylist()[0]
    ids = row.pop("output_ids")
    row["output_tokens"] = None if ids is None else len(ids)
    row["seconds"] = _seconds(row["started_at"], row["ended_at"])
    return row


def _seconds(start: datetime, end: datetime | None) -> float | None:
    return None if end is None else (end - start).total_seconds()


def _complete(log: Log, row: dict[str, Any]) -> None:
    """Add what is rebuilt to the columns of a row."""
    key = (row["call_id"], row["attempt"], row["choice"])
    ids = log.prompt_ids(*key)
    row["prompt_ids"] = None if ids is None else ids.tolist()
    row["messages"] = [body.decode() for body in log.message_list(*key)]
    row["tools"] = [body.decode() for body in log.tools(*key)]


def _print_line(row: dict[str, Any], json: bool) -> None:
    if json:
        output.print_json({"schema": SCHEMA, **row}, line=True)
    else:
        typer.echo("  ".join(f"{_short(row[name])}" for name in _SHOWN if row[name] is not None))


def _short(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    return _brief(value) if isinstance(value, list | dict | bytes) else value


def _brief(value: object, most: int = 200) -> str:
    """Long values by their beginning and their size."""
    if isinstance(value, list) and len(value) > 16 and not isinstance(value[0], str):
        return f"{len(value):,}: {', '.join(map(str, value[:8]))}, ... {value[-1]}"
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def _time(text: str) -> datetime:
    """A moment, or how long ago it was."""
    units = {"d": "days", "h": "hours", "m": "minutes"}
    if text[:-1].isdigit() and text[-1] in units:
        return datetime.now(UTC) - timedelta(**{units[text[-1]]: int(text[:-1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"`{text}` is no date, time or age like `7d`") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
