"""How much one attempt of an execution may ask for. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

CODE = "execution_limit"
STATUS = 403
"""Agents take it for final: they neither wait nor try again."""
_REACHED = " has reached "
MOST = 2**53
"""JSON of any language has it exactly."""
Allowed = Annotated[int, msgspec.Meta(ge=1, le=MOST)]


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of each attempt; None: no limit."""

    calls: Allowed | None = None
    """That ask for an answer to be sampled."""
    tokens: Allowed | None = None
    """Sampled ones. Looked at before a call: the last one may go beyond."""

    def reached(self, calls: int, tokens: int) -> str:
        """Which limit is; empty when none is."""
        if self.calls is not None and calls >= self.calls:
            return f"its limit of {self.calls} calls"
        if self.tokens is not None and tokens >= self.tokens:
            return f"its limit of {self.tokens} tokens"
        return ""


def refusal(name: str, limit: str) -> str:
    """What the client is told, and the log has as the call's error."""
    return f"execution `{name}`{_REACHED}{limit}"


def limit_in(error: str) -> str:
    """The limit that a refusal speaks of."""
    return error.partition(_REACHED)[2]
