"""The `[train]` table of a TOML file, with flags laid over it. An unknown key names the nearest known one."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import TrainSettings

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
    _refuse_unknown(table, TrainSettings, TABLE)
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
    """A file that says the same. TOML has no null: what is unset stands there as a comment."""
    table = as_table(settings)
    lines = [f"[{TABLE}]", *_lines(table)]
    for name, value in table.items():
        if isinstance(value, dict):
            lines += ["", f"[{TABLE}.{name}]", *_lines(value)]
    return "\n".join(lines) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [
        f"# {key} is not set" if value is None else f"{key} = {_value(value)}"
        for key, value in table.items()
        if not isinstance(value, dict)
    ]


def _value(value: object) -> str:
    """A scalar or a list of them; JSON's text for these is TOML's too."""
    return json.dumps(value, ensure_ascii=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise TrainError(f"cannot read `{path}`: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainError(f"`{path}` is not TOML: {error}") from error
    for key in document:
        if key != TABLE:
            raise TrainError(f"unknown table `{key}` in `{path}`", f"settings stand in `[{TABLE}]`")
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise TrainError(f"`{TABLE}` in `{path}` is no table")
    return table


def _lay(table: dict[str, Any], key: str, value: Any) -> None:
    name, _, rest = key.partition(".")
    if not rest:
        table[name] = value
        return
    inner = table.setdefault(name, {})
    if isinstance(inner, dict):  # what else stands there is refused with all of its kind
        _lay(inner, rest, value)


def _refuse_unknown(table: Mapping[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean `{where}.{near[0]}`?" if near else f"known keys: {', '.join(fields)}"
            raise TrainError(f"unknown key `{where}.{key}`", hint)
        inner = fields[key].type
        if isinstance(value, Mapping) and isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            _refuse_unknown(value, inner, f"{where}.{key}")
