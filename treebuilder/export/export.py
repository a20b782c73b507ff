"""ENTRY: a folder of trees in, one file of a trainer's or viewer's format out.

    report = export_trees(read_trees("trees"), Format.VERL, Path("rows.parquet"))

`docs/exports.md` says for each format what is in the file, how to load it there, and what is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from gyre.treebuilder.export import areal, plain, prime_rl, skyrl, slime, trl, verl
from gyre.treebuilder.export.atif import export_atif
from gyre.treebuilder.export.files import whole_file, write_array, write_lines, write_table
from gyre.treebuilder.export.rows import Place, Row, lacks_logprobs, places, rows_of
from gyre.treebuilder.export.source import ExportReport, Format, Source
from gyre.treebuilder.score import AttemptKey

__all__ = ["ExportReport", "Format", "export_trees"]

Progress = Callable[[int, int], None]
"""Called with executions done and executions in all."""
PLAIN = (Format.JSONL, Format.PARQUET)


def export_trees(
    trees: Source,
    fmt: Format,
    out: Path,
    *,
    log: str | Path | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write what training takes (`atif`: every execution) to `out`, which appears when it is complete.

    Args:
        log: where the log is now, for `atif`; else where it was when the trees were built.
        force: replace what is at `out`.

    Raises:
        TreeError: `out` is there already, or `atif` does not find the log.
    """
    report = ExportReport(fmt, out)
    if fmt is Format.ATIF:
        export_atif(trees, out, report, log=log, force=force, progress=progress)
        return report
    found, reasons = places(trees.executions(), trees.advantages())
    with whole_file(out, force) as temporary:
        _write(fmt, temporary, _rows(trees, fmt, found, reasons, report, progress), found)
    report.left_out = dict(sorted(reasons.items()))
    return report


def _rows(
    trees: Source,
    fmt: Format,
    found: Mapping[AttemptKey, Place],
    reasons: Counter[str],
    report: ExportReport,
    progress: Progress | None,
) -> Iterator[Row]:
    for summary, tree in trees:
        place = found.get((summary.execution_id, summary.execution_attempt))
        if place is None:
            continue
        if fmt not in PLAIN and lacks_logprobs(tree):
            reasons["no_logprobs"] += 1
            continue
        for row in rows_of(place, tree, idle=fmt in PLAIN):
            report.rows += 1
            report.tokens += len(row.token_ids)
            report.targets += int(row.target_mask.sum())
            yield row
        report.executions += 1
        if progress:
            progress(report.executions, len(found))


def _write(fmt: Format, path: Path, rows: Iterator[Row], found: Mapping[AttemptKey, Place]) -> None:
    match fmt:
        case Format.JSONL:
            write_lines(path, map(plain.line, rows))
        case Format.PARQUET:
            write_table(path, plain.SCHEMA, map(plain.record, rows))
        case Format.TRL:
            write_table(path, trl.SCHEMA, map(trl.record, rows))
        case Format.VERL:
            write_table(path, verl.SCHEMA, map(verl.record, rows))
        case Format.AREAL:
            write_table(path, areal.SCHEMA, map(areal.record, rows))
        case Format.SLIME:
            write_lines(path, map(slime.record, rows))
        case Format.SKYRL:
            write_lines(path, map(skyrl.record, rows))
        case Format.PRIME_RL:
            sample = partial(prime_rl.sample, mean=prime_rl.mean_targets(found.values()))
            write_array(path, map(sample, rows), msgspec.msgpack.encode)
        case Format.ATIF:
            raise ValueError("atif has documents, not rows")
