"""What the calls of one attempt of an execution came to, as the proxy counts them. Values only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gyre.proxy.calls import Outcome

_LOST = frozenset((Outcome.UPSTREAM_ERROR, Outcome.UPSTREAM_CUT, Outcome.TIMEOUT, Outcome.INTERRUPTED))
_UNAVAILABLE = 503


@dataclass(slots=True, kw_only=True)
class Tally:
    """Of calls that ask for an answer to be sampled."""

    attempt: int = 0
    begun: int = 0
    """Calls that were let through."""
    made: int = 0
    """Attempts that ended: those that were refused and those that were tried again included."""
    answered: int = 0
    tokens: int = 0
    """Sampled."""
    lost: bool = False
    """Whether the one that ended last found no engine."""
    error: str | None = None
    """Of the last that was not answered."""
    error_ns: int = 0
    limit: str = ""
    """Which limit a call was refused for."""
    ended_ns: int = 0

    def note(self, outcome: Outcome, error: str | None, status: int | None, tokens: int, now_ns: int) -> None:
        """One has ended."""
        self.made += 1
        self.tokens += tokens
        self.lost, self.ended_ns = is_lost(outcome, status), now_ns
        if outcome is Outcome.OK:
            self.answered += 1
        else:
            self.error, self.error_ns = error_text(outcome, error, status), now_ns


def is_lost(outcome: str, status: int | None) -> bool:
    """Whether no engine was there, or it went away: what it refuses is the client's own fault."""
    if outcome == Outcome.REJECTED:
        return status == _UNAVAILABLE
    return outcome in _LOST and not 400 <= (status or 0) < 500


def error_text(outcome: str, error: str | None, status: int | None) -> str:
    """`slow down (429)`"""
    return f"{error or outcome}{f' ({status})' if status else ''}"


def merged(tallies: Sequence[Tally]) -> Tally:
    """Several workers' as one; what belongs to an attempt before the newest is left out."""
    newest = max(tally.attempt for tally in tallies)
    parts = [tally for tally in tallies if tally.attempt == newest]
    return Tally(
        attempt=newest,
        begun=sum(part.begun for part in parts),
        made=sum(part.made for part in parts),
        answered=sum(part.answered for part in parts),
        tokens=sum(part.tokens for part in parts),
        lost=max(parts, key=lambda part: part.ended_ns).lost,
        error=max(parts, key=lambda part: part.error_ns).error,
        error_ns=max(part.error_ns for part in parts),
        limit=next((part.limit for part in parts if part.limit), ""),
        ended_ns=max(part.ended_ns for part in parts),
    )
