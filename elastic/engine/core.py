"""The engine's core: `step` computes the next tokens of all running sequences in one forward pass.

Nothing here knows HTTP, text or threads. Read `step` first; all else is called between two steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from gyre.elastic.engine.compute.forward import Logits, Work, forward, ordered, probe_shape
from gyre.elastic.engine.compute.sampling import Draw, draw, most_probable, prompt_logprobs
from gyre.elastic.engine.compute.sequence import Sequence, beginning
from gyre.elastic.engine.compute.singles import Gatherer
from gyre.elastic.engine.limits import Counters, EngineLimits, EngineStats
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import Finish, FinishReason, GenerationRequest, Listener, Token
from gyre.elastic.engine.schedule.door import require_place, require_sound
from gyre.elastic.engine.schedule.memory import Memory
from gyre.elastic.engine.schedule.plan import plan_step
from gyre.elastic.engine.schedule.prefix import BLOCK, common
from gyre.elastic.engine.schedule.roster import Roster
from gyre.elastic.engine.schedule.telling import tell_finished, tell_started, tell_token
from gyre.proxy.errors import RequestError

if TYPE_CHECKING:
    from gyre.elastic.engine.weights.staged import StagedWeights

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
        self.roster = Roster()
        self.paused = False
        self.admits = True
        """False: what runs goes on, nothing new begins."""
        self._counts = Counters()
        self._gatherer = Gatherer()

    @property
    def digest(self) -> str:
        """Of the current weights."""
        return self.digests[self.version]

    @property
    def running(self) -> list[Sequence]:
        return self.roster.running

    # -- requests ----------------------------------------------------------------------------------

    def add(self, choices: Seq[tuple[GenerationRequest, Listener]]) -> None:
        """The choices of one call: they share their prompt, which is computed once.

        Raises:
            RequestError: a request is not sound, its id is taken, its `kv_id` is unknown, or the queue
                is full; then none of the choices was added.
        """
        requests = [request for request, _ in choices]
        require_sound(requests, self.model, self.limits, self.memory.shape)
        self.roster.require_new([request.request_id for request in requests])
        require_place(len(choices), len(self.roster), self.limits)
        ids = beginning(requests[0])
        sequences = [Sequence(request, listener, ids.tolist(), ids) for request, listener in choices]
        self.memory.require_imported(sequences[0])
        self.roster.add(sequences)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Unknown ids are ignored: their requests have ended."""
        found = [self.roster.find(name) for name in request_ids]
        for sequence in found:
            if sequence is not None:
                self.finish(sequence, FinishReason.ABORT)

    def finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        *,
        stop_id: int | None = None,
        error: str | None = None,
    ) -> None:
        """Take a sequence out and tell its listener."""
        self.roster.remove(sequence)
        spans = sequence.kv.spans() if sequence.kv else ()
        if reason in (FinishReason.ERROR, FinishReason.MOVED):
            self.memory.drop(sequence)
        else:
            self.memory.keep(sequence, self.version)
        cached = sequence.cached_tokens
        tell_finished(
            sequence,
            Finish(reason=reason, stop_id=stop_id, error=error, kv_spans=spans, cached_tokens=cached),
        )

    # -- the step ----------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> bool:
        """Compute the next tokens; False: there is nothing to do."""
        if self.paused:
            return False
        self._admit()
        batch = self._with_room(self._plan())
        if batch:
            self._counts.steps += 1
            self._compute(ordered(batch))
        return bool(batch or self.running or (self.roster.waiting and self.admits))

    def _admit(self) -> None:
        """Start waiting sequences, as far as slots and memory reach."""
        waiting, passed = self.roster.waiting, list[Sequence]()
        # Those far behind are not looked at: each look costs, and they would not start before the others.
        while self.admits and waiting and self._places() > 0 and len(passed) <= self.limits.slots:
            sequence = waiting.popleft()
            if self._prefix_is_under_way(sequence):
                passed.append(sequence)
            elif self.running and not self.memory.fits(self.memory.room_of(sequence), self.running):
                passed.append(sequence)
                break
            else:
                self._start(sequence)
        self.roster.put_back(passed)

    def _places(self) -> int:
        return self.limits.slots - sum(1 + len(sequence.siblings) for sequence in self.running)

    def _prefix_is_under_way(self, sequence: Sequence) -> bool:
        """Whether its first tokens are being computed for another: it waits for these, and copies them."""
        if sequence.kv is not None or sequence.request.prompt_logprobs is not None:
            return False
        shared, other = max(
            ((common(one.array, sequence.array), one) for one in self.running if self._is_worth_a_wait(one)),
            default=(0, None),
            key=lambda pair: pair[0],
        )
        if other is None or other.kv is None or shared < 2 * BLOCK:
            return False
        found = self.memory.store.find(sequence.array)
        if found is not None and found[1] + BLOCK >= shared:
            return False
        if other.computed < shared:
            return True
        self.memory.store.put(other.ids, other.kv, lent=True)
        return False

    def _is_worth_a_wait(self, other: Sequence) -> bool:
        """Whether it is in its prompt, and with the current weights only: others may copy that."""
        whole = other.kv is not None and other.kv.only(self.version)
        return whole and other.pending > 1 and not other.tokens

    def _start(self, sequence: Sequence) -> None:
        self.roster.start(sequence)
        try:
            self.memory.start(sequence)
        except (RuntimeError, MemoryError) as error:
            self._fail(sequence, error)
        self.memory.shrink(self.running)

    def _plan(self) -> list[Work]:
        pending = [
            min(one.pending, PROMPT_ROWS) if one.request.prompt_logprobs is not None else one.pending
            for one in self.running
        ]
        answering = any(tokens == 1 for tokens in pending)
        counts = plan_step(pending, budget=self.limits.step_tokens * (1 if answering else 2))
        return [Work(*pair) for pair in zip(self.running, counts, strict=True) if pair[1]]

    def _with_room(self, batch: list[Work]) -> list[Work]:
        """The work that has memory for its new tokens; whoever came last gives way."""
        for work in batch:
            if work.sequence in self.running:
                self._make_room(work)
        return [work for work in batch if work.sequence in self.running]

    def _make_room(self, work: Work) -> None:
        sequence = work.sequence
        tokens = sequence.computed + work.count
        try:
            while sequence in self.running and not self.memory.grow(sequence, tokens, self.running):
                self._preempt(self.running[-1])  # alone it has room: nothing larger is let in
        except (RuntimeError, MemoryError) as error:
            self._fail(sequence, error)

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's memory; it is computed anew later."""
        self._counts.preemptions += 1
        self.memory.drop(sequence)
        sequence.begin_again()
        self.roster.requeue(sequence)

    def _compute(self, batch: list[Work]) -> None:
        # Whatever a model raises on a batch: one request must not end the others.
        try:
            logits = forward(self.model.model, batch, self._gatherer)
        except Exception as error:
            self._isolate(batch, error)
            return
        self._read_prompts(batch, logits)
        for work in batch:
            work.sequence.advance(work.count, self.version)
        self._counts.computed_tokens += sum(work.count for work in batch)
        self._draw([work.sequence for work in batch if work.sequence.pending == 0], logits.next_BV)

    def _isolate(self, batch: list[Work], error: Exception) -> None:
        """One sequence that cannot be computed must not end the others: each is tried alone."""
        if len(batch) == 1:
            self._fail(batch[0].sequence, error)
            return
        self.memory.clear()  # it may have been the machine's memory
        for work in batch:
            self._compute([work])

    def _read_prompts(self, batch: list[Work], logits: Logits) -> None:
        start = 0
        for work in batch:
            sequence, rows, first = work.sequence, work.prompt_rows, work.sequence.computed + 1
            if rows and logits.prompt_PV is not None:
                sequence.prompt_logprobs += prompt_logprobs(
                    logits.prompt_PV[start : start + rows],
                    sequence.ids[first : first + rows],
                    sequence.request.prompt_logprobs or 0,
                )
            start += rows

    def _draw(self, ready: list[Sequence], logits_BV: torch.Tensor) -> None:
        """The next token of all that are computed, and the first of the choices that wait for them."""
        if not ready:
            return
        rows = list(range(len(ready)))
        for row, sequence in enumerate(list(ready)):
            if not sequence.tokens or sequence.siblings:
                forks = list(self._fork(sequence))
                ready += forks
                rows += [row] * len(forks)
        if len(rows) > len(logits_BV):
            logits_BV = logits_BV[rows]
        drawn = draw(logits_BV, [sequence.row() for sequence in ready])
        for row, sequence in enumerate(ready):
            self._take(sequence, drawn[row], logits_BV, row)

    def _fork(self, sequence: Sequence) -> Iterator[Sequence]:
        """Give the other choices of a call copies of the prompt; those without room wait for their turn."""
        kv = sequence.kv
        assert kv is not None
        if not sequence.tokens and kv.only(self.version):
            self.memory.store.put(sequence.ids, kv, lent=True)
        siblings, sequence.siblings = sequence.siblings, []
        late = []
        for sibling in siblings:
            room = self.memory.room_of(sibling)
            if len(self.running) == self.limits.slots or not self.memory.fits(room, self.running):
                late.append(sibling)
                continue
            self.roster.start(sibling)
            try:
                sibling.kv = kv.copy(kv.length, room)
            except (RuntimeError, MemoryError) as error:
                self._fail(sibling, error)
                continue
            sibling.cached_tokens = sequence.cached_tokens
            sibling.prompt_logprobs = list(sequence.prompt_logprobs)
            self.memory.shrink(self.running)
            yield sibling
        self.roster.put_back(late)

    def _take(self, sequence: Sequence, drawn: Draw, logits_BV: torch.Tensor, row: int) -> None:
        """Append the token that was drawn, tell of it, and see whether it was the last."""
        if drawn.logprob != drawn.logprob:
            self._end_with(sequence, "the model's logits are not numbers (NaN)")
            return
        request = sequence.request
        top = most_probable(logits_BV[row], request.top_logprobs) if request.top_logprobs else ()
        token = Token(drawn.id, drawn.logprob, drawn.sampling_logprob, self.version, top)
        if not sequence.told:
            self._counts.prompt_tokens += sequence.prompt_length
            self._counts.cached_tokens += sequence.cached_tokens
            tell_started(sequence, self.version, self.digest)
        sequence.take(token)
        self._counts.generated_tokens += 1
        stopped = tell_token(sequence, token)
        if drawn.id in request.stop_ids:
            self.finish(sequence, FinishReason.STOP, stop_id=drawn.id)
        elif stopped:
            self.finish(sequence, FinishReason.STOP)
        elif sequence.output_length >= request.max_tokens:
            self.finish(sequence, FinishReason.LENGTH)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """The machine or the model refused: usually out of memory."""
        log.warning("request %s failed: %s", sequence.request.request_id, error)
        self.memory.clear()
        lines = str(error).strip().splitlines() or [type(error).__name__]
        self._end_with(sequence, f"the engine could not compute it: {lines[0]}")

    def _end_with(self, sequence: Sequence, error: str) -> None:
        """End a request and the choices that wait for it, which would fail as well."""
        for one in [*sequence.siblings, sequence]:
            self._counts.failures += 1
            self.finish(one, FinishReason.ERROR, error=error)

    def fail_all(self, error: str) -> None:
        for sequence in self.roster:
            self.finish(sequence, FinishReason.ERROR, error=error)

    # -- control -----------------------------------------------------------------------------------

    def pause(self, mode: str) -> None:
        """`keep`: all stands still. `abort`: all ends. `wait`: what runs goes on, nothing new begins."""
        self.admits = False
        if mode == "abort":
            self.abort([one.request.request_id for one in self.roster])
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

        Raises:
            RequestError: 409, other weights had this version's name; nothing has happened.
        """
        self._require_free(version, staged.digest)
        staged.copy_into(self.model)
        if in_flight == "abort":
            calls = [[one, *one.siblings] for one in self.running]
            self.abort([one.request.request_id for call in calls for one in call])
        self.memory.clear()
        for sequence in self.roster:
            if in_flight == "recompute" or not sequence.keeps_kv:
                sequence.begin_again()
        self.version, self.digests[version] = version, staged.digest
        self._counts.publications += 1

    def _require_free(self, version: str, digest: str) -> None:
        if self.digests.get(version, digest) != digest:
            raise RequestError(f"version `{version}` is of other weights", 409, "version_in_use")

    def rename(self, version: str) -> None:
        """The weights as they are get another version's name; 409 where other weights had it."""
        self._require_free(version, self.digest)
        self.version, self.digests[version] = version, self.digest
        self.memory.clear()

    @property
    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self.running),
            waiting=len(self.roster) - len(self.running),
            kv_bytes=self.memory.used(self.running),
            kv_limit_bytes=self.memory.limit_bytes,
            kept=len(self.memory.store),
            **asdict(self._counts),
        )
