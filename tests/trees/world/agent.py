"""An agent of the world: its history and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.treebuilder.trees import Cause, Role
from tests.trees.world.labels import Who
from tests.trees.world.messages import Message
from tests.trees.world.row import Row
from tests.trees.world.truth import Truth


@dataclass
class Agent:
    name: str
    history: list[Message]
    tools: list[Message]
    coming: Truth | None
    """Of its next call, where that is not simply what the last one led to."""
    context: int
    ready: int
    """When it can make its next call."""
    depth: int = 0
    parent: Agent | None = None
    window: int = 0
    last: Row | None = None
    """The call of its context that the next one goes on from."""
    before_last: Row | None = None
    changed: Cause | None = None
    """What the harness did to the history since then."""
    inbox: list[tuple[int, str]] = field(default_factory=list)
    """(time, text) of what background children reported and was not read yet."""
    final: str = ""
    """What it said last."""
    started_by: str = ""
    """Id of the tool call that started it."""

    def begin(self, truth: Truth, history: list[Message]) -> None:
        """A new context."""
        self.context, self.coming, self.history = truth.context, truth, history
        self.last = self.before_last = self.changed = None

    @property
    def who(self) -> Who:
        return Who(self.name, self.parent.name if self.parent else None, self.depth, self.window)

    @property
    def role(self) -> Role:
        return Role.SUB if self.depth else Role.MAIN

    @property
    def summary_role(self) -> Role:
        return Role.SUB_SUMMARY if self.depth else Role.MAIN_SUMMARY
