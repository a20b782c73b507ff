"""How many bytes a worker may hold, and the queue for those who must wait."""

from __future__ import annotations

import asyncio
from collections import deque

from gyre.proxy.errors import RequestError


class Budget:
    """Request bodies wait for room before they are read; what already runs may overdraw."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, patience: float) -> None:
        """Reserve `size` bytes. One call always fits, so that a body over the limit cannot starve.

        Raises:
            RequestError: status 503, when there is no room within `patience` seconds.
        """
        if not self._waiting and (not self.used or self.used + size <= self.limit):
            self.used += size
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await asyncio.wait_for(future, patience)
        except TimeoutError as error:
            raise RequestError(
                f"the proxy holds {self.used >> 20} MiB of open calls and takes no more",
                status=503,
                code="proxy_overloaded",
            ) from error

    def charge(self, size: int) -> None:
        """Count bytes that are there already."""
        self.used += size

    @property
    def full(self) -> bool:
        return self.used > self.limit

    def give(self, size: int) -> None:
        self.used -= size
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if self.used and self.used + size > self.limit:
                    return
                self.used += size
                future.set_result(None)
            self._waiting.popleft()
