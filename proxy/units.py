"""Durations and sizes as people write them."""

from __future__ import annotations

import re

from gyre.proxy.errors import ConfigError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *([KMGT]?B?)", re.IGNORECASE)


def seconds_of(text: str) -> float:
    """`90`, `90s`, `30m`, `2h`, `1h30m` -> seconds, more than 0.

    Raises:
        ConfigError: it is none of these.
    """
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ConfigError(f"`{text}` is no time", "give one like 90s, 30m, 2h") from None
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"`{text}` has to be more than 0", "give a time like 90s, 30m, 2h")
    return seconds


def bytes_of(text: str) -> int:
    """`8GB`, `500 MB`, `1000` -> bytes, more than 0; a KB has 1,024.

    Raises:
        ConfigError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    unit = found[2].upper() if found else ""
    number = float(found[1]) * _BYTES[unit if unit in _BYTES else unit + "B"] if found else 0
    if not 1 <= number < float("inf"):
        raise ConfigError(f"`{text}` is no size", "give one like 500MB, 8GB")
    return int(number)
