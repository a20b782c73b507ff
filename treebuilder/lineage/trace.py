"""Sorts the tries of an execution into turns and contexts, in commit order. Pure.

Token ids come first: a prompt that begins with an earlier prompt and its whole output goes on from it.
Only where ids leave it open are messages read. What begins a new context is not decided here, because
the evidence may come later: see `resolve`.
"""

from __future__ import annotations

from gyre.treebuilder.lineage.align import Alignment, Answer
from gyre.treebuilder.lineage.breaks import break_of
from gyre.treebuilder.lineage.histories import Histories
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Context, Try, Turn, is_other, may_be_one
from gyre.treebuilder.tokens.prefix import PrefixTree, Run
from gyre.treebuilder.trees import Cause, Confidence, Evidence


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
        self._histories = Histories(self.contexts, texts)
        self._outputs: dict[int, list[Try]] = {}
        """Tries by the run in which their output ends."""
        self._prompts: dict[tuple[int, int], list[Turn]] = {}
        self._bodies: dict[bytes, list[Turn]] = {}
        self._calls: dict[str, Turn] = {}
        self._spans = _spans(tries)
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
                if may_be_one(known.voice, one.voice) and not self._beside(known, one):
                    return known
        turn = self._same_body(one)
        if turn is None and self._bare:
            turn = self._histories.alike(one)
            turn = None if turn is None or self._beside(turn, one) else turn
        return None if turn is None or (one.prompt_end and turn.prompt_end) else turn

    def _same_body(self, one: Try) -> Turn | None:
        for turn in reversed(
            self._bodies.get(one.call.request_digest, []) if one.call.request_digest else []
        ):
            if may_be_one(turn.voice, one.voice) and not self._beside(turn, one):
                return turn
        return None

    def _beside(self, turn: Turn, one: Try) -> bool:
        """Whether `one` ran while every call of the turn did: it does not repeat what had not failed yet.

        A client that leaves may ask again before the proxy has noticed.
        """
        started, ended = self._spans[one.call.key.call_id]
        for other in turn.tries:
            since, until = self._spans[other.call.key.call_id]
            if other.call.outcome == "client_gone" or other.call.key.call_id == one.call.key.call_id:
                return False
            if started >= until or since >= ended:
                return False
        return True

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
        if before is not None and may_be_one(before.voice, one.voice) and _is_free(before):
            return self._continue(one, before)
        found = self._histories.aligned(one)
        if found is not None and found[1].answer is Answer.REWRITTEN and _elsewhere(before, found[0]):
            found = None  # Ids show another history than words that happen to be alike.
        if found is not None and (found[1].clean or not self._histories.closer(one, found[0])):
            return self._go_on(one, *found)
        branch = self._histories.branch_point(one)
        return self._begin(one, max((t for t in (before, branch) if t), key=lambda t: t.index, default=None))

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
        length = before.output_end.depth if before.output_end is not None else 0
        turn.evidence.append(_begins_with_all(length, before))
        return self._append(turn, before)

    def _part_twins(self, before: Try) -> None:
        """Two answers to one prompt that are both gone on from: no retry, but two agents that began alike."""
        turn = before.turn
        assert turn is not None
        if not is_other(before, turn):
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


def _begins_with_all(length: int, before: Try) -> Evidence:
    unit, witness = ("blocks", "messages") if before.call.suffix is None else ("ids", "ids")
    return Evidence(witness, f"begins with all {length} {unit} of `{before.call.key.call_id}`")


def _counts(one: Try) -> bool:
    """A few ids of a cut answer begin many prompts: of a turn with a complete try only that counts."""
    return one.complete or one.turn is None or not any(other.complete for other in one.turn.tries)


def _elsewhere(before: Try | None, other: Try) -> bool:
    """Whether the call that ids show stands in another context."""
    if before is None or before.turn is None or other.turn is None:
        return False
    return before.turn.context is not other.turn.context


def _is_free(one: Try) -> bool:
    """Whether nothing with a good claim goes on from it yet."""
    if one.turn is None:
        return False
    return all(other.weak or other.origin is not one for other in _heirs(one.turn))


def _heirs(turn: Turn) -> list[Turn]:
    """Turns of the same context that go on from this one."""
    return [other for other in turn.next if other.context is turn.context]


def _spans(tries: list[Try]) -> dict[str, tuple[int, int]]:
    """From when to when each call ran, all its attempts together, in nanoseconds."""
    spans: dict[str, tuple[int, int]] = {}
    for one in tries:
        call = one.call
        started, ended = spans.get(call.key.call_id, (call.started_ns, call.ended_ns))
        spans[call.key.call_id] = min(started, call.started_ns), max(ended, call.ended_ns)
    return spans
