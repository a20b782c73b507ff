"""The link of every call, from resolved turns. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.treebuilder.lineage.turn import Context, Try, Turn
from gyre.treebuilder.trees import Cause, Confidence, Evidence, Link, Role


@dataclass(slots=True)
class Links:
    links: list[Link] = field(default_factory=list)
    """In commit order."""
    open_tries: set[int] = field(default_factory=set)
    """Tries whose own link is quarantined: each is a context of its own."""


def make_links(contexts: list[Context], tries: list[Try], roles: dict[int, Role]) -> Links:
    made = Links()
    fresh = len(contexts)
    for one in tries:
        link = _link(one, tries)
        if link.confidence is Confidence.QUARANTINED and link.cause is Cause.RETRY:
            link.context_id, fresh = fresh, fresh + 1
            link.role = Role.UNKNOWN
            made.open_tries.add(one.index)
        else:
            link.role = roles.get(link.context_id, Role.UNKNOWN)
        made.links.append(link)
    return made


def _link(one: Try, tries: list[Try]) -> Link:
    turn = one.turn
    if turn is None:
        return _delivery(one, tries)
    kept = turn.kept
    if one.call.key[:2] == kept.call.key[:2]:
        return _trunk(one, turn, kept)
    return _retry(one, turn, kept)


def _trunk(one: Try, turn: Turn, kept: Try) -> Link:
    origin = turn.origin
    link = _base(one, turn, turn.cause, turn.confidence, list(turn.evidence), origin)
    link.step, link.family, link.break_offset = turn.step, turn.family, turn.break_offset
    if turn.confidence is Confidence.QUARANTINED:
        link.reason = turn.reason
    if one is not kept:
        detail = f"choice {one.call.key.choice} of the same call"
        link.evidence.append(Evidence("messages", detail))
    return link


def _retry(one: Try, turn: Turn, kept: Try) -> Link:
    confidence, evidence = _retry_evidence(one, turn, kept)
    link = _base(one, turn, Cause.RETRY, confidence, [evidence], kept)
    if confidence is Confidence.QUARANTINED:
        link.reason = "a reply that was lost, or a second sample that was asked for: the calls are alike"
    return link


def _retry_evidence(one: Try, turn: Turn, kept: Try) -> tuple[Confidence, Evidence]:
    call = one.call
    if call.key.call_id == kept.call.key.call_id:
        return Confidence.PROVEN, Evidence("ids", "a further attempt of the same call")
    if call.outcome != "ok" or "late" in call.flags:
        return Confidence.PROVEN, Evidence("count", f"the same request; this try ended `{call.outcome}`")
    later = (other for other in turn.tries if other.index > one.index and other.call.key[:2] != call.key[:2])
    after = next(later, None)
    if after is not None and after.call.retry_count:
        return Confidence.STATED, Evidence("header", "the same request came again with a retry count")
    if one.index > kept.index and call.retry_count:
        return Confidence.STATED, Evidence("header", f"retry count {call.retry_count}")
    return Confidence.QUARANTINED, Evidence("messages", "the same request, both answered")


def _delivery(one: Try, tries: list[Try]) -> Link:
    """A stored answer that was sent again: nothing was generated."""
    given = (other for other in tries if other.call.key.call_id == one.call.delivery_of and other.turn)
    origin = next(given, None)
    evidence = [Evidence("ids", f"the stored answer of `{one.call.delivery_of}` was sent again")]
    link = Link(one.call.key, 0, Cause.RETRY, Confidence.PROVEN, evidence)
    if origin is not None and origin.turn is not None:
        link.context_id = link.origin_context_id = origin.turn.context.number
        link.origin = origin.call.key
    return link


def _base(
    one: Try, turn: Turn, cause: Cause, confidence: Confidence, evidence: list[Evidence], origin: Try | None
) -> Link:
    link = Link(one.call.key, turn.context.number, cause, confidence, evidence)
    if origin is not None and origin.turn is not None:
        link.origin = origin.call.key
        link.origin_context_id = origin.turn.context.number
    link.shared_tokens = one.shared
    link.prompt_tokens = one.prompt_end.depth if one.prompt_end is not None else 0
    link.output_tokens = one.sampled
    link.temperature = one.call.temperature
    link.logprob_quality, link.sampling = one.call.logprob_quality, one.call.sampling
    return link
