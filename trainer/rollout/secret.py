"""Keys that nobody is to read in what gyre says of an execution."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = re.compile(r"(?:^|_)(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)S?(?:_|$)", re.IGNORECASE)
_SHORTEST = 8
"""Letters of a value that can be a key; shorter ones, such as `EMPTY`, are words that texts have."""
MASK = "***"


@dataclass(frozen=True)
class Secrets:
    """Texts to be hidden, as they stand: not where somebody has encoded them."""

    values: tuple[str, ...] = ()
    """The longest first: one may be part of another."""

    @property
    def longest(self) -> int:
        return len(self.values[0]) if self.values else 0

    def hide(self, text: str) -> str:
        """`text` with `***` in their place, and nothing that UTF-8 cannot say."""
        for value in self.values:
            text = text.replace(value, MASK)
        return text.encode("utf-8", "replace").decode()


def secrets_of(token: str | None, *environments: Mapping[str, str]) -> Secrets:
    """The proxy's token, and values of variables that are called keys, tokens, secrets or passwords."""
    found = {token} if token else set()
    for environment in environments:
        for value in (value for name, value in environment.items() if _NAME.search(name)):
            found |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _SHORTEST}
    return Secrets(tuple(sorted(found, key=len, reverse=True)))


NO_SECRETS = Secrets()
