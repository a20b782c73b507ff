"""What is known of an execution while its contexts are explained, and how a context is settled. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.treebuilder.lineage.evidence import Quotes
from gyre.treebuilder.lineage.labels import Labels
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try
from gyre.treebuilder.tokens.prefix import PrefixTree
from gyre.treebuilder.trees import Cause, Confidence, Evidence


@dataclass(frozen=True, slots=True)
class Known:
    contexts: list[Context]
    """Grows where one is split; an emptied one stays in it."""
    tries: list[Try]
    tree: PrefixTree
    texts: Texts
    labels: Labels
    quotes: Quotes
    tools: bool
    """Some call of the execution has tools."""

    def is_bare(self, context: Context) -> bool:
        """Whether it has no tools while others have: it may be a side call."""
        return self.tools and not any(turn.first.call.tools for turn in context.turns)


def settle(
    context: Context, cause: Cause, evidence: Evidence | None = None, confidence: Confidence | None = None
) -> None:
    context.resolved = True
    context.root.cause = cause
    context.root.confidence = confidence or context.root.confidence
    if evidence is not None:
        context.root.evidence.append(evidence)
    if context.root.reason is not None:
        context.root.confidence = Confidence.QUARANTINED


def is_sub(context: Context) -> bool:
    """Whether a context belongs to a sub-agent, as far as is known by now."""
    seen: set[int] = set()
    while id(context) not in seen:
        seen.add(id(context))
        if context.root.cause is Cause.DELEGATION:
            return True
        above = before(context)
        if above is None or not context.resolved:
            return False
        context = above
    return False


def before(context: Context) -> Context | None:
    """The context that this one branches off."""
    origin = context.root.origin
    return origin.turn.context if origin is not None and origin.turn is not None else None
