"""Which history do the messages of a call go on from? For calls that ids do not place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gyre.proxy.canonical import Block, Kind
from gyre.treebuilder.lineage.align import Alignment, Answer, align, common_blocks
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try, Turn, is_other, may_be_one

_RECENT = 16
"""Contexts that a prompt is held against, the latest first."""


class Histories:
    """The contexts found so far, by what they say."""

    def __init__(self, contexts: list[Context], texts: Texts) -> None:
        self._contexts = contexts
        """Grows while it is used."""
        self._texts = texts

    def aligned(self, one: Try) -> tuple[Try, Alignment] | None:
        """The try that `one` goes on from by its messages: with its answer, or else without it."""
        if not one.call.messages and not one.call.messages_shared:
            return None
        addresses = self._texts.addresses(one.call)
        without: list[tuple[Try, Alignment]] = []
        for context in self._candidates(one):
            found = self._against(addresses, context.tip)
            if found is not None and _goes_on_without(one, *found) and not self._behind(addresses, context):
                without.append(found)
            elif not without:
                whole = self._with_answer(addresses, context, found)
                if whole is not None:
                    return whole
        return min(without, key=lambda pair: pair[1].answer, default=None)

    def _with_answer(
        self, addresses: list[str], context: Context, found: tuple[Try, Alignment] | None
    ) -> tuple[Try, Alignment] | None:
        if found is not None and found[1].answer <= Answer.PARTIAL:
            return found
        return self._behind(addresses, context) or self._twin(addresses, context)

    def _behind(self, addresses: list[str], context: Context) -> tuple[Try, Alignment] | None:
        """The turn before a tip that left its answer out, when these messages have that answer."""
        origin = context.tip.origin
        if not context.tip.weak or origin is None or origin.turn is None:
            return None
        found = self._against(addresses, origin.turn)
        return found if found is not None and found[1].answer <= Answer.PARTIAL else None

    def _twin(self, addresses: list[str], context: Context) -> tuple[Try, Alignment] | None:
        """An answer beside the one that its context went on from, when these messages go on from it."""
        for turn in context.turns[:-1]:
            if turn.answered is not None and len(turn.tries) > 1:
                found = self._against(addresses, turn)
                if found is not None and found[1].answer is Answer.PRESENT and is_other(found[0], turn):
                    return found
        return None

    def alike(self, one: Try) -> Turn | None:
        """The last turn of a context that asks for the same, message by message."""
        addresses = self._texts.addresses(one.call)
        for context in self._candidates(one) if addresses else ():
            other = context.tip.first.call
            theirs = self._texts.addresses(other)
            if other.tools == one.call.tools and len(theirs) == len(addresses):
                pairs = zip(theirs, addresses, strict=True)
                if all(a == b or self._texts.of(a) == self._texts.of(b) for a, b in pairs):
                    return context.tip
        return None

    def branch_point(self, one: Try) -> Try | None:
        """The last call whose messages and answer this list begins with."""
        shared, found = self._closest(one)
        while found is not None:
            for turn in reversed(found.turns):
                if self._length(turn) <= shared:
                    return turn.kept
            origin = found.root.origin
            found = origin.turn.context if origin is not None and origin.turn is not None else None
        return None

    def closer(self, one: Try, before: Try) -> bool:
        """Whether some context has more of these messages than there were when `before` was answered."""
        return before.turn is not None and self._closest(one)[0] > self._length(before.turn)

    def _closest(self, one: Try) -> tuple[int, Context | None]:
        """The context with the longest common beginning, in blocks."""
        best: tuple[int, Context | None] = (0, None)
        if one.call.messages or one.call.messages_shared:
            for context in self._candidates(one, any_voice=True):
                shared = self._shared(one, context.tip)
                if shared > best[0]:
                    best = shared, context
        return best

    def _shared(self, one: Try, tip: Turn) -> int:
        """Leading blocks that `one` has in common with the messages and answer of `tip`."""
        theirs, addresses = self._texts.addresses(tip.first.call), self._texts.addresses(one.call)
        old = chain(self._texts.each_of(theirs), self._spoken(tip))
        return common_blocks(old, self._texts.each_of(addresses))

    def _length(self, turn: Turn) -> int:
        return len(self._texts.messages(turn.first.call)) + len(self._spoken(turn))

    def _spoken(self, turn: Turn) -> list[Block]:
        return [block for block in self._texts.answer(turn.kept.call) if block.kind is not Kind.REASONING]

    def _candidates(self, one: Try, *, any_voice: bool = False) -> Iterator[Context]:
        """Contexts that the same agent may speak in, the latest first."""
        seen = 0
        for context in sorted(self._contexts, key=_last_index, reverse=True):
            if context.turns and (any_voice or may_be_one(context.tip.voice, one.voice)):
                seen += 1
                yield context
            if seen == _RECENT:
                return

    def _against(self, addresses: list[str], turn: Turn) -> tuple[Try, Alignment] | None:
        """`addresses` as the messages of a call that goes on from one of the turn's tries."""
        before = self._texts.addresses(turn.first.call)
        if not before:
            return None
        known = _common(before, addresses)
        if len(addresses) - known < (len(before) - known) // 2:
            return None  # too short to hold what was there: no need to read it
        old, new = self._texts.all_of(before[known:]), self._texts.all_of(addresses[known:])
        cut = any(not one.complete for one in _tries_behind(turn))
        fitting = [(one, align(old, self._texts.answer(one.call), new, known, cut=cut)) for one in turn.tries]
        found = [(one, alignment) for one, alignment in fitting if alignment is not None]
        # What a cut try had begun may stand there beside the answer of its repetition.
        whole = [pair for pair in found if pair[0].complete and pair[1].answer <= Answer.PARTIAL]
        return min(reversed(whole or found), key=lambda pair: pair[1].rank, default=None)


def _goes_on_without(one: Try, before: Try, alignment: Alignment) -> bool:
    """Whether a prompt is the earlier one and more, its answer left out or put in other words."""
    return alignment.clean and alignment.answer is not Answer.NONE and before.call.tools == one.call.tools


def _last_index(context: Context) -> int:
    return context.tip.tries[-1].index if context.turns else -1


def _tries_behind(turn: Turn) -> Iterable[Try]:
    return turn.origin.turn.tries if turn.origin is not None and turn.origin.turn is not None else ()


def _common(one: list[str], other: list[str]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
