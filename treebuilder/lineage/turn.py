"""The words of lineage: tries of one request, turns of one context. Values that `trace` fills in."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.treebuilder.call import Call
from gyre.treebuilder.tokens.prefix import Position, Run
from gyre.treebuilder.trees import Cause, Confidence, Evidence

Voice = tuple[str | None, str | None]
"""Session and agent id: who speaks, as far as the harness says."""


@dataclass(slots=True, eq=False)
class Try:
    """One row of the log, with its place in the prefix tree."""

    index: int
    """Position in commit order."""
    call: Call
    prompt_end: Position | None = None
    """None for a call without ids."""
    output_end: Position | None = None
    shared: int = 0
    """Leading prompt ids that the tree had already."""
    turn: Turn | None = None

    @property
    def voice(self) -> Voice:
        return self.call.session_id, self.call.agent_id

    @property
    def complete(self) -> bool:
        return self.call.outcome == "ok"

    @property
    def has_output(self) -> bool:
        return self.sampled > 0

    @property
    def sampled(self) -> int:
        """Length of the output in the tree."""
        if self.prompt_end is None or self.output_end is None:
            return 0
        return self.output_end.depth - self.prompt_end.depth


@dataclass(slots=True, eq=False)
class Turn:
    """One request of an agent: all tries of the same prompt."""

    tries: list[Try]
    context: Context
    cause: Cause = Cause.UNKNOWN
    confidence: Confidence = Confidence.INFERRED
    evidence: list[Evidence] = field(default_factory=list)
    step: str | None = None
    family: str | None = None
    reason: str | None = None
    origin: Try | None = None
    """The try it goes on from."""
    answered: Try | None = None
    """The try whose answer a later turn went on from."""
    whole: bool = False
    """Its prompt has the whole answer of `origin`."""
    break_offset: int | None = None
    next: list[Turn] = field(default_factory=list)
    """Turns whose `origin` is a try of this one."""

    @property
    def first(self) -> Try:
        return self.tries[0]

    @property
    def voice(self) -> Voice:
        """Whoever is named: in a try that died with its proxy nobody is."""
        return next((one.voice for one in self.tries if one.voice != (None, None)), (None, None))

    @property
    def prompt_end(self) -> Position | None:
        """Where the prompt ends; None while no try of it has ids."""
        return next((one.prompt_end for one in self.tries if one.prompt_end is not None), None)

    @property
    def weak(self) -> bool:
        """It left the answer of its predecessor out, so another turn may have a better claim."""
        return self.step == "response_absent" and not self.next

    @property
    def kept(self) -> Try:
        """The try that counts: the one that was gone on from, else the last complete one."""
        if self.answered is not None:
            return self.answered
        complete = [one for one in self.tries if one.complete and not one.call.delivery_of]
        # Of several choices of one call the first is as good as any.
        best = complete or self.tries
        last = best[-1]
        return next(one for one in best if one.call.key[:2] == last.call.key[:2])


@dataclass(slots=True, eq=False)
class Context:
    """Turns that extend each other."""

    number: int
    turns: list[Turn] = field(default_factory=list)
    resolved: bool = False

    @property
    def root(self) -> Turn:
        return self.turns[0]

    @property
    def tip(self) -> Turn:
        return self.turns[-1]

    @property
    def voice(self) -> Voice:
        return self.root.voice


def begins_with(one: Try, other: Try) -> bool:
    """Whether the prompt of `one` begins with prompt and output of `other`, id by id."""
    if one.prompt_end is None or other.output_end is None:
        return False
    run: Run | None = one.prompt_end.run
    while run is not None and run.depth >= other.output_end.depth:
        run = run.parent
    return run is other.output_end.run


def is_other(one: Try, turn: Turn) -> bool:
    """Whether another call than `one` is known to have given the answer that counts."""
    return turn.answered is not None and one.call.key[:2] != turn.answered.call.key[:2]


def may_be_one(one: Voice, other: Voice) -> bool:
    """Whether two calls may come from one agent; without labels they may."""
    return one == other or one == (None, None) or other == (None, None)
