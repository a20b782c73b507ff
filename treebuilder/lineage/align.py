"""Does a later message list go on from an earlier one, and what was changed on the way? Pure.

The witness of messages where token ids do not show it: a template that strips reasoning, a harness
that clears tool results, merges its recovery into one message or puts a reminder before a summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from gyre.proxy.canonical import Block, Kind

_WORDS = 8
"""Characters of a message that can be known again inside a longer one."""
_REACH = 8
"""Blocks that may have been put in or taken out in one place."""


class Answer(IntEnum):
    """What became of the earlier call's answer in the later prompt."""

    PRESENT = 0
    PARTIAL = 1
    """Some of its blocks, as after a cut."""
    ABSENT = 2
    REWRITTEN = 3
    """Another assistant message stands in its place."""
    NONE = 4
    """The later list ends where the earlier one does."""


@dataclass(frozen=True, slots=True)
class Alignment:
    answer: Answer
    cleared: int = 0
    """Tool results that became shorter."""
    altered: int = 0
    """Tool results or texts that changed otherwise."""
    inserted: int = 0
    deleted: int = 0

    @property
    def clean(self) -> bool:
        return not (self.cleared or self.altered or self.inserted or self.deleted)

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better."""
        return (self.altered + self.inserted + self.deleted + self.cleared > 0) * 4 + self.answer, (
            self.inserted + self.deleted + self.altered
        )


def align(
    old: Sequence[Block], answer: Sequence[Block], new: Sequence[Block], known: int = 0, *, cut: bool = False
) -> Alignment | None:
    """Align the messages `old` and their `answer` with the beginning of `new`; None if they do not fit.

    Args:
        known: how many messages before these are equal without looking.
        cut: the answer before `old` ended was cut off, so its text may have been dropped.
    """
    walk = _Walk(old, new, cut)
    if not walk.run():
        return None
    came_back = _answer(answer, new[walk.j :])
    touched = walk.inserted or walk.deleted or walk.altered
    if touched and not (known > 2 or walk.assistant or came_back is Answer.PRESENT):
        return None  # Nothing that an agent said is among what is equal: that may be chance.
    return Alignment(came_back, walk.cleared, walk.altered, walk.inserted, walk.deleted)


class _Walk:
    def __init__(self, old: Sequence[Block], new: Sequence[Block], cut: bool) -> None:
        self.old, self.new, self.cut = old, new, cut
        self.i = self.j = 0
        self.cleared = self.altered = self.inserted = self.deleted = 0
        self.assistant = False

    def run(self) -> bool:
        while self.i < len(self.old):
            if not any(
                step() for step in (self._equal, self._changed, self._grown, self._inserted, self._deleted)
            ):
                return False
        return True

    def _equal(self) -> bool:
        if self.j >= len(self.new) or not same(self.old[self.i], self.new[self.j]):
            return False
        self.assistant = self.assistant or self.old[self.i].role == "assistant"
        self.i, self.j = self.i + 1, self.j + 1
        return True

    def _changed(self) -> bool:
        """A cleared result, another system prompt, or text put around what a user's message said."""
        if self.j >= len(self.new):
            return False
        one, other = self.old[self.i], self.new[self.j]
        if one.skeleton != other.skeleton or not _may_change(one, other):
            return False
        shorter = one.kind is Kind.RESULT and len(other.text) < len(one.text)
        self.cleared, self.altered = self.cleared + shorter, self.altered + (not shorter)
        self.i, self.j = self.i + 1, self.j + 1
        return True

    def _grown(self) -> bool:
        """A cut answer that was merged with what the model said when it went on."""
        if not self.cut or self.j >= len(self.new):
            return False
        one, other = self.old[self.i], self.new[self.j]
        if one.role != "assistant" or one.skeleton != other.skeleton or not _begins(one, other):
            return False
        self.assistant = True
        self.altered += 1
        self.i, self.j = self.i + 1, self.j + 1
        return True

    def _inserted(self) -> bool:
        """Blocks of the harness before the one that is expected."""
        for skip in range(1, _REACH + 1):
            at = self.j + skip
            if at >= len(self.new) or not _by_harness(self.new[at - 1]):
                return False
            if same(self.old[self.i], self.new[at]):
                self.j, self.inserted = at, self.inserted + skip
                return True
        return False

    def _deleted(self) -> bool:
        """Messages of the harness, or text of a cut answer, that are gone."""
        for skip in range(1, _REACH + 1):
            at = self.i + skip
            if at > len(self.old) or not self._may_go(self.old[at - 1]):
                return False
            if at == len(self.old) or (self.j < len(self.new) and same(self.old[at], self.new[self.j])):
                self.i, self.deleted = at, self.deleted + skip
                return True
        return False

    def _may_go(self, block: Block) -> bool:
        return block.kind is Kind.TEXT and (block.role != "assistant" or self.cut)


def same(one: Block, other: Block) -> bool:
    """Equal but for white space around an assistant's text."""
    if one == other:
        return True
    both_said = one.role == other.role == "assistant" and one.kind is other.kind is Kind.TEXT
    return both_said and one.text.strip() == other.text.strip()


def _may_change(one: Block, other: Block) -> bool:
    if one.kind is Kind.RESULT:
        return bool(one.ident)
    return one.role == "system" or (one.role == "user" and len(one.text) >= _WORDS and one.text in other.text)


def _by_harness(block: Block) -> bool:
    """What a harness puts in: reminders, and a tool call it aborted with its result."""
    return block.role != "assistant" or (block.kind is Kind.CALL and block.text.endswith("\n{}"))


def _answer(answer: Sequence[Block], rest: Sequence[Block]) -> Answer:
    if not rest:
        return Answer.NONE
    said = [block for block in answer if block.kind is not Kind.REASONING and block.text.strip()]
    if said and len(rest) >= len(said) and all(same(*pair) for pair in zip(said, rest, strict=False)):
        return Answer.PRESENT
    there = [block for block in rest[: len(said) + _REACH] if block.role == "assistant"]
    if any(same(block, other) for block in said for other in there):
        return Answer.PARTIAL
    if said and there and _begins(said[0], there[0]):
        return Answer.PARTIAL
    return Answer.REWRITTEN if rest[0].role == "assistant" else Answer.ABSENT


def _begins(block: Block, other: Block) -> bool:
    """Text that was cut, or merged with what followed."""
    if block.kind is not Kind.TEXT or other.kind is not Kind.TEXT:
        return False
    short, long = sorted((block.text.strip(), other.text.strip()), key=len)
    return bool(short) and long.startswith(short)


def common_blocks(old: Iterable[Block], new: Iterable[Block]) -> int:
    """How many leading blocks are equal; 0 when no assistant's is among them."""
    count, assistant = 0, False
    for one, other in zip(old, new, strict=False):
        if not same(one, other):
            break
        count += 1
        assistant = assistant or one.role == "assistant"
    return count if assistant else 0
