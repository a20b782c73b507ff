"""The `[train]` table of a TOML file, with flags laid over it. A run file has one too."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gyre.trainer.errors import TrainError
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.settings import LossSettings, TrainSettings, clip_range
from gyre.trainer.tables import Schema
from gyre.trainer.toml import lay, lines_of, read_toml

TABLE = "train"
_SCHEMA = Schema(TrainSettings, TABLE)
_RUN = frozenset(field.encode_name for field in msgspec.structs.fields(RunSettings))
"""What else may stand in a run file, which always names a harness; none of it is our business."""


def load_config(path: Path | None, flags: Mapping[str, Any]) -> TrainSettings:
    """Defaults < file < flags; a flag of None is not given, its name has dots as in `optimizer.lr`.

    Raises:
        TrainError: a file that cannot be read, an unknown key, or a value that makes no sense.
    """
    table = _read(path) if path else {}
    for key, value in flags.items():
        if value is not None:
            lay(table, key, value)
    try:
        _SCHEMA.check(table)
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
    require_finite(msgspec.to_builtins(settings), f"{TABLE}.")
    if settings.loss.reference and not settings.loss.kl:
        raise TrainError(
            "`train.loss.reference` names a model and `train.loss.kl` is 0, so it would not be used",
            "set `kl`, or leave `reference` out",
        )
    return settings


def require_finite(table: Mapping[str, Any], where: str = "") -> None:
    """TOML can say `inf` and `nan`."""
    for name, value in flat(table, where):
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainError(f"`{name}` is not finite")


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
    """A file that says the same."""
    return "\n".join([f"[{TABLE}]", *lines_of(settings, TABLE, used=used_clip(settings.loss))]) + "\n"


def used_clip(loss: LossSettings) -> dict[str, float]:
    """What is used where nothing is set."""
    return dict(zip(("clip_low", "clip_high"), clip_range(loss), strict=True))


def _read(path: Path) -> dict[str, Any]:
    document = read_toml(path)
    others = _RUN if "harness" in document else ()
    for key, value in document.items():
        if key != TABLE and key not in others:
            raise _outside(path, key, value)
    table = document.get(TABLE, {})
    if not isinstance(table, dict):
        raise TrainError(f"`{TABLE}` in `{path}` is no table")
    return table


def _outside(path: Path, key: str, value: object) -> TrainError:
    known = _SCHEMA.names
    hint = f"settings of training stand in `[{TABLE}]`"
    hint += (
        f": did you mean `{known[key][0]}`?" if key in known else "; a file for `gyre proxy` is another one"
    )
    if isinstance(value, dict):
        return TrainError(f"unknown table `[{key}]` in `{path}`", hint)
    return TrainError(f"`{path}` has `{key}` outside of the table `[{TABLE}]`", hint)
