"""TOML files read, and settings written as one that says the same."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gyre.trainer.errors import TrainError


def read_toml(path: Path) -> dict[str, Any]:
    """Raises TrainError for what cannot be read or is no TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TrainError(f"cannot read `{path}`: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TrainError(f"`{path}` is not TOML: {error}") from error


def lay(table: dict[str, Any], key: str, value: Any) -> None:
    """Set `key`, with dots as in `optimizer.lr`."""
    name, _, rest = key.partition(".")
    if not rest:
        table[name] = value
        return
    inner = table.setdefault(name, {})
    if isinstance(inner, dict):  # what else stands there is refused with all of its kind
        lay(inner, rest, value)


def lines_of(
    settings: msgspec.Struct,
    name: str = "",
    *,
    used: Mapping[str, object] | None = None,
    leave_out: Collection[str] = (),
) -> Iterator[str]:
    """The lines of a table and of all tables in it; without a name, of a whole file.

    TOML has no null: what is unset stands there as a comment, with what it then is where `used` says so.

    Args:
        used: by the field's own name, as in `clip_low`.
        leave_out: full names, as in `train.epochs`.
    """
    inner: list[tuple[str, msgspec.Struct]] = []
    for field in msgspec.structs.fields(settings):
        value, full = getattr(settings, field.name), _joined(name, field.encode_name)
        if full in leave_out:
            continue
        match value:
            case msgspec.Struct():
                inner.append((f"[{full}]", value))
            case (msgspec.Struct(), *_):
                inner += [(f"[[{full}]]", each) for each in value]
            case _:
                yield _line(field.encode_name, msgspec.to_builtins(value), used or {})
    for title, table in inner:
        yield from ("", title)
        yield from lines_of(table, title.strip("[]"), used=used, leave_out=leave_out)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _line(key: str, value: Any, used: Mapping[str, object]) -> str:
    if value is None:
        return f"# {key} is not set{f': {used[key]}' if key in used else ''}"
    return f"{key} = {value_text(value)}"


def value_text(value: Any) -> str:
    """Text, numbers, and lists and tables of them. JSON's text for these is nearly TOML's."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_scalar(key)} = {value_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(value_text, value))}]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str).replace("\x7f", "\\u007f")
