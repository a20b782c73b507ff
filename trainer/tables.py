"""A TOML file held against the structs that it fills: unknown keys and wrong values, in plain words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, get_args, get_origin

import msgspec

from gyre.trainer.errors import TrainError
from gyre.trainer.toml import value_text

_MOST = 3
"""Places that a hint names."""


@dataclass(frozen=True)
class Schema:
    """What may stand in a file, or in one table of it."""

    kind: type[msgspec.Struct]
    name: str = ""
    """Of the table; empty: the whole file."""

    def check(self, table: Mapping[str, Any]) -> None:
        """TrainError for the first thing that msgspec would not take, said as a person would."""
        self._unknown(table, self.kind, self.name, "")
        _missing(table, self.kind, self.name, "")

    def near(self, key: str, kind: type[msgspec.Struct], where: str) -> str:
        """A hint. A key of another table is as likely as a wrong letter."""
        here = {name: [title] for name, title in _keys(kind, where)}
        for known, cutoff in ((self.names, 1.0), (here, 0.6), (self.names, 0.6)):
            if found := difflib.get_close_matches(key, known, 1, cutoff):
                return f"did you mean {_either(known[found[0]], where)}?"
        return f"known keys: {', '.join(here)}"

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """`lr`: [`train.optimizer.lr`], of all tables, the outermost first."""
        found: dict[str, list[str]] = {}
        for _, key, title in sorted(_all(self.kind, self.name, 0), key=lambda entry: entry[0]):
            found.setdefault(key, []).append(title)
        return found

    def _unknown(self, table: Mapping[str, Any], kind: type[msgspec.Struct], where: str, place: str) -> None:
        fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
        for key, value in table.items():
            name = joined(where, key)
            if key not in fields:
                raise TrainError(f"unknown {_title(name, value)}{place}", self.near(key, kind, where))
            inner, several = tables_in(fields[key])
            if inner is None:
                _check_value(name, value, fields[key], place)
            elif several:
                for number, each in enumerate(_list(name, value), 1):
                    within = f" (`[[{name}]]` number {number})" if len(value) > 1 else place
                    self._unknown(_table(f"[[{name}]]", name, each), inner, name, within)
            else:
                self._unknown(_table(f"[{name}]", name, value), inner, name, place)


def tables_in(kind: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """The struct of a table, or of each of a list of tables, and whether it is a list."""
    several = get_origin(kind) is tuple
    inner = get_args(kind)[0] if several else kind
    found = isinstance(inner, type) and issubclass(inner, msgspec.Struct)
    return (inner, several) if found else (None, False)


def joined(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _title(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return f"table `[{name}]`"
    several = isinstance(value, list) and value and isinstance(value[0], Mapping)
    return f"table `[[{name}]]`" if several else f"key `{name}`"


def _table(title: str, name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    raise TrainError(f"`{name}` is {value_text(value)}, and is a table", f"begin it with `{title}`")


def _list(name: str, value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    shown = "one table" if isinstance(value, Mapping) else value_text(value)
    raise TrainError(f"`{name}` is {shown}, and is a list of tables", f"begin each with `[[{name}]]`")


def _check_value(name: str, value: Any, kind: Any, place: str) -> None:
    """In plain words what msgspec would say in its own."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        shown = f"`{name}` is {value_text(value)}"
        if choice := _choice(kind):
            raise TrainError(f"{shown}{place}", f"one of {', '.join(choice)}") from error
        reason = str(error).partition(" - at ")[0].replace("`array`", "a list").replace("`object`", "a table")
        raise TrainError(f"{shown}: {reason[0].lower()}{reason[1:]}{place}") from error


def _choice(kind: Any) -> type[StrEnum] | None:
    """The enumeration that a value is of, also where it may be left out."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, StrEnum):
            return each
    return None


def _missing(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str, place: str) -> None:
    """Looked for last: a name with a wrong letter is not there either."""
    for field in msgspec.structs.fields(kind):
        name = joined(where, field.encode_name)
        inner, several = tables_in(field.type)
        value = table.get(field.encode_name)
        if value is None and field.required:
            raise _absent(name, inner, several, where, place)
        if inner is None or value is None:
            continue
        for number, each in enumerate(value if several else [value], 1):
            within = f" (`[[{name}]]` number {number})" if several and len(value) > 1 else place
            _missing(each, inner, name, within)


def _absent(
    name: str, inner: type[msgspec.Struct] | None, several: bool, where: str, place: str
) -> TrainError:
    if inner is not None:
        title = f"[[{name}]]" if several else f"[{name}]"
        needed = [field.encode_name for field in msgspec.structs.fields(inner) if field.required]
        hint = f"it has to say {', '.join(f'`{key}`' for key in needed)}" if needed else ""
        return TrainError(f"the table `{title}` is missing", hint)
    where = f"in `[{where}]`" if where else "before the first table"
    return TrainError(f"`{name}` is missing{place}", f"set it {where}" if not place else "")


def _keys(kind: type[msgspec.Struct], where: str) -> Iterator[tuple[str, str]]:
    """(key, as a hint names it) of one table."""
    for field in msgspec.structs.fields(kind):
        inner, several = tables_in(field.type)
        name = joined(where, field.encode_name)
        yield field.encode_name, f"[[{name}]]" if several else f"[{name}]" if inner else name


def _all(kind: type[msgspec.Struct], where: str, depth: int) -> Iterator[tuple[int, str, str]]:
    """The same of all tables in it, with how deep they stand."""
    for key, title in _keys(kind, where):
        yield depth, key, title
    for field in msgspec.structs.fields(kind):
        if inner := tables_in(field.type)[0]:
            yield from _all(inner, joined(where, field.encode_name), depth + 1)


def _either(titles: list[str], where: str) -> str:
    """`a`, `b` or `c`."""
    shown = [f"`{title}`" for title in titles[:_MOST]]
    outside = where and "." not in titles[0] and not titles[0].startswith("[")
    if len(shown) > 1:
        return f"{', '.join(shown[:-1])} or {shown[-1]}"
    return shown[0] + (", before the first table" if outside else "")
