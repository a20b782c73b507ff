"""Proof that a folder of trees is what its log says: `verify_trees` reads both and compares.

Nothing here is shared with the builder but the reading of files. Memory is bounded by the largest part.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from gyre.proxy.errors import CorruptLogError, LogError
from gyre.proxy.log.findings import Finding, Severity, error, note
from gyre.proxy.log.reading.ragged import RaggedIds, packed, values_of
from gyre.proxy.log.reading.read import Log, read_log
from gyre.proxy.log.reading.rebuild import Part, Rebuilder
from gyre.proxy.log.reading.sealed import read_sealed
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.proof.paths import Key, Row, View, check_alone, key_of
from gyre.treebuilder.proof.provenance import Logged, check_provenance
from gyre.treebuilder.store.folder import REPORT, Manifest, PartEntry, TreesFolder, checksum
from gyre.treebuilder.store.read import columns_in, execution_rows, stored
from gyre.treebuilder.store.schema import TABLES

Attempt = tuple[str, int]

_GENERATING = ("chat", "completions", "messages", "responses")
_IDS = ("prompt_suffix_ids", "output_ids", "output_logprobs")
_COLUMNS = (
    *("execution_id", "execution_attempt", "wire", "call_id", "attempt", "choice", "prompt_tokens"),
    *("parent_call_id", "parent_attempt", "parent_choice", "prompt_shared", "prompt_digest", "version_spans"),
    *("outcome", "capture_quality", "logprob_quality", "capture_flags", "delivery_of", "temperature"),
    *("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *_IDS,
)
_SUMS = (
    *("calls", "contexts", "trajectories", "prompt_tokens", "tree_tokens", "sampled_tokens"),
    *("targets", "kept_targets", "quarantined"),
)


def verify_trees(path: str | Path, log: str | Path | None = None) -> list[Finding]:
    """What is wrong with a folder of trees; without errors it is proven.

    Args:
        log: where the log is now, if not where the build found it. When that is gone too, a note says
            that only what trees alone can show was checked.

    Raises:
        TreeError: no folder of trees, or one of a newer format.
        LogError: `log` was given and cannot be read.
    """
    folder = TreesFolder(Path(path))
    manifest = folder.manifest()
    findings = list(_check_files(folder, manifest))
    if not manifest.complete:
        return [error("unfinished", str(folder.root), "the last build did not finish"), *findings]
    source, missing = _open(manifest, log)
    rows = list(_check_parts(folder, manifest, source, findings))
    if source is not None:
        findings += _check_executions(rows, source)
        findings += [problem for problem in source.log.problems if problem.severity == Severity.ERROR]
    findings += _check_report(folder, rows)
    return list(dict.fromkeys([*missing, *findings]))


def _check_files(folder: TreesFolder, manifest: Manifest) -> Iterator[Finding]:
    for part in manifest.parts:
        for table in TABLES:
            path = folder.part(table, part.name)
            if not path.is_file():
                yield error("missing_file", str(path), "is not there")
            elif checksum(path) != part.checksums[table]:
                yield error("checksum", str(path), "is not the file that was built")
    for name in sorted(set(folder.names()) - {part.name for part in manifest.parts}):
        yield error("extra_part", name, "is in the folder, and the build does not know it")


def _open(manifest: Manifest, log: str | Path | None) -> tuple[_Source | None, list[Finding]]:
    if log is not None:
        return _Source(read_log(log)), []
    try:
        return _Source(read_log(manifest.log)), []
    except LogError as problem:
        text = f"{problem.message}; so only what the trees show by themselves is checked"
        return None, [note("log_gone", manifest.log, text)]


def _check_parts(
    folder: TreesFolder, manifest: Manifest, source: _Source | None, findings: list[Finding]
) -> Iterator[Row]:
    """Rows of the executions, each proven on the way."""
    for part in manifest.parts:
        try:
            yield from _check_part(folder, part, manifest, source, findings)
        except TreeError as problem:
            findings.append(error("unreadable", part.name, problem.message))
        except (AttributeError, LookupError, TypeError, ValueError) as problem:
            # A changed file may hold what no table of ours has: nulls, numbers of nodes that are none.
            findings.append(error("unreadable", part.name, f"has rows that make no sense: {problem!r}"))


def _check_part(
    folder: TreesFolder,
    part: PartEntry,
    manifest: Manifest,
    source: _Source | None,
    findings: list[Finding],
) -> Iterator[Row]:
    if not all(folder.part(table, part.name).is_file() for table in TABLES):
        return
    names = {row["execution_id"] for row in execution_rows(folder, part.name)}
    calls = _Calls(source.log_of(names)) if source else None
    known = columns_in(folder.part("links", part.name))
    for row, tables in stored(folder, part.name):
        view = View.of(row, tables)
        if check_alone(view, manifest.options) and calls:
            try:
                logged = calls.of((row["execution_id"], row["execution_attempt"]))
                check_provenance(view, logged, known)
            except CorruptLogError as problem:
                view.complaints.require(False, "log_prompt", problem.message)
        findings += view.complaints.findings()
        yield row
    if calls:
        findings += [finding for finding in calls.log.problems if finding.severity == Severity.ERROR]


class _Source:
    """The whole log: which executions it has, and where."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.attempts: set[Attempt] = set()
        self._files: dict[str, set[int]] = {}
        for number, file in enumerate(log.sealed.calls):
            table = read_sealed("calls", [file], log.problems, ("execution_id", "execution_attempt", "wire"))
            for name, attempt, wire in zip(*(values_of(column) for column in table.columns), strict=True):
                if wire in _GENERATING:
                    self.attempts.add((name, attempt))
                self._files.setdefault(name, set()).add(number)
        for record in log.pending.calls:
            if record.wire in _GENERATING:
                self.attempts.add((record.identity.execution_id, record.execution_attempt))
        events = (values_of(log.executions[name]) for name in ("execution_id", "execution_attempt"))
        self.attempts.update(zip(*events, strict=True))

    def log_of(self, names: set[str]) -> Log:
        """The rows of some executions, out of the files that have any."""
        log = self.log
        files = sorted({file for name in names for file in self._files.get(name, ())})
        calls = [record for record in log.pending.calls if record.identity.execution_id in names]
        sealed = replace(log.sealed, calls=[log.sealed.calls[file] for file in files], problems=[])
        pending = replace(log.pending, calls=calls, problems=[])
        return Log(log.folder, sealed, pending, frozenset(names), _COLUMNS)


class _Calls:
    """Calls of some executions, put together when they are asked for."""

    def __init__(self, log: Log) -> None:
        self.log = log
        table = log.calls
        self._suffixes, self._outputs, self._logprobs = (RaggedIds(table[name]) for name in _IDS)
        self._rows: dict[str, dict[Key, tuple[int, Row]]] = {}
        light: list[Row] = table.drop_columns(list(_IDS)).to_pylist()
        for number, row in enumerate(light):
            # Of a row that was written twice the first counts.
            self._rows.setdefault(row["execution_id"], {}).setdefault(key_of(row), (number, row))

    def of(self, attempt: Attempt) -> dict[Key, Logged]:
        """Raises CorruptLogError for a prompt that cannot be put together."""
        rows = self._rows.get(attempt[0], {})
        prompts = Rebuilder(lambda key: self._part(rows.get(key)))
        return {
            key: Logged(
                row, self._digest(number, key, prompts), self._outputs[number], self._logprobs[number]
            )
            for key, (number, row) in rows.items()
            if row["execution_attempt"] == attempt[1] and row["wire"] in _GENERATING
        }

    def _part(self, found: tuple[int, Row] | None) -> Part | None:
        if found is None:
            return None
        number, row = found
        parent = (row["parent_call_id"], row["parent_attempt"], row["parent_choice"])
        ids = packed(self._suffixes[number]), packed(self._outputs[number])
        return Part(None if parent[0] is None else parent, 4 * (row["prompt_shared"] or 0), *ids)

    def _digest(self, number: int, key: Key, prompts: Rebuilder) -> str | None:
        if self._suffixes[number] is None:
            return None
        return xxhash.xxh3_128_hexdigest(prompts.whole(key))


def _check_executions(rows: list[Row], source: _Source) -> Iterator[Finding]:
    """Each attempt that the log has is there once, and no other."""
    found = Counter((row["execution_id"], row["execution_attempt"]) for row in rows)
    last: dict[str, int] = {}
    for name, attempt in sorted(source.attempts):
        last[name] = attempt
        if (name, attempt) not in found:
            yield error(
                "missing_execution", f"{name} (attempt {attempt})", "is in the log and not in the trees"
            )
    for row in rows:
        name, attempt = row["execution_id"], row["execution_attempt"]
        where = f"{name} (attempt {attempt})"
        if (name, attempt) not in source.attempts:
            yield error("extra_execution", where, "is in the trees and not in the log")
        if found[name, attempt] > 1:
            yield error("repeated_execution", where, "is in the trees more than once")
        if row["superseded"] != (attempt < last.get(name, attempt)):
            yield error(
                "superseded", where, "is said to be the last attempt and is not, or the other way round"
            )


def _check_report(folder: TreesFolder, rows: list[Row]) -> Iterator[Finding]:
    where = str(folder.root / REPORT)
    try:
        report: dict[str, Any] = json.loads((folder.root / REPORT).read_bytes())
        told = {name: report[name] for name in (*_SUMS, "causes", "untrained", "left_out")}
        told["executions"] = report["executions"]["total"]
        told["skipped"] = {(each["execution_id"], each["execution_attempt"]) for each in report["skipped"]}
    except (OSError, ValueError, KeyError, TypeError) as problem:
        yield error("report", where, f"cannot be read: {problem!r}")
        return
    sums: dict[str, Any] = {name: sum(row[name] or 0 for row in rows) for name in _SUMS}
    for name in ("causes", "untrained", "left_out"):
        sums[name] = dict(sum((Counter(row[name]) for row in rows), Counter()))
    sums["executions"] = len(rows)
    skipped = (row for row in rows if row["skipped"] is not None)
    sums["skipped"] = {(row["execution_id"], row["execution_attempt"]) for row in skipped}
    for name, found in sums.items():
        if told[name] != found:
            yield error("report", where, f"`{name}` is not what the executions add up to")
