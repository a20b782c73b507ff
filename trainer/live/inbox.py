"""What has come to its end: groups in the order in which they did, evaluations by their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gyre.trainer.live.assignment import Finished

_LOOK_S = 0.5
"""How often a wait looks whether the run is to go on."""


class Source(Protocol):
    def next(self, timeout_s: float) -> Finished | None: ...


@dataclass(slots=True)
class Inbox:
    """`go_on` is asked while it waits, and raises what ends the run."""

    source: Source
    go_on: Callable[[], None]
    ready: list[Finished] = field(default_factory=list)
    """Groups, the one that finished first first."""
    evaluations: dict[str, Finished] = field(default_factory=dict)

    def group(self, may_enter: Callable[[str], bool]) -> Finished:
        """The first ready group that may enter; waits for one."""
        while True:
            for place, one in enumerate(self.ready):
                if may_enter(one.key):
                    return self.ready.pop(place)
            self._take()

    def evaluation(self, key: str) -> Finished:
        while key not in self.evaluations:
            self._take()
        return self.evaluations.pop(key)

    def _take(self) -> None:
        self.go_on()
        finished = self.source.next(_LOOK_S)
        if finished is None:
            return
        if finished.key.startswith("eval-"):
            self.evaluations[finished.key] = finished
        else:
            self.ready.append(finished)
