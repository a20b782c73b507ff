"""A file of scores, as a scorer writes it: JSONL, CSV or Parquet, one row per execution.

Columns: `execution_id` (or `execution`), `attempt`, `score`, `outcome`, `task`, `group`, `artifact`,
`reason`; all but the first may be missing or empty.
"""

from __future__ import annotations

import csv
import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path

from gyre.proxy.errors import ScoreError
from gyre.proxy.scores import Scored

Row = tuple[str, dict[str, object]]
"""Where it stands, and its cells."""
COLUMNS = tuple(field.name for field in fields(Scored))
ALIASES = {"execution": "execution_id"}


def read_scores(path: str | Path) -> dict[tuple[str, int | None], Scored]:
    """By (execution, attempt); attempt None is the last one.

    Raises:
        ScoreError: names the file and the line.
    """
    path = Path(path)
    found: dict[tuple[str, int | None], Scored] = {}
    places: dict[tuple[str, int | None], str] = {}
    try:
        for place, cells in _reader(path)(path):
            scored = _scored(path, place, cells)
            key = (scored.execution_id, scored.attempt)
            if key in found:
                raise ScoreError(f"`{path}` has `{key[0]}` twice: {places[key]} and {place}")
            found[key], places[key] = scored, place
    except OSError as problem:
        raise ScoreError(f"cannot read `{path}`: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise ScoreError(f"cannot read `{path}`: {problem}", "it has to be UTF-8") from problem
    return found


def _reader(path: Path) -> Callable[[Path], Iterator[Row]]:
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".csv": _csv, ".parquet": _parquet}
    try:
        return readers[path.suffix.lower()]
    except KeyError:
        hint = f"its name has to end in one of {', '.join(readers)}"
        raise ScoreError(f"`{path}` is of no known kind", hint) from None


def _jsonl(path: Path) -> Iterator[Row]:
    import orjson

    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                cells = orjson.loads(line)
            except orjson.JSONDecodeError as problem:
                raise ScoreError(f"`{path}` line {number} is no JSON: {problem}") from None
            if not isinstance(cells, dict):
                raise ScoreError(f"`{path}` line {number} is no JSON object")
            yield f"line {number}", cells


def _csv(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file, strict=True)
        try:
            _require_distinct(path, rows.fieldnames or ())
            for row in rows:
                place = f"line {rows.line_num}"
                if None in row:
                    raise ScoreError(f"`{path}` {place} has more cells than the header has names")
                # A row that ends early has None for what is missing.
                yield place, {name: cell or None for name, cell in row.items()}
        except csv.Error as problem:
            raise ScoreError(f"`{path}` line {rows.line_num} is no CSV: {problem}") from None


def _require_distinct(path: Path, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise ScoreError(f"`{path}` line 1 names `{name}` twice")


def _parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(path, partitioning=None).to_pylist()
    except pa.ArrowException as problem:
        raise ScoreError(f"`{path}` is no Parquet: {problem}") from None
    for number, cells in enumerate(rows, 1):
        yield f"row {number}", cells


def _scored(path: Path, place: str, cells: dict[str, object]) -> Scored:
    try:
        named = _named(cells)
        return Scored(
            execution_id=_text(named, "execution_id") or _missing("execution_id"),
            attempt=_attempt(named.get("attempt")),
            score=_number(named.get("score")),
            outcome=_text(named, "outcome"),
            task=_text(named, "task"),
            group=_text(named, "group"),
            artifact=_text(named, "artifact"),
            reason=_text(named, "reason"),
        )
    except ScoreError as problem:
        raise ScoreError(f"`{path}` {place}: {problem}", problem.hint) from None


def _named(cells: dict[str, object]) -> dict[str, object]:
    """Cells by column, each column once."""
    named: dict[str, object] = {}
    for name, value in cells.items():
        column = ALIASES.get(name, name)
        if column not in COLUMNS:
            near = difflib.get_close_matches(name, [*COLUMNS, *ALIASES], 1)
            hint = f"did you mean `{near[0]}`?" if near else f"known columns: {', '.join(COLUMNS)}"
            raise ScoreError(f"unknown column `{name}`", hint)
        if column in named:
            raise ScoreError(f"`{name}` and `{column}` are the same column")
        named[column] = value
    return named


def _missing(column: str) -> str:
    raise ScoreError(f"`{column}` is missing")


def _text(cells: dict[str, object], column: str) -> str | None:
    value = cells.get(column)
    if value is None or isinstance(value, str):
        return value or None
    raise ScoreError(f"`{column}` is {value!r}, which is no text")


def _number(value: object, what: str = "score") -> float | None:
    """Whether it is finite is for `Scored` to say."""
    if value is None:
        return None
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise ScoreError(f"the {what} {value!r} is no number")


def _attempt(value: object) -> int | None:
    """Parquet of pandas has floats where a column of integers has gaps."""
    number = _number(value, "attempt")
    if number is None:
        return None
    if number < 0 or not number.is_integer():
        raise ScoreError(f"the attempt {value!r} is no whole number from 0")
    return int(number)
