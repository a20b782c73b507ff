"""Histories that were replaced by a summary: the request for it, and what begins from it. Pure."""

from __future__ import annotations

from gyre.treebuilder.lineage.evidence import Hit, told_before
from gyre.treebuilder.lineage.known import Known, before, is_sub, settle
from gyre.treebuilder.lineage.labels import is_labelled
from gyre.treebuilder.lineage.trace import split
from gyre.treebuilder.lineage.turn import Context, Try, Turn
from gyre.treebuilder.trees import Cause, Confidence, Evidence


class Compactions:
    def __init__(self, known: Known) -> None:
        self._known = known

    def find(self, context: Context) -> Hit | None:
        hits = self._known.quotes.summaries(context)
        if is_labelled(context.voice):
            hits = [hit for hit in hits if hit.origin.voice in (context.voice, (None, None))]
        # A summary that has begun a context is kept among a user's messages in later ones.
        fresh = [hit for hit in hits if hit.origin.turn is not None and hit.origin.turn.step != "summary"]
        own = [hit for hit in fresh if hit.origin.turn is not None and not is_sub(hit.origin.turn.context)]
        return next(iter(own or fresh or hits), None)

    def restart(self, context: Context, hit: Hit) -> None:
        summary = self.mark_summary(hit.origin, Evidence("text", "its answer begins a later context"))
        detail = (
            f"{hit.length} characters of the answer of `{hit.origin.call.key.call_id}` stand in its messages"
        )
        context.root.origin = hit.origin
        settle(context, Cause.COMPACTION, Evidence("text", detail))
        context.root.step, context.root.family = "restart", summary.family
        if (kept := self._known.quotes.kept(context)) is not None:
            context.root.family = "kept_tail"
            detail = f"tool calls of `{kept.call.key.call_id}` are kept"
            context.root.evidence.append(Evidence("tool_call", detail))
            _note_answered(kept, summary)

    def restart_from_kept(self, context: Context, kept: Try) -> None:
        detail = f"tool calls of `{kept.call.key.call_id}` are kept; no summary was found"
        context.root.origin = kept
        settle(context, Cause.COMPACTION, Evidence("tool_call", detail))
        context.root.step, context.root.family = "restart", "kept_tail"

    def mark_summary(self, one: Try, evidence: Evidence) -> Turn:
        """The turn of a summary request gets a context of its own."""
        turn = one.turn
        assert turn is not None
        if turn.step == "summary":
            return turn
        if len(turn.context.turns) > 1:
            split(turn, self._known.contexts)
        if turn.cause is Cause.DELEGATION or turn.step == "restart":
            # It quotes a prompt or a summary because it renders a history that began from one.
            turn.origin, turn.evidence = None, []
        end = _end_of_history(turn)
        turn.family = "suffix_prompt" if end is not None else "rendered_transcript"
        turn.answered = one
        turn.origin = end if end is not None else self._rendered(one, turn)
        turn.confidence = Confidence.INFERRED
        settle(turn.context, Cause.COMPACTION, evidence)
        turn.step = "summary"
        return turn

    def _rendered(self, summary: Try, turn: Turn) -> Try | None:
        """The last call of the history that a summary request renders as text."""
        known = [
            c
            for c in self._known.contexts
            if c is not turn.context and c.turns and not self._known.is_bare(c)
        ]
        known = [c for c in known if c.root.step != "summary" and c.root.first.index < summary.index]
        if is_labelled(summary.voice):
            known = [c for c in known if c.voice in (summary.voice, (None, None))]
        found = self._known.quotes.rendered(summary, known)
        while found is not None:
            after = (c for c in known if c.root.cause is Cause.EDIT and c.root.first.index < summary.index)
            edited = next((c for c in after if before(c) is found), None)
            if edited is None:
                last = told_before(found, summary)[-1]
                last.answered = last.answered or self._known.quotes.answered(last, summary)
                return last.kept
            found = edited
        return None


def _end_of_history(turn: Turn) -> Try | None:
    """The last call whose answer is in the history that a summary request goes on from."""
    origin = turn.origin
    if turn.step == "response_absent" and origin is not None and origin.turn is not None:
        earlier = origin.turn.origin
        if earlier is not None and earlier.turn is not None and earlier.turn.context is origin.turn.context:
            return earlier
    return origin


def _note_answered(kept: Try, summary: Turn) -> None:
    """The new history has the tool calls of `kept`: of several tries it was that one that counted."""
    if kept.turn is not None and kept.turn.answered is None:
        kept.turn.answered = kept
        if summary.origin is not None and summary.origin.turn is kept.turn:
            summary.origin = kept
