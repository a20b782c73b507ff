"""Proof that a log holds what was captured: every prompt and body is rebuilt and compared.

The digests were taken from whole prompts and bodies when they were captured, before anything was cut
into deltas, so the comparison is not circular.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gyre.proxy.calls import CaptureQuality, Outcome
from gyre.proxy.errors import ConfigError, CorruptLogError
from gyre.proxy.log.engine_check import EngineCheck
from gyre.proxy.log.findings import Finding, Severity, error, note
from gyre.proxy.log.reading.groups import groups_of
from gyre.proxy.log.reading.ragged import values_of
from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.reading.sealed import corrupt, projected, row_groups
from gyre.proxy.log.schema import COMMIT_ORDER, ROW_KEY
from gyre.proxy.log.sealing.twins import SIGNED, key_of, rows_of_calls, signature, signature_of
from gyre.proxy.log.sealing.widen import RowKey, messages_table, row_key
from gyre.proxy.log.spans import check_spans

_LOGPROBS = ("output_logprobs", "raw_logprobs")
_COLUMNS = (
    *("execution_id", *COMMIT_ORDER, "parent_call_id", "parent_attempt", "parent_choice"),
    *("outcome", "capture_quality", "prompt_tokens", "prompt_digest", "request_bytes", "request_digest"),
    *("wire", "upstream_wire", "capture_flags", "engine", "model", "upstream_model", "finish_reason"),
    *("stream", "response", "version_spans", "kv_spans", *_LOGPROBS),
)
Row = dict[str, Any]


@dataclass(slots=True)
class Report:
    """What a check found; `ok` when no recorded data is missing or altered."""

    findings: list[Finding] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def ok(self) -> bool:
        return not any(finding.severity == Severity.ERROR for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        findings = [finding.as_dict() for finding in self.findings]
        return {"ok": self.ok, "counts": dict(self.counts), "findings": findings}


def check(path: str | Path, *, answered: str | Path | None = None, engine: str | None = None) -> Report:
    """Rebuild and verify every row of a log, in memory bounded by its largest execution.

    Args:
        answered: a file of call ids, one a line (or JSON with `call_id`), that a client saw answered.
        engine: URL of the engine the calls went to; its tokenizer and template are compared as well.

    Raises:
        LogFormatError: no log, or one of a newer format.
    """
    log = read_log(path)
    report = Report()
    report.counts.update({"calls": 0, "executions": 0, "prompts": 0, "bodies": 0, "interrupted": 0})
    report.counts["open"] = log.open
    with EngineCheck(engine) if engine else nullcontext() as remote:
        for group in groups_of(log, columns=_COLUMNS):
            report.findings += _check_group(group, report.counts, remote)
            report.findings += group.problems
    report.findings += _check_pages(log)
    report.findings += _check_messages(log, report.counts)
    report.findings += _check_twins(log)
    if answered is not None:
        report.findings += _check_answered(Path(answered), log, report.counts)
    # Several readers may have met the same damaged file.
    report.findings = list(dict.fromkeys([*log.problems, *report.findings]))
    return report


def _check_group(log: Log, counts: Counter[str], remote: EngineCheck | None) -> Iterator[Finding]:
    light = log.calls.drop_columns(list(_LOGPROBS))
    logprobs = [values_of(pc.list_value_length(log.calls[name])) for name in _LOGPROBS]
    rows: list[Row] = light.to_pylist()
    counts["calls"] += len(rows)
    counts["executions"] += len({row["execution_id"] for row in rows})
    earlier: set[tuple[str, RowKey]] = set()
    for i, row in enumerate(rows):
        key = (row["call_id"], row["attempt"], row["choice"])
        counts["interrupted"] += row["outcome"] == Outcome.INTERRUPTED
        yield from _check_parent(row, key, earlier)
        try:
            yield from _check_prompt(log, row, key, counts)
            yield from _check_body(log, row, key, counts)
            yield from _check_output(log, row, key, *(lengths[i] for lengths in logprobs))
            if remote:
                yield from remote.row(log, row, key, counts)
        except CorruptLogError as problem:
            yield error("cannot_rebuild", _name(key), str(problem))
        earlier.add((row["execution_id"], key))


def _check_parent(row: Row, key: RowKey, earlier: set[tuple[str, RowKey]]) -> Iterator[Finding]:
    if row["parent_call_id"] is None:
        return
    parent = (row["parent_call_id"], row["parent_attempt"], row["parent_choice"])
    if (row["execution_id"], parent) not in earlier:
        text = f"its parent {_name(parent)} is no earlier row of execution `{row['execution_id']}`"
        yield error("bad_parent", _name(key), text)


def _check_prompt(log: Log, row: Row, key: RowKey, counts: Counter[str]) -> Iterator[Finding]:
    ids = log.prompt_ids(*key)
    if ids is None:
        if row["prompt_tokens"] is not None:
            yield error("prompt_missing", _name(key), "has a prompt length and no prompt ids")
        return
    counts["prompts"] += 1
    counts["prompt_tokens"] += len(ids)
    if len(ids) != row["prompt_tokens"]:
        text = f"prompt has {len(ids)} ids, captured were {row['prompt_tokens']}"
        yield error("prompt_length", _name(key), text)
    elif xxhash.xxh3_128_hexdigest(ids.tobytes()) != row["prompt_digest"]:
        yield error("prompt_digest", _name(key), "prompt ids are not those that were captured")


def _check_body(log: Log, row: Row, key: RowKey, counts: Counter[str]) -> Iterator[Finding]:
    body = log.request_body(*key)
    if body is None or row["request_digest"] is None:
        return
    if log.is_raw(*key) and len(body) < row["request_bytes"]:
        # Of long opaque bodies only the beginning is kept.
        counts["bodies_shortened"] += 1
        return
    counts["bodies"] += 1
    if xxhash.xxh3_128_hexdigest(body) != row["request_digest"]:
        yield error("request_digest", _name(key), "request body is not the one that was received")


def _check_output(
    log: Log, row: Row, key: RowKey, logprobs: int | None, raw: int | None
) -> Iterator[Finding]:
    """`logprobs`, `raw`: how many there are."""
    output = log.output_ids(*key)
    ids = 0 if output is None else len(output)
    yield from check_spans(row, _name(key), ids)
    if row["capture_quality"] != CaptureQuality.EXACT:
        return
    for count in (logprobs or 0, ids if raw is None else raw):
        if count != ids:
            text = f"claims exact capture with {ids} output ids and {count} log-probabilities"
            yield error("logprobs_length", _name(key), text)


def _check_pages(log: Log) -> Iterator[Finding]:
    """Every page has a checksum; those of columns that nothing else here needs are read as well."""
    for table, files in (("calls", log.sealed.calls), ("executions", log.sealed.executions)):
        for file in files:
            try:
                for _ in row_groups(file, projected(table, None)):
                    pass
            except (OSError, pa.ArrowException) as problem:
                yield corrupt(file.path, problem)


def _check_messages(log: Log, counts: Counter[str]) -> Iterator[Finding]:
    schema = projected("messages", None)
    yield from _check_hashes(messages_table(log.pending.messages), "journal", counts)
    for file in log.sealed.messages:
        try:
            for group in row_groups(file, schema):
                yield from _check_hashes(group, str(file.path), counts)
        except (OSError, pa.ArrowException) as problem:
            yield corrupt(file.path, problem)


def _check_hashes(table: pa.Table, where: str, counts: Counter[str]) -> Iterator[Finding]:
    for digest, body in zip(values_of(table["hash"]), values_of(table["body"]), strict=True):
        counts["messages"] += 1
        if hashlib.sha256(body.encode()).hexdigest()[:32] != digest:
            yield error("message_hash", where, f"message `{digest}` is not what its address says")


def _check_twins(log: Log) -> Iterator[Finding]:
    keys = _columns(log, ROW_KEY)
    counted = keys.group_by(list(ROW_KEY)).aggregate([([], "count_all")])
    repeated = [key_of(row) for row in counted.filter(pc.greater(counted["count_all"], 1)).to_pylist()]
    call_ids = {key[0] for key in repeated}
    rows = rows_of_calls(log.sealed.calls, call_ids, SIGNED, 0) if repeated else []
    marks = {key: {signature_of(row) for row in rows if key_of(row) == key} for key in repeated}
    for record in log.pending.calls:
        if row_key(record) in marks:
            marks[row_key(record)].add(signature(record))
    for key, different in marks.items():
        if len(different) > 1:
            yield error("conflicting_rows", _name(key), "is in the log more than once, with other content")
        else:
            yield note("repeated_row", _name(key), "is in the log more than once, with the same content")


def _check_answered(path: Path, log: Log, counts: Counter[str]) -> Iterator[Finding]:
    outcomes: dict[str, set[str]] = {}
    for row in _columns(log, ("call_id", "outcome")).to_pylist():
        outcomes.setdefault(row["call_id"], set()).add(row["outcome"])
    for call_id in _call_ids(path):
        counts["answered"] += 1
        found = outcomes.get(call_id, set())
        if Outcome.OK in found:
            counts["answered_complete"] += 1
        elif found:
            yield error("answered_not_ok", call_id, f"was answered, recorded is {sorted(found)}")
        else:
            yield error("answered_missing", call_id, "was answered and has no row")


def _columns(log: Log, columns: Sequence[str]) -> pa.Table:
    """A few columns of every row of the log."""
    return Log(log.folder, log.sealed, log.pending, None, columns).calls


def _call_ids(path: Path) -> Iterator[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError as problem:
        raise ConfigError(f"cannot read `{path}`: {problem.strerror}") from problem
    for line in filter(None, map(str.strip, lines)):
        try:
            yield orjson.loads(line)["call_id"] if line.startswith("{") else line
        except (orjson.JSONDecodeError, KeyError):
            raise ConfigError(f"`{path}`: a line has no `call_id`: {line[:80]}") from None


def _name(key: RowKey) -> str:
    call_id, attempt, choice = key
    return call_id if (attempt, choice) == (0, 0) else f"{call_id} (attempt {attempt}, choice {choice})"
