"""The sequences that the engine holds: who runs, who waits, and who leads the choices of a call."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from gyre.elastic.engine.compute.sequence import Sequence
from gyre.proxy.errors import RequestError


class Roster:
    def __init__(self) -> None:
        self.running: list[Sequence] = []
        """In order of arrival."""
        self.waiting: deque[Sequence] = deque()
        self._by_id: dict[str, Sequence] = {}

    def __iter__(self) -> Iterator[Sequence]:
        """All, those included that wait for the prompt of their call."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    def require_new(self, request_ids: Seq[str]) -> None:
        """Raises:
        RequestError: an id is in use, or stands there twice.
        """
        if len(set(request_ids)) < len(request_ids) or not self._by_id.keys().isdisjoint(request_ids):
            names = ", ".join(f"`{name}`" for name in request_ids)
            raise RequestError(f"the request id {names} is in use", 400, "duplicate_request_id")

    def add(self, choices: list[Sequence]) -> None:
        """The choices of one call; the first leads: it computes the prompt for all."""
        choices[0].siblings = choices[1:]
        self._by_id.update((one.request.request_id, one) for one in choices)
        self.waiting.append(choices[0])

    def start(self, sequence: Sequence) -> None:
        self.running.append(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """Back to the head of the queue."""
        if sequence in self.running:
            self.running.remove(sequence)
        self.waiting.appendleft(sequence)

    def put_back(self, passed: Iterable[Sequence]) -> None:
        """Those that could not start yet, in their order, before all others."""
        self.waiting.extendleft(reversed(list(passed)))

    def remove(self, sequence: Sequence) -> None:
        """Take it out; of choices that still wait for their prompt the next one leads."""
        del self._by_id[sequence.request.request_id]
        heirs, sequence.siblings = sequence.siblings, []
        if heirs:
            heirs[0].siblings = heirs[1:]
        if sequence in self.running:
            self.running.remove(sequence)
            self.put_back(heirs[:1])
        elif sequence in self.waiting:
            place = self.waiting.index(sequence)
            self.waiting.remove(sequence)
            if heirs:
                self.waiting.insert(place, heirs[0])
        else:
            for leader in self:
                if sequence in leader.siblings:
                    leader.siblings.remove(sequence)
