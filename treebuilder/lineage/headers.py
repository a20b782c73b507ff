"""Header lineage held against token lineage: who is right is not decided here, only said. Pure."""

from __future__ import annotations

from gyre.treebuilder.lineage.labels import Labels, is_labelled
from gyre.treebuilder.lineage.turn import Try, Voice
from gyre.treebuilder.trees import Cause, Disagreement, Link

_SAME_AGENT = {
    Cause.CONTINUATION,
    Cause.RETRY,
    Cause.COMPACTION,
    Cause.EDIT,
    Cause.REASONING_STRIPPED,
    Cause.RETOKENIZED,
    Cause.TOOLS_CHANGED,
    Cause.REWRITTEN,
}


def hold_against(links: list[Link], tries: list[Try], labels: Labels) -> list[Disagreement]:
    """Fill in what the headers say of each link, and list where they say something else."""
    seen: set[Voice] = set()
    found: list[Disagreement] = []
    for one, link in zip(tries, links, strict=True):
        if is_labelled(one.voice) and link.cause is not Cause.SIDE:
            link.header_cause = _stated(one, labels, first=one.voice not in seen)
            seen.add(one.voice)
            origin = _origin(one)
            link.agrees = _agrees(one, link, origin, labels)
            link.header_origin_context_id = link.origin_context_id if link.agrees else None
            if not link.agrees:
                found.append(_disagreement(one, link, origin))
    return found


def _stated(one: Try, labels: Labels, *, first: bool) -> Cause:
    if labels.is_summary(one):
        return Cause.COMPACTION
    if not first:
        return Cause.CONTINUATION
    return Cause.START if labels.parent(one.voice) is None else Cause.DELEGATION


def _origin(one: Try) -> Try | None:
    turn = one.turn
    if turn is None:
        return None
    return turn.origin if one.call.key[:2] == turn.kept.call.key[:2] else turn.kept


def _agrees(one: Try, link: Link, origin: Try | None, labels: Labels) -> bool:
    parent = labels.parent(one.voice)
    if link.cause is Cause.DELEGATION:
        return parent is not None and (
            origin is None or origin.voice == parent or not is_labelled(origin.voice)
        )
    if link.header_cause is Cause.COMPACTION and link.cause is not Cause.RETRY:
        return link.step == "summary"
    if link.cause in _SAME_AGENT and origin is not None and is_labelled(origin.voice):
        return origin.voice == one.voice
    return link.header_cause is not Cause.DELEGATION or link.cause is Cause.RETRY


def _disagreement(one: Try, link: Link, origin: Try | None) -> Disagreement:
    stated = f"{link.header_cause} of agent {_name(one.voice)}"
    found = str(link.cause) if origin is None else f"{link.cause} from agent {_name(origin.voice)}"
    return Disagreement(link.call, stated, found)


def _name(voice: Voice) -> str:
    return f"`{voice[1] or voice[0] or 'without a name'}`"
