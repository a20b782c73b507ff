"""Rewards as a scorer or Harbor's verifier says them.

A number in `reward.txt`, or numbers by name in `reward.json`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyre.elastic.process.left import read_end
from gyre.trainer.rollout.place import size
from gyre.trainer.rollout.secret import NO_SECRETS, Secrets

REWARD_TEXT, REWARD_JSON = "reward.txt", "reward.json"
_NUMBER = re.compile(
    rb"\s*([+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf|infinity))\s*", re.IGNORECASE
)
_MOST = 2_000_000
"""Bytes that are read: more than is kept of what a scorer prints."""


def read_rewards(folder: Path, secrets: Secrets = NO_SECRETS) -> dict[str, float] | None:
    """What a scorer or Harbor's verifier wrote, by name; None when it wrote nothing.

    Raises:
        ValueError: it is no number, or none that can be used.
        OSError: it may not be read.
    """
    if folder.is_symlink():
        raise ValueError("in the place of the folder for rewards is a link")
    if (text := _small(folder / REWARD_JSON)) is not None:
        return rewards_of(_json(text))
    if (text := _small(folder / REWARD_TEXT)) is not None:
        if not _NUMBER.fullmatch(text):
            found = secrets.hide(text.decode(errors="replace"))[:40].strip()
            raise ValueError(f"`{REWARD_TEXT}` holds `{found}`, no number")
        return {"reward": _finite(text, f"`{REWARD_TEXT}`")}
    return None


def printed_reward(stdout: Path) -> dict[str, float] | None:
    """The last line that is a number; None when there is none."""
    for line in reversed((read_end(stdout, _MOST) or b"").splitlines()):
        if number := _NUMBER.fullmatch(line):
            return {"reward": _finite(number[1], "the number it printed")}
    return None


def _small(path: Path) -> bytes | None:
    """None where no file is: a link is not followed, and a pipe not waited for."""
    text = read_end(path, _MOST + 1)
    if text is not None and len(text) > _MOST:
        raise ValueError(f"`{path.name}` is larger than {size(_MOST)}")
    return text


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"`{REWARD_JSON}` is no JSON: {problem}") from None


def rewards_of(found: object) -> dict[str, float]:
    """Rewards by name, as numbers.

    Raises:
        ValueError: it is no object of finite numbers.
    """
    if not isinstance(found, dict) or not found:
        raise ValueError("the rewards are no JSON object of names and numbers")
    for name, value in found.items():
        name.encode()  # JSON can spell what is no text, and then no log can hold it
        if not isinstance(value, int | float):
            raise ValueError(f"the reward `{name}` is no number")
    return {name: _finite(value, f"the reward `{name}`") for name, value in found.items()}


def _finite(value: float | bytes, what: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} is {number}, no finite number")
    return number


def score_of(rewards: Mapping[str, float], key: str = "reward") -> float:
    """The one number that counts: the reward of that name, or the only one.

    Raises:
        ValueError: there are several and none has the name.
    """
    if key in rewards:
        return rewards[key]
    if len(rewards) == 1 and key == "reward":
        return next(iter(rewards.values()))
    raise ValueError(f"none of the rewards {', '.join(f'`{name}`' for name in rewards)} is called `{key}`")
