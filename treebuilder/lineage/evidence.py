"""Where a new context came from, by what it quotes: a summary, a delegated prompt, kept tool calls. Pure.

Searches go from the newest call back and stop at the first that fits, so the usual new context costs a
few string searches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gyre.proxy.canonical import Block, Kind, arguments_of
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try, Turn, Voice
from gyre.treebuilder.trees import Cause

SHORTEST_SUMMARY = 40
"""Characters; shorter texts are found in messages by chance."""
_SHORTEST_PROMPT = 8
_SHORTEST_PART = 20
_COVERAGE = 0.25
"""Of the text it stands in, for an argument that is not all of it."""
_EARLY, _LAST = 40, 8
_HITS = 4
_PLAIN = 400
"""Characters of a quotation that need no other reading."""
_TAG = re.compile(r"</?[A-Za-z_][\w-]*>")
_SUMMARY = re.compile(r"<summary>(.*?)(?:</summary>|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Hit:
    origin: Try
    length: int
    """Characters that were found again."""
    place: int
    """Which text block they stand in."""
    whole: bool = False
    """They are all of that block."""
    text: str = ""


class Quotes:
    def __init__(self, tries: list[Try], texts: Texts) -> None:
        self._tries, self._texts = tries, texts
        self._pieces: dict[int, list[str]] = {}
        self._arguments: dict[int, list[str]] = {}
        self._parts: list[tuple[Try, list[str]]] | None = None
        self._givers: defaultdict[str, list[Try]] | None = None
        self._calls: dict[tuple[str, str], Try] | None = None

    def summaries(self, context: Context) -> list[Hit]:
        """Answers that nothing else went on from and whose text `context` begins with, the newest first."""
        return self._quoted_in(context, ended=True)

    def handed_over(self, context: Context) -> list[Hit]:
        """The same of any answer: a program may have given it to another agent."""
        return self._quoted_in(context, ended=False)

    def _quoted_in(self, context: Context, *, ended: bool) -> list[Hit]:
        texts = [block.text for block in self._early(context)]
        hits: list[Hit] = []
        for one in self._before(context) if texts else ():
            if ended and not _is_end(one, context):
                continue
            hit = _found(one, self._pieces_of(one), texts)
            if hit is not None:
                hits.append(hit)
                if len(hits) == _HITS or hit.length >= _PLAIN:
                    break
        return hits

    def _pieces_of(self, one: Try) -> list[str]:
        known = self._pieces.get(one.index)
        if known is None:
            known = self._pieces[one.index] = _pieces(self._texts.said(one.call))
        return known

    def delegations(self, context: Context, voice: Voice | None = None) -> list[Hit]:
        """Calls with an argument that is the prompt of `context`: of the best kind only, the newest first.

        Args:
            voice: only calls of that agent.
        """
        prompts = [b.text.strip() for b in self._own_texts(context) if b.role == "user"]
        prompts = prompts[:3] + prompts[3:][-3:]
        hits = [
            Hit(one, len(prompt), place, True, prompt)
            for place, prompt in enumerate(prompts)
            for one in reversed(self._giving(prompt, context))
            if voice in (None, one.voice)
        ]
        for one, arguments in self._delegating(context) if not hits else ():
            if voice in (None, one.voice):
                hits += _arguments_in(one, arguments, prompts)
        # What was asked last is the prompt; what stands before may be history that was copied.
        best = max((_weight(hit, prompts) for hit in hits), default=None)
        return [hit for hit in hits if _weight(hit, prompts) == best]

    def times(self, hit: Hit) -> int:
        """How often the call gives that argument."""
        return self._strings(hit.origin).count(hit.text)

    def kept(self, context: Context) -> Try | None:
        """The latest earlier call that made a tool call which `context` begins with."""
        known = self._tool_calls()
        found = [
            known[block.ident, block.text]
            for block in self._messages(context)
            if block.kind is Kind.CALL and (block.ident, block.text) in known
        ]
        found = [one for one in found if one.index < context.root.first.index]
        return max(found, key=lambda one: one.index, default=None)

    def reported(self, context: Context, to: Context) -> bool:
        """Whether the last answer of `context` stands in a later message of `to`."""
        said = self._texts.said(context.tip.kept.call).strip()
        if len(said) < _SHORTEST_PROMPT:
            return False
        later = [turn for turn in to.turns if turn.first.index > context.tip.first.index]
        return any(
            said in b.text for turn in later[:3] for b in self._texts.messages(turn.first.call)[-_LAST:]
        )

    def rendered(self, summary: Try, contexts: list[Context]) -> Context | None:
        """The context that a summary request renders as text: its latest message stands last in it.

        Without one, the context whose first prompt stands earliest.
        """
        text = self._asked(summary)
        ends = [(text.rfind(self._latest(c, summary)), c.tip.first.index, c) for c in contexts]
        last = max((end for end in ends if end[0] >= 0 and self._latest(end[2], summary)), default=None)
        if last is not None:
            return last[2]
        places = [(self._place(context, text), context) for context in contexts]
        found = [(place, -c.tip.first.index, c) for place, c in places if place is not None]
        return min(found)[2] if found else None

    def answered(self, turn: Turn, summary: Try) -> Try | None:
        """Of several tries the one whose answer stands in the history that a summary request renders."""
        text = self._asked(summary)
        found = [(self._quoted(one, text), one) for one in turn.tries if one.complete]
        best = max((length for length, _ in found), default=0)
        same = [one for length, one in found if length == best]
        return same[0] if best >= _SHORTEST_PROMPT and len(same) == 1 else None

    def _quoted(self, one: Try, text: str) -> int:
        """Characters of an answer that stand in `text`."""
        said = [self._texts.said(one.call).strip(), *self._strings(one)]
        return sum(len(part) for part in said if part in text)

    def _asked(self, one: Try) -> str:
        return "\n".join(b.text for b in self._texts.messages(one.call) if b.role == "user")

    def _place(self, context: Context, text: str) -> int | None:
        """Where the first prompt of `context` stands in `text`."""
        prompts = [b.text.strip() for b in self._own_texts(context) if b.role == "user"]
        places = [text.find(prompt) for prompt in prompts if prompt]
        return min((place for place in places if place >= 0), default=None)

    def _latest(self, context: Context, summary: Try) -> str:
        """The last message that the agent had before it asked for a summary."""
        before = told_before(context, summary)
        blocks = self._texts.messages(before[-1].first.call) if before else []
        texts = (block.text.strip() for block in reversed(blocks) if block.kind is not Kind.CALL)
        return next((text for text in texts if len(text) >= _SHORTEST_PROMPT), "")

    def _messages(self, context: Context) -> list[Block]:
        return self._texts.messages(context.root.first.call)

    def _early(self, context: Context) -> list[Block]:
        blocks = [b for b in self._own_texts(context) if len(b.text) >= SHORTEST_SUMMARY]
        return blocks[:_EARLY] + blocks[_EARLY:][-_LAST:]

    def _own_texts(self, context: Context) -> list[Block]:
        """Text of the root's messages that it does not have from the call it branches off."""
        blocks = self._messages(context)
        if context.root.origin is not None:
            before = self._texts.messages(context.root.origin.call)
            blocks = blocks[len(before) :] if blocks[: len(before)] == before else blocks
        return [b for b in blocks if b.kind is Kind.TEXT and b.role not in ("system", "developer")]

    def _before(self, context: Context) -> Iterator[Try]:
        for one in reversed(self._tries[: context.root.first.index]):
            if one.turn is not None and one.turn.context is not context and one.call.response:
                yield one

    def _giving(self, argument: str, context: Context) -> list[Try]:
        """Calls with that very argument, other than those of `context` and later ones."""
        if self._givers is None:
            self._givers = defaultdict(list)
            for one in self._tries:
                for text in dict.fromkeys(self._strings(one)):
                    self._givers[text].append(one)
        return [one for one in self._givers.get(argument, ()) if _may_have_started(one, context)]

    def _delegating(self, context: Context) -> Iterator[tuple[Try, list[str]]]:
        """Calls with arguments that could be a part of a prompt, the newest first."""
        if self._parts is None:
            parts = (
                (one, [t for t in self._strings(one) if len(t) >= _SHORTEST_PART]) for one in self._tries
            )
            self._parts = [(one, strings) for one, strings in parts if strings]
        for one, strings in reversed(self._parts):
            if _may_have_started(one, context):
                yield one, strings

    def _strings(self, one: Try) -> list[str]:
        """Arguments of its tool calls that could be a prompt."""
        known = self._arguments.get(one.index)
        if known is None:
            calls = [block for block in self._texts.answer(one.call) if block.kind is Kind.CALL]
            found = [text.strip() for block in calls for text in arguments_of(block)]
            known = [text for text in found if len(text) >= _SHORTEST_PROMPT]
            self._arguments[one.index] = known
        return known

    def _tool_calls(self) -> dict[tuple[str, str], Try]:
        if self._calls is None:
            self._calls = {}
            for one in self._tries:
                for block in self._texts.answer(one.call):
                    if block.kind is Kind.CALL and block.ident:
                        self._calls.setdefault((block.ident, block.text), one)
        return self._calls


def _is_end(one: Try, context: Context) -> bool:
    """Whether nothing goes on from an answer but `context`."""
    return one.turn is not None and all(other.context is context for other in one.turn.next)


def _may_have_started(one: Try, context: Context) -> bool:
    return one.turn is not None and one.turn.context is not context and one.index < context.root.first.index


def _arguments_in(one: Try, arguments: list[str], prompts: list[str]) -> list[Hit]:
    hits = []
    for argument in arguments:
        for place, prompt in enumerate(prompts):
            if argument == prompt or _is_part(argument, prompt):
                hits.append(Hit(one, len(argument), place, argument == prompt, argument))
    return hits


def _weight(hit: Hit, prompts: list[str]) -> tuple[bool, bool, int]:
    return hit.whole, hit.place == len(prompts) - 1, 0 if hit.whole else hit.length


def told_before(context: Context, summary: Try) -> list[Turn]:
    """The turns that a summary request may render: not a further request without tools at their end."""
    turns = [turn for turn in context.turns if turn.first.index < summary.index]
    while len(turns) > 1 and turns[0].first.call.tools and not turns[-1].first.call.tools:
        turns.pop()
    return turns


def better(summary: Hit | None, delegation: Hit | None) -> Cause | None:
    """Which reading of a new context has more of its text behind it."""
    if summary is None or delegation is None:
        return Cause.COMPACTION if summary else Cause.DELEGATION if delegation else None
    return Cause.DELEGATION if delegation.length >= summary.length else Cause.COMPACTION


def _pieces(said: str) -> list[str]:
    """The text, and what is left of it when a harness takes wrapper tags off; longest first."""
    inner = _SUMMARY.search(said)
    pieces = {said.strip(), _TAG.sub("", said).strip(), inner[1].strip() if inner else ""}
    return sorted((p for p in pieces if len(p) >= SHORTEST_SUMMARY), key=len, reverse=True)


def _found(one: Try, pieces: list[str], texts: list[str]) -> Hit | None:
    for piece in pieces:
        for place, text in enumerate(texts):
            if len(piece) <= len(text) and piece in text:
                return Hit(one, len(piece), place)
    return None


def _is_part(argument: str, prompt: str) -> bool:
    if not _SHORTEST_PART <= len(argument) <= len(prompt):
        return False
    return argument in prompt if len(argument) >= _COVERAGE * len(prompt) else prompt.endswith(argument)
