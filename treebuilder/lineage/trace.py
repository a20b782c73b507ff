"""Sorts the tries of an execution into turns and contexts, in commit order. Pure.

Token ids come first: a prompt that begins with an earlier prompt and its whole output goes on from it.
Only where ids leave it open are messages read. What begins a new context is not decided here, because
the evidence may come later: see `resolve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from gyre.proxy.canonical import Block, Kind
from gyre.treebuilder.lineage.align import Alignment, Answer, align, common_blocks
from gyre.treebuilder.lineage.breaks import break_of
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try, Turn, Voice
from gyre.treebuilder.prefix import PrefixTree, Run
from gyre.treebuilder.trees import Cause, Confidence, Evidence

_RECENT = 16
"""Contexts of other beginnings that a prompt is held against, the latest first."""


def trace(tries: list[Try], tree: PrefixTree, texts: Texts) -> list[Context]:
    """Contexts in the order in which they began; every try that is no repeated delivery is in a turn."""
    tracer = _Tracer(tries, tree, texts)
    for one in tries:
        if one.call.delivery_of is None:
            tracer.place(one)
    contexts = [context for context in tracer.contexts if context.turns]
    contexts.sort(key=lambda context: context.root.first.index)
    for number, context in enumerate(contexts):
        context.number = number
    return contexts


def split(turn: Turn, contexts: list[Context]) -> Context:
    """Move a turn and those after it out of their context into one of their own, not yet resolved."""
    old, at = turn.context, turn.context.turns.index(turn)
    new = Context(len(contexts), old.turns[at:])
    del old.turns[at:]
    for moved in new.turns:
        moved.context = new
    contexts.append(new)
    return new


class _Tracer:
    def __init__(self, tries: list[Try], tree: PrefixTree, texts: Texts) -> None:
        self._tries, self._tree, self._texts = tries, tree, texts
        self.contexts: list[Context] = []
        self._outputs: dict[int, list[Try]] = {}
        """Tries by the run in which their output ends."""
        self._prompts: dict[tuple[int, int], list[Turn]] = {}
        self._bodies: dict[bytes, list[Turn]] = {}
        self._calls: dict[str, Turn] = {}
        self._bare = any(one.prompt_end is None for one in tries)
        """Some calls have no ids: what they asked for is known by their messages alone."""

    def place(self, one: Try) -> None:
        turn = self._same_request(one)
        if turn is None:
            turn = self._new_turn(one)
        elif one.prompt_end is not None and turn.prompt_end is None:
            turn = self._placed_by_ids(one, turn)
        else:
            turn.tries.append(one)
        one.turn = turn
        self._remember(one, turn)

    def _remember(self, one: Try, turn: Turn) -> None:
        if one.prompt_end is not None:
            turns = self._prompts.setdefault((id(one.prompt_end.run), one.prompt_end.depth), [])
            if turn not in turns:
                turns.append(turn)
        if one.output_end is not None and one.has_output:
            self._outputs.setdefault(id(one.output_end.run), []).append(one)
        if one.call.request_digest:
            self._bodies.setdefault(one.call.request_digest, []).append(turn)
        self._calls[one.call.key.call_id] = turn

    def _same_request(self, one: Try) -> Turn | None:
        """The turn that `one` is a further try of."""
        turn = self._calls.get(one.call.key.call_id)
        if turn is not None and (one.prompt_end is None or turn.prompt_end in (None, one.prompt_end)):
            return turn
        if one.prompt_end is not None:
            for known in reversed(self._prompts.get((id(one.prompt_end.run), one.prompt_end.depth), [])):
                if _may_be_one(known.first.voice, one.voice) and not _beside(known, one):
                    return known
        turn = self._same_body(one)
        if turn is None and self._bare:
            turn = self._alike(one)
        return None if turn is None or (one.prompt_end and turn.prompt_end) else turn

    def _same_body(self, one: Try) -> Turn | None:
        turns = self._bodies.get(one.call.request_digest, []) if one.call.request_digest else []
        fitting = (
            t for t in reversed(turns) if _may_be_one(t.first.voice, one.voice) and not _beside(t, one)
        )
        return next(fitting, None)

    def _alike(self, one: Try) -> Turn | None:
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

    def _placed_by_ids(self, one: Try, turn: Turn) -> Turn:
        """A try with ids joins those that failed before there were any: ids decide where the turn belongs."""
        if turn.next or turn is not turn.context.tip:
            turn.tries.append(one)
            return turn
        self._take_out(turn)
        new = self._new_turn(one)
        new.tries[:0] = turn.tries
        for other in turn.tries:
            other.turn = new
            self._remember(other, new)
        return new

    def _take_out(self, turn: Turn) -> None:
        turn.context.turns.remove(turn)
        if turn.origin is not None and turn.origin.turn is not None:
            turn.origin.turn.next.remove(turn)
            if not turn.origin.turn.next:
                turn.origin.turn.answered = None

    def _new_turn(self, one: Try) -> Turn:
        before = self._predecessor(one)
        if before is not None and _may_be_one(before.voice, one.voice) and _is_free(before):
            return self._continue(one, before)
        found = self._aligned(one)
        if found is not None and found[1].clean:
            return self._go_on(one, *found)
        shared, branch = self._branch_point(one)
        if found is not None and (branch is None or branch.turn is None or self._fits(found[0], shared)):
            return self._go_on(one, *found)
        return self._begin(
            one, before if branch is None or (before and before.index > branch.index) else branch
        )

    def _predecessor(self, one: Try) -> Try | None:
        """The try whose prompt and whole output this prompt begins with; the longest such."""
        run: Run | None = one.prompt_end.run if one.prompt_end is not None else None
        while run is not None:
            ended = [other for other in self._outputs.get(id(run), ()) if _counts(other)]
            if ended:
                return next((o for o in reversed(ended) if o.voice == one.voice), ended[-1])
            run = run.parent
        return None

    def _continue(self, one: Try, before: Try) -> Turn:
        """`one` goes on from `before` id by id."""
        self._part_twins(before)
        assert before.turn is not None
        for rival in [other for other in _heirs(before.turn) if other.weak]:
            split(rival, self.contexts)
        turn = Turn([one], before.turn.context, Cause.CONTINUATION, Confidence.PROVEN, whole=True)
        ids = before.output_end.depth if before.output_end is not None else 0
        turn.evidence.append(Evidence("ids", f"begins with all {ids} ids of `{before.call.key.call_id}`"))
        return self._append(turn, before)

    def _part_twins(self, before: Try) -> None:
        """Two answers to one prompt that are both gone on from: no retry, but two agents that began alike."""
        turn = before.turn
        assert turn is not None
        if not _is_other(before, turn):
            return
        turn.tries.remove(before)
        context = Context(len(self.contexts))
        self.contexts.append(context)
        before.turn = Turn([before], context, origin=turn.origin)
        context.turns.append(before.turn)
        if turn.origin is not None and turn.origin.turn is not None:
            turn.origin.turn.next.append(before.turn)

    def _append(self, turn: Turn, before: Try) -> Turn:
        assert before.turn is not None
        turn.origin = before
        if turn.step != "response_absent":
            before.turn.answered = before
        before.turn.next.append(turn)
        turn.context.turns.append(turn)
        return turn

    def _go_on(self, one: Try, before: Try, alignment: Alignment) -> Turn:
        """`one` goes on from `before` by messages: the ids say what kind of break there is."""
        self._part_twins(before)
        assert before.turn is not None
        found = break_of(one, before, alignment, self._tree, self._texts, self._tries)
        turn = Turn([one], before.turn.context, found.cause, evidence=[found.evidence])
        turn.break_offset, turn.whole = found.offset, alignment.answer is Answer.PRESENT
        if found.cause is not Cause.EDIT and alignment.answer is Answer.ABSENT:
            turn.step = "response_absent"
        for rival in [other for other in _heirs(before.turn) if other.weak]:
            split(rival, self.contexts)
        if found.cause is Cause.EDIT:
            turn.context = Context(len(self.contexts), resolved=True)
            self.contexts.append(turn.context)
        return self._append(turn, before)

    def _begin(self, one: Try, before: Try | None) -> Turn:
        """A context of its own, whatever that will turn out to be."""
        context = Context(len(self.contexts))
        self.contexts.append(context)
        turn = Turn([one], context, origin=before)
        context.turns.append(turn)
        if before is not None and before.turn is not None:
            before.turn.next.append(turn)
        return turn

    def _aligned(self, one: Try) -> tuple[Try, Alignment] | None:
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
                if found is not None and found[1].answer is Answer.PRESENT and _is_other(found[0], turn):
                    return found
        return None

    def _fits(self, before: Try, shared: int) -> bool:
        """Whether what `before` had is no less than what another context shares."""
        return before.turn is not None and self._length(before.turn) >= shared

    def _branch_point(self, one: Try) -> tuple[int, Try | None]:
        """The last call whose messages and answer this list begins with, and how many blocks it shares."""
        best: tuple[int, Context | None] = (0, None)
        if one.call.messages or one.call.messages_shared:
            for context in self._candidates(one, any_voice=True):
                shared = self._shared(one, context.tip)
                if shared > best[0]:
                    best = shared, context
        shared, found = best
        while found is not None:
            for turn in reversed(found.turns):
                if self._length(turn) <= shared:
                    return shared, turn.kept
            origin = found.root.origin
            found = origin.turn.context if origin is not None and origin.turn is not None else None
        return shared, None

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
        for context in sorted(self.contexts, key=_last_index, reverse=True):
            if context.turns and (any_voice or _may_be_one(context.tip.first.voice, one.voice)):
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


def _counts(one: Try) -> bool:
    """A few ids of a cut answer begin many prompts: of a turn with a complete try only that counts."""
    return one.complete or one.turn is None or not any(other.complete for other in one.turn.tries)


def _is_other(one: Try, turn: Turn) -> bool:
    """Whether another call than `one` is known to have given the answer that counts."""
    return turn.answered is not None and one.call.key[:2] != turn.answered.call.key[:2]


def _is_free(one: Try) -> bool:
    """Whether nothing with a good claim goes on from it yet."""
    if one.turn is None:
        return False
    return all(other.weak or other.origin is not one for other in _heirs(one.turn))


def _heirs(turn: Turn) -> list[Turn]:
    """Turns of the same context that go on from this one."""
    return [other for other in turn.next if other.context is turn.context]


def _goes_on_without(one: Try, before: Try, alignment: Alignment) -> bool:
    """Whether a prompt is the earlier one and more, its answer left out or put in other words."""
    return alignment.clean and alignment.answer is not Answer.NONE and before.call.tools == one.call.tools


def _beside(turn: Turn, one: Try) -> bool:
    """Whether `one` ran while every try of the turn did: it does not repeat what had not failed yet.

    A client that leaves may ask again before the proxy has noticed.
    """
    return all(
        other.call.outcome != "client_gone"
        and one.call.started_ns < other.call.ended_ns
        and other.call.started_ns < one.call.ended_ns
        and other.call.key.call_id != one.call.key.call_id
        for other in turn.tries
    )


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


def _may_be_one(one: Voice, other: Voice) -> bool:
    """Whether two calls may come from one agent; without labels they may."""
    return one == other or one == (None, None) or other == (None, None)
