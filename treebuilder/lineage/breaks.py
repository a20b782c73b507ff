"""Why a prompt of the same context leaves the ids that were there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gyre.proxy.canonical import Kind
from gyre.treebuilder.call import Call
from gyre.treebuilder.lineage.align import Alignment, Answer
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Try
from gyre.treebuilder.tokens.prefix import Position, PrefixTree, Run
from gyre.treebuilder.trees import Cause, Evidence, Ids

_TAG = 3
"""Ids of an opened think tag, which templates keep when they strip what followed."""
_SEEN_AGAIN, _RUNS = 3, 16
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
    offset, beyond = _where(one, origin.output_end or origin.prompt_end, tree)
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
        return _without_answer(one, origin, tree, texts, tries)
    if alignment.answer is not Answer.PRESENT:
        return Break(Cause.REWRITTEN, Evidence("messages", "the answer came back changed"), offset)
    if offset is None:
        return Break(Cause.CONTINUATION, Evidence("messages", "the same messages and the answer"))
    return _same_messages(one, origin, offset, beyond, texts, tries)


def _without_answer(one: Try, origin: Try, tree: PrefixTree, texts: Texts, tries: list[Try]) -> Break:
    """The prompt should part from `origin` where its answer began; if earlier, that is a break."""
    offset, beyond = _where(one, origin.prompt_end, tree)
    if any(run.sampled for run in beyond):
        return _same_messages(one, origin, offset, beyond, texts, tries)
    return Break(Cause.CONTINUATION, Evidence("messages", "goes on without the answer"), offset)


def _same_messages(
    one: Try, origin: Try, offset: int | None, beyond: list[Run], texts: Texts, tries: list[Try]
) -> Break:
    if beyond and not beyond[0].sampled and _is_shorter(one, offset, beyond, texts, tries):
        detail = "a piece of the history is left out, and answers in it have reasoning"
        return Break(Cause.REASONING_STRIPPED, Evidence("ids", detail), offset)
    given = 0
    for run in beyond:
        if run.sampled:
            return _in_output(one, offset, _meant(run, origin, tries), texts)
        given += run.size
        if given > _MARGIN:
            break
    if _unchanged(one, origin, texts):
        return Break(
            Cause.RETOKENIZED, Evidence("ids", "same messages, other ids for what was given"), offset
        )
    return Break(
        Cause.REWRITTEN, Evidence("ids", "messages that mean the same are written otherwise"), offset
    )


def _unchanged(one: Try, origin: Try, texts: Texts) -> bool:
    """Whether the harness sent all earlier messages byte for byte as before."""
    before = texts.addresses(origin.call)
    return texts.addresses(one.call)[: len(before)] == before


def _is_shorter(one: Try, offset: int | None, beyond: list[Run], texts: Texts, tries: list[Try]) -> bool:
    """Whether the given part goes on further down: answers that stand there may lose their reasoning too."""
    if offset is None or not any(_reasoned(texts, other.call) for other in tries[: one.index]):
        return False
    following = _from(one, offset, _SEEN_AGAIN)
    old = np.concatenate([run.ids for run in beyond[:_RUNS]])
    return len(following) > 0 and _found_in(following, old[1:])


def _found_in(few: Ids, many: Ids) -> bool:
    """Whether `few` stand one after another anywhere in `many`."""
    if len(many) < len(few):
        return False
    windows = np.lib.stride_tricks.sliding_window_view(many, len(few))
    return bool((windows == few).all(axis=1).any())


def _in_output(one: Try, offset: int | None, sampler: Try, texts: Texts) -> Break:
    call = sampler.call
    if _reasoned(texts, call) and _at_start(one, offset, sampler):
        detail = f"the reasoning of call `{call.key.call_id}` is not in the prompt"
        return Break(Cause.REASONING_STRIPPED, Evidence("messages", detail), offset)
    detail = f"same text as call `{call.key.call_id}` sampled, other ids"
    return Break(Cause.RETOKENIZED, Evidence("ids", detail), offset)


def _meant(run: Run, origin: Try, tries: list[Try]) -> Try:
    """The call whose answer a sampled run of the path to `origin` is, whoever else sampled it too."""
    if origin.prompt_end is not None and run.depth >= origin.prompt_end.depth:
        return origin
    owner = tries[run.owner]
    return owner if owner.turn is None else owner.turn.kept


def _at_start(one: Try, offset: int | None, sampler: Try) -> bool:
    """Whether the prompts part where the answer begins, or behind a think tag that is always there."""
    if offset is None or sampler.prompt_end is None or one.prompt_end is None:
        return True
    after = offset - sampler.prompt_end.depth
    if after <= 0:
        return True
    if after > _TAG or sampler.call.output is None:
        return False
    # Stripped text goes on with what was sampled later; other ids for the same text do not.
    following = _from(one, offset, 2)
    sampled = sampler.call.output[after + 1 :]
    return len(following) == 2 and bool(
        np.any((sampled[:-1] == following[0]) & (sampled[1:] == following[1]))
    )


def _from(one: Try, offset: int, count: int) -> Ids:
    """The next ids of the prompt, as far as they lie in one run."""
    run: Run | None = one.prompt_end.run if one.prompt_end is not None else None
    while run is not None and run.depth > offset:
        run = run.parent
    return run.ids[offset - run.depth :][:count] if run is not None else np.zeros(0, np.int32)


def _reasoned(texts: Texts, call: Call) -> bool:
    """Whether the answer has reasoning, as a field of its own or between tags in its text."""
    return any(b.kind is Kind.REASONING or "</think>" in b.text for b in texts.answer(call))


def _where(one: Try, end: Position | None, tree: PrefixTree) -> tuple[int | None, list[Run]]:
    """Where the prompt leaves the path to `end`, and the runs that this path has from there on."""
    if one.prompt_end is None or end is None:
        return None, []
    mine = {id(run) for run in tree.path(one.prompt_end)}
    path = tree.path(end)
    common = sum(id(run) in mine for run in path)
    offset = path[common - 1].end if common else 0
    return offset, path[common:]
