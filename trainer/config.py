"""The `[train]` table of a TOML file, with flags laid over it. An unknown key names the nearest known one."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import TrainSettings, clip_range

TABLE = "train"


def load_config(path: Path | None, flags: Mapping[str, Any]) -> TrainSettings:
    """Defaults < file < flags; a flag of None is not given, its name has dots as in `optimizer.lr`.

    Raises:
        TrainError: a file that cannot be read, an unknown key, or a value that makes no sense.
    """
    table = _read(path) if path else {}
    for key, value in flags.items():
        if value is not None:
            _lay(table, key, value)
    try:
        _check(table, TrainSettings, TABLE)
    except TrainError as error:
        if path is None:
            raise
        raise TrainError(f"`{path}`: {error.message}", error.hint) from None
    return checked(settings_of(table))


def settings_of(table: Mapping[str, Any]) -> TrainSettings:
    """Of a table whose keys are known."""
    try:
        return msgspec.convert(table, TrainSettings)
    except msgspec.ValidationError as error:
        text = str(error).replace("`$.", f"`{TABLE}.").replace("`$`", f"`{TABLE}`")
        raise TrainError(f"configuration: {text}") from error


def checked(settings: TrainSettings) -> TrainSettings:
    """The same; TrainError for values that make no sense, by themselves or together."""
    for name, value in flat(msgspec.to_builtins(settings)):
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainError(f"`{TABLE}.{name}` is not finite")
    if settings.loss.reference and not settings.loss.kl:
        raise TrainError(
            "`train.loss.reference` names a model and `train.loss.kl` is 0, so it would not be used",
            "set `kl`, or leave `reference` out",
        )
    return settings


def as_table(settings: TrainSettings) -> dict[str, Any]:
    """Everything by the names of the file, as JSON has it; what is unset is None."""
    table: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(settings))
    return table


def flat(table: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    """(`optimizer.lr`, value) of all that is no table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", value


def as_toml(settings: TrainSettings) -> str:
    """A file that says the same. TOML has no null: what is unset stands there as a comment, with what it
    then is where that is a number."""
    table = as_table(settings)
    used = dict(zip(("clip_low", "clip_high"), clip_range(settings.loss), strict=True))
    lines = [f"[{TABLE}]", *_lines(table, {})]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{TABLE}.{name}]", *_lines(value, used)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any], used: Mapping[str, float]) -> list[str]:
    return [
        f"{key} = {_value(value)}" if value is not None else f"# {key} is not set{_used(used.get(key))}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]


def _used(value: float | None) -> str:
    return "" if value is None else f": {value}"


def _value(value: object) -> str:
    """A scalar or a list of them; JSON's text for these is TOML's too."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise TrainError(f"cannot read `{path}`: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainError(f"`{path}` is not TOML: {error}") from error
    for key, value in document.items():
        if key != TABLE:
            raise _outside(path, key, value)
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise TrainError(f"`{TABLE}` in `{path}` is no table")
    return table


def _outside(path: Path, key: str, value: object) -> TrainError:
    known = _names(TrainSettings, TABLE)
    hint = f"settings of training stand in `[{TABLE}]`"
    hint += f": did you mean `{known[key]}`?" if key in known else "; a file for `gyre proxy` is another one"
    if isinstance(value, dict):
        return TrainError(f"unknown table `[{key}]` in `{path}`", hint)
    return TrainError(f"`{path}` has `{key}` outside of the table `[{TABLE}]`", hint)


def _lay(table: dict[str, Any], key: str, value: Any) -> None:
    name, _, rest = key.partition(".")
    if not rest:
        table[name] = value
        return
    inner = table.setdefault(name, {})
    if isinstance(inner, dict):  # what else stands there is refused with all of its kind
        _lay(inner, rest, value)


def _check(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    """In plain words what msgspec would say in its own."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        name = f"{where}.{key}"
        if key not in fields:
            raise TrainError(f"unknown key `{name}`", _near(key, fields, where))
        inner = fields[key]
        if not _is_table(inner):
            _check_value(name, value, inner)
        elif isinstance(value, Mapping):
            _check(value, inner, name)
        else:
            raise TrainError(f"`{name}` is {_value(value)}, and is a table", f"begin it with `[{name}]`")


def _check_value(name: str, value: Any, kind: Any) -> None:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            raise TrainError(f"`{name}` is {_value(value)}", f"one of {', '.join(kind)}") from error
        reason = str(error).partition(" - at ")[0].replace("`array`", "a list").replace("`object`", "a table")
        raise TrainError(f"`{name}` is {_value(value)}: {reason[0].lower()}{reason[1:]}") from error


def _near(key: str, fields: Iterable[str], where: str) -> str:
    """A key of another table is as likely as a wrong letter."""
    names = _names(TrainSettings, TABLE)
    here = {name: f"{where}.{name}" for name in fields}
    for known, cutoff in ((names, 1.0), (here, 0.6), (names, 0.6)):
        if near := difflib.get_close_matches(key, known, 1, cutoff):
            return f"did you mean `{known[near[0]]}`?"
    return f"known keys: {', '.join(here)}"


def _names(kind: type[msgspec.Struct], where: str) -> dict[str, str]:
    """`lr`: `train.optimizer.lr`, of all tables; a name that two have is the outer one's."""
    found: dict[str, str] = {}
    for field in msgspec.structs.fields(kind):
        name = f"{where}.{field.encode_name}"
        inner = _names(field.type, name) if _is_table(field.type) else {}
        found = inner | found | {field.encode_name: name}
    return found


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
