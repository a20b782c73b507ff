"""Decides what began each context that ids and messages did not join to an earlier one. Pure.

In order of strength: what the harness says, a summary or a prompt found again, kept tool calls, and
last what is left over: side calls, the main agent, and what stays open.
"""

from __future__ import annotations

from gyre.treebuilder.lineage.compactions import Compactions
from gyre.treebuilder.lineage.delegations import Delegations
from gyre.treebuilder.lineage.evidence import Hit, Quotes, better
from gyre.treebuilder.lineage.known import Known, settle
from gyre.treebuilder.lineage.labels import Labels, is_labelled
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try, Voice
from gyre.treebuilder.tokens.prefix import PrefixTree
from gyre.treebuilder.trees import Cause, Confidence, Evidence


def resolve(
    contexts: list[Context], tries: list[Try], tree: PrefixTree, texts: Texts, labels: Labels
) -> list[Context]:
    """Give the root of every context its cause; contexts are split where a summary request ends one.

    Returns the contexts, numbered in the order in which they began.
    """
    tools = any(one.call.tools for one in tries)
    work = _Resolver(Known(contexts, tries, tree, texts, labels, Quotes(tries, texts), tools))
    for context in list(contexts):
        if not context.resolved:
            work.by_evidence(context)
    work.by_labels()
    work.leftovers()
    work.steps()
    found = sorted((c for c in contexts if c.turns), key=lambda c: c.root.first.index)
    for number, context in enumerate(found):
        context.number = number
    return found


class _Resolver:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._compactions, self._delegations = Compactions(known), Delegations(known)
        self._voices: dict[Voice, Context] = {}
        """The first context of each agent."""

    def by_evidence(self, context: Context) -> None:
        parent = self._parent(context)
        if parent is not None:
            self._delegations.settle_as_stated(context, parent)
        elif not (self._by_texts(context) or self._by_kept_calls(context)):
            self._delegations.swap_fork(context)

    def _parent(self, context: Context) -> Voice | None:
        """The agent that started this one, by the headers, if this is its first context."""
        if self._known.is_bare(context) and self._has_other(context):
            return None
        first = self._voices.setdefault(context.voice, context)
        return self._known.labels.parent(context.voice) if first is context else None

    def _has_other(self, context: Context) -> bool:
        """Whether its agent, by the labels, has a context with tools too."""
        others = [
            c for c in self._known.contexts if c.turns and c.voice == context.voice and c is not context
        ]
        return is_labelled(context.voice) and any(not self._known.is_bare(c) for c in others)

    def _by_texts(self, context: Context) -> bool:
        """What it quotes: a summary, a delegated prompt, an answer that a program handed over."""
        summary = None if self._known.is_bare(context) else self._compactions.find(context)
        delegation = self._delegation(context)
        cause = better(summary, delegation)
        if delegation is not None and summary is not None and summary.origin.turn is not None:
            # A summary that began another context before is only quoted here.
            cause = Cause.DELEGATION if summary.origin.turn.step == "summary" else cause
        if cause is Cause.COMPACTION and summary is not None:
            self._compactions.restart(context, summary)
        elif cause is Cause.DELEGATION and delegation is not None:
            self._delegations.settle_by(context, delegation)
        elif (handed := self._delegations.handed_over(context)) is not None:
            self._delegations.settle_by(context, handed, what="the answer")
        return context.resolved

    def _delegation(self, context: Context) -> Hit | None:
        if is_labelled(context.voice) and self._voices.get(context.voice) is not context:
            return None  # An agent that the headers know from before was not started here.
        found = self._delegations.find(context)
        if found is not None and self._known.is_bare(context):
            return found if self._delegations.came_back(context, found) else None
        return found

    def _by_kept_calls(self, context: Context) -> bool:
        kept = self._known.quotes.kept(context) if context.root.origin is None else None
        if kept is not None:
            self._compactions.restart_from_kept(context, kept)
        return context.resolved

    def by_labels(self) -> None:
        """Summary requests that no later context took up, where the harness calls them that."""
        stated = Evidence("header", "the harness calls it a compaction request")
        for context in list(self._known.contexts):
            if context.turns and any(map(self._known.labels.is_summary, context.tip.tries)):
                self._compactions.mark_summary(context.tip.kept, stated)

    def steps(self) -> None:
        """How children ran beside their parents, now that it is known whose they are."""
        for context in self._known.contexts:
            if context.turns and context.root.cause is Cause.DELEGATION and context.root.step != "forked":
                context.root.step = self._delegations.step(context)

    def leftovers(self) -> None:
        """Contexts without evidence: side calls, the main agent, and what cannot be told."""
        left = [c for c in self._known.contexts if c.turns and not c.resolved]
        roots = [c for c in left if c.root.origin is None]
        for context in roots:
            if self._known.is_bare(context):
                detail = "no tools, and its answer enters no other context"
                settle(context, Cause.SIDE, Evidence("messages", detail))
        main = _main(contexts=[c for c in roots if not c.resolved])
        if main is not None:
            settle(main, Cause.START, Evidence("time", "the first context that nothing else explains"))
        for context in left:
            if not context.resolved:
                _leave_open(context)


def _leave_open(context: Context) -> None:
    root = context.root
    origin = root.origin
    if origin is not None and origin.turn is not None:
        others = [t for t in origin.turn.next if t is not root]
        if not others and is_labelled(context.voice) and origin.voice != context.voice:
            root.confidence = Confidence.PROVEN
            settle(context, Cause.CONTINUATION, Evidence("ids", "begins with all of its origin's ids"))
            return
        reason = "two prompts go on from one answer: a fork, or a history that was taken back"
    else:
        reason = "nothing shows where this context came from"
    root.reason = root.reason or reason
    settle(context, Cause.UNKNOWN, confidence=Confidence.QUARANTINED)


def _main(contexts: list[Context]) -> Context | None:
    """The main agent's first context: one with tools, with more than one turn, and of these the earliest."""

    def order(context: Context) -> tuple[bool, bool, int, int]:
        first = context.root.first
        bare = not any(turn.first.call.tools for turn in context.turns)
        return bare, len(context.turns) < 2, first.call.started_ns, first.index

    return min(contexts, key=order, default=None)
