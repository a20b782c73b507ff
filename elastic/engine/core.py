"""The engine's core: `step` computes the next tokens of all running sequences in one forward pass.

Nothing here knows HTTP, text or threads. Read `step` first; all else is called between two steps.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import torch

from gyre.elastic.engine.door import require_sound
from gyre.elastic.engine.forward import Logits, Work, forward, ordered, probe_shape
from gyre.elastic.engine.limits import EngineLimits, EngineStats
from gyre.elastic.engine.memory import Memory
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.plan import plan_step
from gyre.elastic.engine.prefix import BLOCK, common
from gyre.elastic.engine.request import Finish, FinishReason, GenerationRequest, Listener, Started, Token
from gyre.elastic.engine.sampling import Draw, draw, most_probable, prompt_logprobs
from gyre.elastic.engine.sequence import Sequence
from gyre.proxy.errors import RequestError

if TYPE_CHECKING:
    from gyre.elastic.engine.weights import StagedWeights

log = logging.getLogger(__name__)
PROMPT_ROWS = 128
"""Rows of logits at a time where a prompt's log-probabilities are wanted."""


class Core:
    """One model, its weights' version, and the sequences it works on. Not thread-safe."""

    def __init__(
        self, model: LoadedModel, limits: EngineLimits, *, version: str = "0", digest: str = ""
    ) -> None:
        self.model = model
        self.limits = limits
        self.version = version
        self.digests = {version: digest}
        """Of every version that was served here."""
        self.memory = Memory(probe_shape(model.model), limits.kv_bytes)
        self.running: list[Sequence] = []
        """In order of arrival."""
        self.waiting: deque[Sequence] = deque()
        self.paused = False
        self.admits = True
        """False: what runs goes on, nothing new begins."""
        self._by_id: dict[str, Sequence] = {}
        self._counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    @property
    def digest(self) -> str:
        """Of the current weights."""
        return self.digests[self.version]

    # -- requests ----------------------------------------------------------------------------------

    def add(self, choices: Seq[tuple[GenerationRequest, Listener]]) -> None:
        """The choices of one call: they share their prompt, which is computed once.

        Raises:
            RequestError: a request is not sound, its id is taken, its `kv_id` is unknown, or the queue
                is full; then none of the choices was added.
        """
        for request, _ in choices:
            require_sound(request, self.model, self.limits, self.memory.shape)
        names = [request.request_id for request, _ in choices]
        if len(set(names)) < len(names) or not self._by_id.keys().isdisjoint(names):
            raise RequestError(f"`request_id` {', '.join(names)} is in use", 400, "duplicate_request_id")
        if len(self.waiting) >= self.limits.queue:
            raise RequestError("the engine is overloaded: its queue is full", 503, "overloaded")
        sequences = [Sequence.of(request, listener) for request, listener in choices]
        self._claim(sequences[0])
        sequences[0].siblings = sequences[1:]
        self._by_id.update(zip(names, sequences, strict=True))
        self.waiting.append(sequences[0])

    def _claim(self, sequence: Sequence) -> None:
        """Hand over the imported KV that a request names."""
        kv_id = sequence.request.kv_id
        if kv_id is None:
            return
        ids, kv = self.memory.imported.get(kv_id, ([], None))
        if kv is None or sequence.ids[: len(ids)] != ids:
            why = "is not here" if kv is None else "is of other tokens"
            raise RequestError(f"`kv_id` {kv_id} {why}", 409, "kv_unknown", "continue from the ids alone")
        del self.memory.imported[kv_id]
        kv.truncate(len(sequence.ids) - 1)
        self.memory.store.forget(kv)
        sequence.kv = kv

    def abort(self, request_ids: Iterable[str]) -> None:
        """Unknown ids are ignored: their requests have ended."""
        for sequence in [self._by_id[name] for name in request_ids if name in self._by_id]:
            self.finish(sequence, FinishReason.ABORT)

    def find(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    # -- the step ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> bool:
        """Compute the next tokens; False: there is nothing to do."""
        if self.paused:
            return False
        self._admit()
        batch = self._with_room(self._plan())
        if batch:
            self._counts["steps"] += 1
            self._compute(ordered(batch))
        return bool(batch) or bool(self.running)

    def _plan(self) -> list[Work]:
        pending = [
            sequence.pending
            if sequence.request.prompt_logprobs is None
            else min(sequence.pending, PROMPT_ROWS)
            for sequence in self.running
        ]
        answering = any(tokens == 1 for tokens in pending)
        budget = self.limits.step_tokens * (1 if answering else 2)
        counts = plan_step(pending, budget=budget)
        return [Work(*pair) for pair in zip(self.running, counts, strict=True) if pair[1]]

    def _admit(self) -> None:
        """Move waiting sequences to the running ones, as far as slots and memory reach."""
        passed: list[Sequence] = []
        while self.admits and self.waiting and self._places() > 0:
            sequence = self.waiting.popleft()
            if self._prefix_is_under_way(sequence):
                passed.append(sequence)
                continue
            if self.running and not self.memory.fits(self.memory.room_of(sequence), self.running):
                passed.append(sequence)
                break
            self._start(sequence)
        self.waiting.extendleft(reversed(passed))

    def _places(self) -> int:
        return self.limits.slots - sum(1 + len(sequence.siblings) for sequence in self.running)

    def _prefix_is_under_way(self, sequence: Sequence) -> bool:
        """Whether most of its prompt is being computed for another: then it waits and copies that."""
        if sequence.kv is not None or sequence.request.prompt_logprobs is not None:
            return False
        others = [other for other in self.running if other.pending > 1 and not other.tokens]
        shared = max((common(other.array, sequence.array) for other in others), default=0)
        if shared < 2 * BLOCK:
            return False
        found = self.memory.store.find(sequence.array)
        return found is None or found[1] + BLOCK < shared

    def _start(self, sequence: Sequence) -> None:
        try:
            self.memory.start(sequence, self.running)
        except (RuntimeError, MemoryError) as error:
            self._fail(sequence, error)
            return
        self.running.append(sequence)

    def _with_room(self, batch: list[Work]) -> list[Work]:
        """The work that has memory for its new tokens; whoever came last gives way."""
        for work in batch:
            if work.sequence in self.running:
                self._make_room(work)
        return [work for work in batch if work.sequence in self.running]

    def _make_room(self, work: Work) -> None:
        sequence, kv = work.sequence, work.sequence.kv
        assert kv is not None
        tokens = kv.length + work.count
        more = self.memory.growth(sequence, tokens)
        while more and self.memory.used(self.running) + more > self.memory.limit_bytes:
            if not self.memory.give_up() and not self._preempt(sequence):
                limit = f"{self.memory.limit_bytes >> 20} MiB of memory for keys and values are full"
                self._end_with(sequence, f"{limit} at {kv.length} tokens")
                return
        try:
            kv.reserve(tokens)
        except (RuntimeError, MemoryError) as error:
            self._fail(sequence, error)

    def _preempt(self, sequence: Sequence) -> bool:
        """Take the memory of the last running sequence other than this one; it is computed anew later."""
        other = next((one for one in reversed(self.running) if one is not sequence), None)
        if other is None:
            return False
        self._counts["preemptions"] += 1
        self.running.remove(other)
        self.memory.drop(other)
        other.array = Sequence.of(other.request, other.listener).array
        self.waiting.appendleft(other)
        return True

    def _compute(self, batch: list[Work]) -> None:
        try:
            logits = forward(self.model.model, batch)
        except (RuntimeError, MemoryError) as error:
            self._isolate(batch, error)
            return
        self._read_prompts(batch, logits)
        for work in batch:
            assert work.sequence.kv is not None
            work.sequence.kv.advance(work.count, self.version)
        self._counts["computed_tokens"] += sum(work.count for work in batch)
        self._draw([work.sequence for work in batch if work.sequence.pending == 0], logits.next_BV)

    def _isolate(self, batch: list[Work], error: Exception) -> None:
        """One sequence that cannot be computed must not end the others: each is tried alone."""
        if len(batch) == 1:
            self._fail(batch[0].sequence, error)
            return
        while self.memory.give_up():  # it may have been the machine's memory
            pass
        for work in batch:
            self._compute([work])

    def _read_prompts(self, batch: list[Work], logits: Logits) -> None:
        start = 0
        for work in batch:
            if work.prompt_rows and logits.prompt_PV is not None:
                sequence, first = work.sequence, work.sequence.computed + 1
                rows_PV = logits.prompt_PV[start : start + work.prompt_rows]
                targets = sequence.ids[first : first + work.prompt_rows]
                count = sequence.request.prompt_logprobs or 0
                sequence.prompt_logprobs += prompt_logprobs(rows_PV, targets, count)
            start += work.prompt_rows

    def _draw(self, ready: list[Sequence], logits_BV: torch.Tensor) -> None:
        if not ready:
            return
        rows = list(range(len(ready)))
        for row, sequence in enumerate(list(ready)):
            for sibling in self._fork(sequence):
                ready.append(sibling)
                rows.append(row)
        if len(rows) > len(logits_BV):
            logits_BV = logits_BV[rows]
        for row, (sequence, drawn) in enumerate(
            zip(ready, draw(logits_BV, [sequence.row() for sequence in ready]), strict=True)
        ):
            self._take(sequence, drawn, logits_BV[row])

    def _fork(self, sequence: Sequence) -> Iterator[Sequence]:
        """Give the other choices of a call copies of the prompt; those without room wait for their turn."""
        assert sequence.kv is not None
        if not sequence.tokens and sequence.kv.only(self.version):
            self.memory.store.put(sequence.ids, sequence.kv, lent=True)
        siblings, sequence.siblings = sequence.siblings, []
        for sibling in siblings:
            sibling.prompt_logprobs = list(sequence.prompt_logprobs)
            room = self.memory.room_of(sibling)
            if len(self.running) < self.limits.slots and self.memory.fits(room, self.running):
                sibling.kv = sequence.kv.copy(sequence.kv.length, room)
                sibling.cached_tokens = sequence.cached_tokens
                self.running.append(sibling)
                self.memory.shrink(self.running)
                yield sibling
            else:
                self.waiting.appendleft(sibling)

    def _take(self, sequence: Sequence, drawn: Draw, logits_V: torch.Tensor) -> None:
        """Append the token that was drawn, tell of it, and see whether it was the last."""
        if drawn.logprob != drawn.logprob:
            self._end_with(sequence, "the model's logits are not numbers (NaN)")
            return
        count = sequence.request.top_logprobs
        top = most_probable(logits_V, count) if count else ()
        token = Token(drawn.id, drawn.logprob, drawn.sampling_logprob, self.version, top)
        sequence.ids.append(drawn.id)
        sequence.tokens.append(token)
        self._counts["generated_tokens"] += 1
        stopped = self._tell(sequence, token)
        if stopped or drawn.id in sequence.request.stop_ids:
            stop_id = drawn.id if drawn.id in sequence.request.stop_ids else None
            self.finish(sequence, FinishReason.STOP, stop_id=stop_id)
        elif sequence.output_length >= sequence.request.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def _tell(self, sequence: Sequence, token: Token) -> bool:
        # A listener is the server's code: whatever goes wrong in it must not end the engine's thread.
        try:
            if not sequence.told:
                sequence.told = True
                self._counts["prompt_tokens"] += sequence.prompt_length
                self._counts["cached_tokens"] += sequence.cached_tokens
                sequence.listener.started(self._started(sequence))
            return sequence.listener.token(token)
        except Exception:
            log.exception("request %s: its listener failed", sequence.request.request_id)
            return True

    def _started(self, sequence: Sequence) -> Started:
        wanted = sequence.request.prompt_logprobs is not None
        return Started(
            cached_tokens=sequence.cached_tokens,
            version=self.version,
            digest=self.digest,
            prompt_logprobs=tuple(sequence.prompt_logprobs) if wanted else None,
        )

    # -- ends --------------------------------------------------------------------------------------

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """The machine or the model refused: usually out of memory."""
        log.warning("request %s failed: %s", sequence.request.request_id, error)
        while self.memory.give_up():
            pass
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self._end_with(sequence, f"the engine could not compute it: {lines[0]}")

    def _end_with(self, sequence: Sequence, error: str) -> None:
        self._counts["failures"] += 1
        for sibling in [*sequence.siblings, sequence]:
            self.finish(sibling, FinishReason.ERROR, error=error)

    def fail_all(self, error: str) -> None:
        for sequence in list(self._by_id.values()):
            self.finish(sequence, FinishReason.ERROR, error=error)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_id: int | None = None,
        error: str | None = None,
    ) -> None:
        """Take a sequence out and tell its listener."""
        self._remove(sequence)
        spans = sequence.kv.spans() if sequence.kv else ()
        if reason in (FinishReason.ERROR, FinishReason.MOVED):
            self.memory.drop(sequence)
        else:
            self.memory.keep(sequence, self.version)
        finish = Finish(
            reason=reason,
            stop_id=stop_id,
            error=error,
            kv_spans=spans,
            cached_tokens=sequence.cached_tokens,
        )
        try:
            sequence.listener.finished(finish)
        except Exception:  # as in `_tell`
            log.exception("request %s: its listener failed", sequence.request.request_id)

    def _remove(self, sequence: Sequence) -> None:
        """Take a sequence out; of a call's choices that still wait for their prompt the next one leads."""
        del self._by_id[sequence.request.request_id]
        heirs, sequence.siblings = sequence.siblings, []
        for queue in (self.running, self.waiting):
            if sequence in queue:
                place = queue.index(sequence)
                queue.remove(sequence)
                if heirs:
                    heirs[0].siblings = heirs[1:]
                    self.waiting.appendleft(heirs[0]) if queue is self.running else queue.insert(
                        place, heirs[0]
                    )
                return
        for leader in (*self.running, *self.waiting):
            if sequence in leader.siblings:
                leader.siblings.remove(sequence)

    # -- control -----------------------------------------------------------------------------------

    def pause(self, mode: str) -> None:
        """`keep`: all stands still. `abort`: all ends. `wait`: nothing new begins."""
        self.admits = False
        if mode == "abort":
            self.abort(list(self._by_id))
        if mode != "wait":
            self.paused = True

    def resume(self) -> None:
        self.paused, self.admits = False, True

    @property
    def still(self) -> bool:
        """Whether a pause is complete."""
        return self.paused or (not self.admits and not self.running)

    @torch.inference_mode()
    def publish(self, staged: StagedWeights, *, version: str, in_flight: str = "keep") -> None:
        """New weights, between two steps; `in_flight` says what becomes of the running sequences' KV.

        `keep`: they go on with it. `recompute`: it is computed anew. `abort`: they end.
        """
        if in_flight == "abort":
            self.abort([one.request.request_id for one in self.running])
        staged.copy_into(self.model)
        self.memory.clear()
        if in_flight == "recompute":
            for sequence in self._by_id.values():
                if sequence.kv is not None:
                    sequence.kv.truncate(0)
        self.version = version
        self.digests[version] = staged.digest
        self._counts["publications"] += 1

    def rename(self, version: str) -> None:
        """The weights as they are get another version's name; kept KV stays, running ones tell both."""
        self.digests[version] = self.digest
        self.version = version
        self.memory.clear()

    def forget(self) -> None:
        """Drop everything kept between calls."""
        self.memory.clear()

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_bytes=self.memory.used(self.running),
            kv_limit_bytes=self.memory.limit_bytes,
            kept=len(self.memory.store),
            **self._counts,
        )


_COUNTERS = (
    "steps",
    "computed_tokens",
    "prompt_tokens",
    "cached_tokens",
    "generated_tokens",
    "preemptions",
    "failures",
    "publications",
)
