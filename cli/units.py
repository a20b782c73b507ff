"""Durations and sizes as options of commands: what is none is wrong usage."""

from __future__ import annotations

import typer

from gyre.proxy import units
from gyre.proxy.errors import ConfigError


def seconds_of(text: str, option: str) -> float:
    """`90`, `90s`, `30m`, `2h`, `1h30m` -> seconds, more than 0."""
    try:
        return units.seconds_of(text)
    except ConfigError as error:
        raise _usage(error, option) from None


def bytes_of(text: str, option: str) -> int:
    """`8GB`, `500 MB`, `1000` -> bytes, more than 0; a KB has 1,024."""
    try:
        return units.bytes_of(text)
    except ConfigError as error:
        raise _usage(error, option) from None


def _usage(error: ConfigError, option: str) -> typer.BadParameter:
    return typer.BadParameter(f"`{option}`: {error.message}; {error.hint}")
