"""How many bytes a worker may hold, the queue for those who must wait, and freed memory given back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import sys
from collections import deque

import pyarrow as pa

from gyre.proxy.errors import RequestError

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 17


def give_back_large_blocks() -> None:
    """Have freed bodies of megabytes go back to the system instead of into the heap's holes.

    glibc raises its threshold for that after the first such block is freed, and a proxy that once
    held 32 prompts of 2 MB would keep most of that for good. Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").mallopt(_M_MMAP_THRESHOLD, _LARGE)
    pa.set_memory_pool(pa.system_memory_pool())


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
