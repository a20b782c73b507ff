"""Agents that others started: whose call it was, and how the two ran beside each other. Pure."""

from __future__ import annotations

from collections import Counter

from gyre.treebuilder.lineage.align import Alignment, Answer
from gyre.treebuilder.lineage.breaks import break_of
from gyre.treebuilder.lineage.evidence import Hit
from gyre.treebuilder.lineage.known import Known, is_sub, settle
from gyre.treebuilder.lineage.trace import split
from gyre.treebuilder.lineage.turn import Context, Try, Turn, Voice, begins_with
from gyre.treebuilder.trees import Cause, Confidence, Evidence


class Delegations:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._taken: Counter[tuple[int, str]] = Counter()
        """Children found, by index of the call and argument: one tool call starts one child."""

    def find(self, context: Context) -> Hit | None:
        """Of calls with the same argument in different contexts the one that got the answer back."""
        hits = [hit for hit in self._known.quotes.delegations(context) if not self._is_taken(hit)]
        owners = {id(hit.origin.turn.context): hit for hit in reversed(hits) if hit.origin.turn is not None}
        if len(owners) < 2:
            return hits[0] if hits else None
        told = [
            hit
            for hit in owners.values()
            if hit.origin.turn is not None and self._known.quotes.reported(context, hit.origin.turn.context)
        ]
        if len(told) == 1:
            return told[0]
        context.root.reason = f"{len(owners)} agents gave this prompt"
        return hits[0]

    def _is_taken(self, hit: Hit) -> bool:
        return self._taken[hit.origin.index, hit.text] >= self._known.quotes.times(hit)

    def came_back(self, context: Context, hit: Hit) -> bool:
        """Whether a prompt was all of an argument, or its answer went to the agent that gave it."""
        turn = hit.origin.turn
        return hit.whole or (turn is not None and self._known.quotes.reported(context, turn.context))

    def handed_over(self, context: Context) -> Hit | None:
        """An agent whose words a program gave to this one, and this one's answer back to it."""
        for hit in self._known.quotes.handed_over(context):
            turn = hit.origin.turn
            if turn is not None and self._known.quotes.reported(context, turn.context):
                return hit
        return None

    def settle_as_stated(self, context: Context, parent: Voice) -> None:
        spoken = self._known.quotes.delegations(context, parent)
        if spoken:
            self.settle_by(context, spoken[0], Confidence.STATED)
        else:
            before = [
                one
                for one in self._known.tries[: context.root.first.index]
                if one.voice == parent and one.complete
            ]
            context.root.origin = before[-1] if before else context.root.origin
            settle(context, Cause.DELEGATION, confidence=Confidence.STATED)
        detail = f"agent {context.voice} was started by {parent}"
        context.root.evidence.append(Evidence("header", detail))

    def settle_by(
        self,
        context: Context,
        hit: Hit,
        confidence: Confidence = Confidence.INFERRED,
        what: str = "an argument",
    ) -> None:
        self._taken[hit.origin.index, hit.text] += 1
        turn = hit.origin.turn
        forked = context.root.origin is not None and context.root.origin.turn is turn
        forked = forked or self._known.quotes.kept(context) is hit.origin
        if turn is not None:
            context.root.origin = hit.origin if hit.origin.complete else turn.kept
        kind = "is" if hit.whole else "holds"
        call_id = hit.origin.call.key.call_id
        detail = f"its prompt {kind} {what} of call `{call_id}`, {hit.length} characters"
        settle(context, Cause.DELEGATION, Evidence("text", detail), confidence)
        context.root.step = "forked" if forked else None

    def step(self, context: Context) -> str:
        origin = context.root.origin
        turn = origin.turn if origin is not None else None
        if turn is None:
            return "blocking"
        if is_sub(turn.context):
            return "nested"
        after = [other for other in turn.next if other.context is turn.context]
        ended = max(one.call.ended_ns for t in context.turns for one in t.tries)
        return "background" if after and after[0].first.call.started_ns < ended else "blocking"

    def swap_fork(self, context: Context) -> None:
        """Of two prompts that go on from one answer, the earlier may be the fork it asked for."""
        origin = context.root.origin
        if origin is None or origin.turn is None:
            return
        for rival in [t for t in origin.turn.next if t.context is origin.turn.context]:
            fork = split(rival, self._known.contexts)
            hit = next(
                (h for h in self._known.quotes.delegations(fork) if h.origin.turn is origin.turn), None
            )
            if hit is not None:
                self._go_on(context.root, origin)
                _merge(context, origin.turn)
                self.settle_by(fork, hit)
                return
            _merge(fork, origin.turn)

    def _go_on(self, turn: Turn, origin: Try) -> None:
        """`turn` turns out to be the next of its origin's context."""
        turn.whole = True
        if begins_with(turn.first, origin):
            turn.cause, turn.confidence = Cause.CONTINUATION, Confidence.PROVEN
            turn.evidence.append(Evidence("ids", f"begins with all ids of `{origin.call.key.call_id}`"))
            return
        found = break_of(
            turn.first,
            origin,
            Alignment(Answer.PRESENT),
            self._known.tree,
            self._known.texts,
            self._known.tries,
        )
        turn.cause, turn.break_offset = found.cause, found.offset
        turn.evidence.append(found.evidence)


def _merge(context: Context, before: Turn) -> None:
    """Put a context's turns behind `before`."""
    for turn in context.turns:
        turn.context = before.context
    before.context.turns.extend(context.turns)
    before.answered = context.root.origin
    context.turns = []
    context.resolved = True
