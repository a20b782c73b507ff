"""Why a prompt of the same context leaves the ids that were there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gyre.proxy.canonical import Kind
from gyre.treebuilder.call import Call
from gyre.treebuilder.lineage.align import Alignment, Answer
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Try
from gyre.treebuilder.prefix import PrefixTree, Run
from gyre.treebuilder.trees import Cause, Evidence

_MARGIN = 64
"""Ids of a generation prompt (`assistant`, an opened think tag) that a re-rendering may lack."""


@dataclass(frozen=True, slots=True)
class Break:
    cause: Cause
    evidence: Evidence
    offset: int | None = None


def break_of(
    one: Try, origin: Try, alignment: Alignment, tree: PrefixTree, texts: Texts, tries: list[Try]
) -> Break:
    """What kind of break lies between `origin` and `one`, which goes on from it by messages."""
    offset, beyond = _where(one, origin, tree)
    if one.call.tools != origin.call.tools:
        return Break(Cause.TOOLS_CHANGED, Evidence("messages", "other tools, same messages"), offset)
    if alignment.cleared and not (alignment.inserted or alignment.deleted or alignment.altered):
        detail = f"{alignment.cleared} tool results became shorter, all tool-call ids kept"
        return Break(Cause.EDIT, Evidence("messages", detail), offset)
    if not alignment.clean:
        detail = (
            f"{alignment.inserted} blocks put in, {alignment.deleted} taken out, {alignment.altered} changed"
        )
        return Break(Cause.REWRITTEN, Evidence("messages", detail), offset)
    if alignment.answer is Answer.ABSENT:
        return Break(Cause.CONTINUATION, Evidence("messages", "goes on without the answer"), offset)
    if alignment.answer is not Answer.PRESENT:
        return Break(Cause.REWRITTEN, Evidence("messages", "the answer came back changed"), offset)
    return _same_messages(offset, beyond, texts, tries)


def _same_messages(offset: int | None, beyond: list[Run], texts: Texts, tries: list[Try]) -> Break:
    given = 0
    for run in beyond:
        if not run.sampled:
            given += run.size
        elif given > _MARGIN:
            break
        else:
            call = tries[run.owner].call
            if _reasoned(texts, call):
                detail = f"the reasoning of call `{call.key.call_id}` is not in the prompt"
                return Break(Cause.REASONING_STRIPPED, Evidence("messages", detail), offset)
            detail = f"same text as call `{call.key.call_id}` sampled, other ids"
            return Break(Cause.RETOKENIZED, Evidence("ids", detail), offset)
    return Break(Cause.REWRITTEN, Evidence("ids", "same messages, other ids in the given part"), offset)


def _reasoned(texts: Texts, call: Call) -> bool:
    """Whether the answer has reasoning, as a field of its own or between tags in its text."""
    return any(b.kind is Kind.REASONING or "</think>" in b.text for b in texts.answer(call))


def _where(one: Try, origin: Try, tree: PrefixTree) -> tuple[int | None, list[Run]]:
    """Where the prompt leaves what `origin` had, and the runs that `origin` had from there on."""
    end = origin.output_end or origin.prompt_end
    if one.prompt_end is None or end is None:
        return None, []
    mine = {id(run) for run in tree.path(one.prompt_end)}
    path = tree.path(end)
    common = sum(id(run) in mine for run in path)
    offset = path[common - 1].end if common else 0
    return offset, path[common:]
