"""Decides what began each context that ids and messages did not join to an earlier one. Pure.

In order of strength: what the harness says, a summary or a prompt found again, kept tool calls, and
last what is left over: side calls, the main agent, and what stays open.
"""

from __future__ import annotations

from gyre.treebuilder.lineage.align import Alignment, Answer
from gyre.treebuilder.lineage.breaks import break_of
from gyre.treebuilder.lineage.evidence import Hit, Quotes, better
from gyre.treebuilder.lineage.labels import Labels, is_labelled
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.trace import split
from gyre.treebuilder.lineage.turn import Context, Try, Turn, Voice, begins_with
from gyre.treebuilder.prefix import PrefixTree
from gyre.treebuilder.trees import Cause, Confidence, Evidence


def resolve(
    contexts: list[Context], tries: list[Try], tree: PrefixTree, texts: Texts, labels: Labels
) -> list[Context]:
    """Give the root of every context its cause; contexts are split where a summary request ends one.

    Returns the contexts, numbered in the order in which they began.
    """
    work = _Resolver(contexts, tries, tree, texts, labels)
    for context in list(contexts):
        if not context.resolved:
            work.by_evidence(context)
    work.by_labels()
    work.leftovers()
    found = sorted((c for c in work.contexts if c.turns), key=lambda c: c.root.first.index)
    for number, context in enumerate(found):
        context.number = number
    return found


class _Resolver:
    def __init__(
        self, contexts: list[Context], tries: list[Try], tree: PrefixTree, texts: Texts, labels: Labels
    ) -> None:
        self.contexts = contexts
        self._tries, self._tree, self._texts, self._labels = tries, tree, texts, labels
        self._quotes = Quotes(tries, texts)
        self._voices: dict[Voice, Context] = {}
        self._tools = any(one.call.tools for one in tries)

    def by_evidence(self, context: Context) -> None:
        bare = self._is_bare(context)
        first = not (bare and self._has_other(context)) and context is self._voices.setdefault(
            context.voice, context
        )
        parent = self._labels.parent(context.voice) if first else None
        delegations = self._quotes.delegations(context)
        if parent is not None:
            self._delegate_as_stated(context, parent, delegations)
            return
        summary = None if bare else self._best_summary(context)
        delegation = self._best_delegation(context, delegations)
        if is_labelled(context.voice) and not first:
            delegation = None
        if bare and delegation is not None and not self._came_back(context, delegation):
            delegation = None
        cause = better(summary, delegation)
        if cause is Cause.COMPACTION and summary is not None:
            self._restart(context, summary)
        elif cause is Cause.DELEGATION and delegation is not None:
            self._delegate(context, delegation)
        elif (handed := self._handed_over(context)) is not None:
            self._delegate(context, handed, what="the answer")
        elif context.root.origin is None and (kept := self._quotes.kept(context)) is not None:
            self._restart_from_kept(context, kept)
        else:
            self._swap_fork(context)

    def _is_bare(self, context: Context) -> bool:
        """Whether it has no tools while others have: it may be a side call."""
        return self._tools and not any(turn.first.call.tools for turn in context.turns)

    def _has_other(self, context: Context) -> bool:
        """Whether its agent, by the labels, has a context with tools too."""
        others = (c for c in self.contexts if c.turns and c.voice == context.voice and c is not context)
        return is_labelled(context.voice) and any(not self._is_bare(c) for c in others)

    def _came_back(self, context: Context, hit: Hit) -> bool:
        """Whether a prompt was all of an argument, or its answer went to the agent that gave it."""
        turn = hit.origin.turn
        return hit.whole or (turn is not None and self._quotes.reported(context, turn.context))

    def by_labels(self) -> None:
        """Summary requests that no later context took up, where the harness calls them that."""
        for context in list(self.contexts):
            if context.turns and self._labels.is_summary(context.tip.first) and context.tip.step != "summary":
                self._mark_summary(context.tip.kept)
                context.tip.evidence.append(Evidence("header", "the harness calls it a compaction request"))

    def leftovers(self) -> None:
        """Contexts without evidence: side calls, the main agent, and what cannot be told."""
        left = [c for c in self.contexts if c.turns and not c.resolved]
        roots = [c for c in left if c.root.origin is None]
        for context in [c for c in roots if self._is_bare(c)]:
            _settle(
                context, Cause.SIDE, Evidence("messages", "no tools, and its answer enters no other context")
            )
        main = _main(contexts=[c for c in roots if not c.resolved])
        if main is not None:
            _settle(main, Cause.START, Evidence("time", "the first context that nothing else explains"))
        for context in left:
            if not context.resolved:
                self._leave_open(context)

    def _delegate_as_stated(self, context: Context, parent: Voice, hits: list[Hit]) -> None:
        spoken = [hit for hit in hits if hit.origin.voice == parent]
        if spoken:
            self._delegate(context, spoken[0], Confidence.STATED)
        else:
            before = [
                one for one in self._tries[: context.root.first.index] if one.voice == parent and one.complete
            ]
            context.root.origin = before[-1] if before else context.root.origin
            _settle(context, Cause.DELEGATION, confidence=Confidence.STATED)
            context.root.step = self._step(context)
        detail = f"agent {context.voice} was started by {parent}"
        context.root.evidence.append(Evidence("header", detail))

    def _handed_over(self, context: Context) -> Hit | None:
        """An agent whose words a program gave to this one, and this one's answer back to it."""
        for hit in self._quotes.summaries(context):
            turn = hit.origin.turn
            if turn is not None and self._quotes.reported(context, turn.context):
                return hit
        return None

    def _delegate(
        self,
        context: Context,
        hit: Hit,
        confidence: Confidence = Confidence.INFERRED,
        what: str = "an argument",
    ) -> None:
        turn = hit.origin.turn
        forked = context.root.origin is not None and context.root.origin.turn is turn
        forked = forked or self._quotes.kept(context) is hit.origin
        if turn is not None:
            context.root.origin = hit.origin if hit.origin.complete else turn.kept
        kind = "is" if hit.whole else "holds"
        call_id = hit.origin.call.key.call_id
        detail = f"its prompt {kind} {what} of call `{call_id}`, {hit.length} characters"
        _settle(context, Cause.DELEGATION, Evidence("text", detail), confidence)
        context.root.step = "forked" if forked else self._step(context)

    def _step(self, context: Context) -> str:
        origin = context.root.origin
        turn = origin.turn if origin is not None else None
        if turn is None:
            return "blocking"
        if _is_sub(turn.context):
            return "nested"
        after = [other for other in turn.next if other.context is turn.context]
        ended = max(one.call.ended_ns for t in context.turns for one in t.tries)
        return "background" if after and after[0].first.call.started_ns < ended else "blocking"

    def _best_delegation(self, context: Context, hits: list[Hit]) -> Hit | None:
        """Of calls with the same argument in different contexts the one that got the answer back."""
        owners = {id(hit.origin.turn.context): hit for hit in reversed(hits) if hit.origin.turn is not None}
        if len(owners) < 2:
            return hits[0] if hits else None
        told = [
            hit
            for hit in owners.values()
            if hit.origin.turn is not None and self._quotes.reported(context, hit.origin.turn.context)
        ]
        if len(told) == 1:
            return told[0]
        context.root.reason = f"{len(owners)} agents gave this prompt"
        return hits[0]

    def _best_summary(self, context: Context) -> Hit | None:
        hits = [hit for hit in self._quotes.summaries(context) if _may_be_summary(hit.origin, context)]
        if is_labelled(context.voice):
            hits = [hit for hit in hits if hit.origin.voice in (context.voice, (None, None))]
        own = [hit for hit in hits if hit.origin.turn is not None and not _is_sub(hit.origin.turn.context)]
        return next(iter(own or hits), None)

    def _restart(self, context: Context, hit: Hit) -> None:
        summary = self._mark_summary(hit.origin)
        detail = (
            f"{hit.length} characters of the answer of `{hit.origin.call.key.call_id}` stand in its messages"
        )
        context.root.origin = hit.origin
        _settle(context, Cause.COMPACTION, Evidence("text", detail))
        context.root.step, context.root.family = "restart", summary.family
        if (kept := self._quotes.kept(context)) is not None:
            context.root.family = "kept_tail"
            detail = f"tool calls of `{kept.call.key.call_id}` are kept"
            context.root.evidence.append(Evidence("tool_call", detail))
            _note_answered(kept, summary)

    def _restart_from_kept(self, context: Context, kept: Try) -> None:
        detail = f"tool calls of `{kept.call.key.call_id}` are kept; no summary was found"
        context.root.origin = kept
        _settle(context, Cause.COMPACTION, Evidence("tool_call", detail))
        context.root.step, context.root.family = "restart", "kept_tail"

    def _mark_summary(self, one: Try) -> Turn:
        """The turn of a summary request gets a context of its own."""
        turn = one.turn
        assert turn is not None
        if turn.step == "summary":
            return turn
        if len(turn.context.turns) > 1:
            split(turn, self.contexts)
        if turn.step == "restart":
            # It quotes a summary because it renders a history that began from one.
            turn.origin, turn.evidence = None, []
        before = turn.origin
        if turn.step == "response_absent" and before is not None and before.turn is not None:
            # It left out an answer: the history it summarises ends one answer earlier.
            earlier = before.turn.origin
            if (
                earlier is not None
                and earlier.turn is not None
                and earlier.turn.context is before.turn.context
            ):
                before = earlier
        turn.family = "suffix_prompt" if before is not None else "rendered_transcript"
        turn.answered = one
        if before is None:
            before = self._rendered(one, turn)
        turn.origin = before
        detail = "its answer begins a later context"
        turn.confidence = Confidence.INFERRED
        _settle(turn.context, Cause.COMPACTION, Evidence("text", detail))
        turn.step = "summary"
        return turn

    def _rendered(self, summary: Try, turn: Turn) -> Try | None:
        """The last call of the history that a summary request renders as text."""
        known = [c for c in self.contexts if c is not turn.context and c.turns and not self._is_bare(c)]
        known = [c for c in known if c.root.step != "summary" and c.root.first.index < summary.index]
        if is_labelled(summary.voice):
            known = [c for c in known if c.voice in (summary.voice, (None, None))]
        found = self._quotes.rendered(summary, known)
        while found is not None:
            after = (c for c in known if c.root.cause is Cause.EDIT and c.root.first.index < summary.index)
            edited = next((c for c in after if _before(c) is found), None)
            if edited is None:
                last = [t for t in found.turns if t.first.index < summary.index][-1]
                last.answered = last.answered or self._quotes.answered(last, summary)
                return last.kept
            found = edited
        return None

    def _swap_fork(self, context: Context) -> None:
        """Of two prompts that go on from one answer, the earlier may be the fork it asked for."""
        origin = context.root.origin
        if origin is None or origin.turn is None:
            return
        for rival in [t for t in origin.turn.next if t.context is origin.turn.context]:
            fork = split(rival, self.contexts)
            hit = next((h for h in self._quotes.delegations(fork) if h.origin.turn is origin.turn), None)
            if hit is not None:
                self._go_on(context.root, origin)
                _merge(context, origin.turn)
                self._delegate(fork, hit)
                return
            _merge(fork, origin.turn)

    def _go_on(self, turn: Turn, origin: Try) -> None:
        """`turn` turns out to be the next of its origin's context."""
        turn.whole = True
        if begins_with(turn.first, origin):
            turn.cause, turn.confidence = Cause.CONTINUATION, Confidence.PROVEN
            turn.evidence.append(Evidence("ids", f"begins with all ids of `{origin.call.key.call_id}`"))
            return
        found = break_of(turn.first, origin, Alignment(Answer.PRESENT), self._tree, self._texts, self._tries)
        turn.cause, turn.break_offset = found.cause, found.offset
        turn.evidence.append(found.evidence)

    def _leave_open(self, context: Context) -> None:
        root = context.root
        origin = root.origin
        if origin is not None and origin.turn is not None:
            others = [t for t in origin.turn.next if t is not root]
            if not others and is_labelled(context.voice) and origin.voice != context.voice:
                root.confidence = Confidence.PROVEN
                _settle(context, Cause.CONTINUATION, Evidence("ids", "begins with all of its origin's ids"))
                return
            reason = "two prompts go on from one answer: a fork, or a history that was taken back"
        else:
            reason = "nothing shows where this context came from"
        root.reason = root.reason or reason
        _settle(context, Cause.UNKNOWN, confidence=Confidence.QUARANTINED)


def _note_answered(kept: Try, summary: Turn) -> None:
    """The new history has the tool calls of `kept`: of several tries it was that one that counted."""
    if kept.turn is not None and kept.turn.answered is None:
        kept.turn.answered = kept
        if summary.origin is not None and summary.origin.turn is kept.turn:
            summary.origin = kept


def _settle(
    context: Context, cause: Cause, evidence: Evidence | None = None, confidence: Confidence | None = None
) -> None:
    context.resolved = True
    context.root.cause = cause
    context.root.confidence = confidence or context.root.confidence
    if evidence is not None:
        context.root.evidence.append(evidence)
    if context.root.reason is not None:
        context.root.confidence = Confidence.QUARANTINED


def _main(contexts: list[Context]) -> Context | None:
    """The main agent's first context: one with tools, with more than one turn, and of these the earliest."""

    def order(context: Context) -> tuple[bool, bool, int, int]:
        first = context.root.first
        bare = not any(turn.first.call.tools for turn in context.turns)
        return bare, len(context.turns) < 2, first.call.started_ns, first.index

    return min(contexts, key=order, default=None)


def _merge(context: Context, before: Turn) -> None:
    """Put a context's turns behind `before`."""
    for turn in context.turns:
        turn.context = before.context
    before.context.turns.extend(context.turns)
    before.answered = context.root.origin
    context.turns = []
    context.resolved = True


def _is_sub(context: Context) -> bool:
    """Whether a context belongs to a sub-agent, as far as is known by now."""
    seen: set[int] = set()
    while id(context) not in seen:
        seen.add(id(context))
        root = context.root
        if root.cause is Cause.DELEGATION:
            return True
        if root.origin is None or root.origin.turn is None or not context.resolved:
            return False
        context = root.origin.turn.context
    return False


def _before(context: Context) -> Context | None:
    """The context that this one branches off."""
    origin = context.root.origin
    return origin.turn.context if origin is not None and origin.turn is not None else None


def _may_be_summary(one: Try, context: Context) -> bool:
    """A summary's answer goes nowhere but into the new context."""
    turn = one.turn
    return turn is not None and all(other.context is context for other in turn.next)
