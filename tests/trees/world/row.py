"""A call of the world: what the engine saw and sampled, what the harness sent, and the truth."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.treebuilder.trees import CallKey
from tests.trees.world.labels import Labels
from tests.trees.world.messages import Message
from tests.trees.world.model import Reply
from tests.trees.world.template import Rendered
from tests.trees.world.truth import Truth


@dataclass
class Row:
    key: CallKey
    messages: list[Message]
    tools: list[Message]
    prompt: Rendered
    started: int
    ended: int
    labels: Labels
    truth: Truth
    reply: Reply | None = None
    """None: the engine answered with an error."""
    outcome: str = "ok"
    finish: str | None = "stop"
    retry_count: int | None = None
    delivery_of: str | None = None
    capture_quality: str = "exact"
    logprob_quality: str = "sampled"
    flags: tuple[str, ...] = ()
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    continued: bool = False
    """A later call goes on from what was received of it, though it was cut."""
    reply_lost: bool = False
    """A later try with a retry mark asked for the same again."""

    @property
    def path(self) -> Rendered:
        return self.prompt + self.reply.sampled if self.reply else self.prompt

    @property
    def has_ids(self) -> bool:
        return self.reply is not None and self.delivery_of is None

    def trained(self, labels: bool) -> bool:
        """Whether what it sampled may be trained, as far as the record can tell."""
        whole = self.outcome == "ok" or self.continued
        sound = self.capture_quality == "exact" and self.logprob_quality in ("sampled", "raw")
        unspoilt = not {"late", "version_unsure"} & set(self.flags)
        lost = self.reply_lost and labels
        return self.has_ids and whole and sound and unspoilt and not lost
