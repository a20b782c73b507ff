"""What a call really was."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gyre.treebuilder.trees import CallKey, Cause, Role

_OF_IDS = (Cause.REASONING_STRIPPED, Cause.RETOKENIZED, Cause.TOOLS_CHANGED)


class Decided(Enum):
    """What it takes to know the truth from the record."""

    ALWAYS = "always"
    LABEL = "label"
    """Only a label of the harness tells it from something else; without it, it must be quarantined."""
    NEVER = "never"
    """Identical by construction with something else; must be quarantined."""
    NEVER_HARDLY = "never or hardly"
    """The same, but without labels it may as well be another agent's first answer: then as `HARDLY`."""
    HARDLY = "hardly"
    """Without labels the evidence is thin: found or quarantined, never wrong."""


class Truth(NamedTuple):
    cause: Cause
    context: int
    role: Role
    origin: CallKey | None = None
    step: str | None = None
    family: str | None = None
    """Of a summary: its kind. Of a restart: `kept_tail` or None."""
    decided: Decided = Decided.ALWAYS
    also: CallKey | None = None
    """Another origin that is as good."""

    def without_ids(self) -> Truth:
        """What is left of it where only messages are known: other ids and other tools do not show."""
        return self._replace(cause=Cause.CONTINUATION) if self.cause in _OF_IDS else self

    def open_to(self, labels: bool) -> bool:
        """Whether the record leaves it open, so that it has to be quarantined."""
        by_labels = Decided.NEVER_HARDLY if labels else Decided.LABEL
        return self.decided in (Decided.NEVER, by_labels)
