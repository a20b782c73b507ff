"""How many bytes a worker may hold, the queue for those who must wait, and freed memory given back."""

from __future__ import annotations

import asyncio
import ctypes
from collections import deque

from gyre.proxy.errors import RequestError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 64 << 20
"""Freed memory that stays with the process, to be used again."""


def tune_allocator() -> None:
    """Have freed bodies of megabytes used again by the next call.

    By default glibc gives each of them back and faults its pages in anew for the next call, which
    takes longer than everything else that is done with a prompt of 500,000 ids. `Budget` gives back
    what is left over when calls are few.
    """
    if _libc is not None:
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        _libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)


def _load_libc() -> ctypes.CDLL | None:
    """glibc; None on other systems, whose allocators are left as they are."""
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
    except (OSError, AttributeError):
        return None
    return libc


_libc = _load_libc()


class Budget:
    """Request bodies wait for room before they are read; what already runs may overdraw."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._peak = self._recent = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int, patience: float) -> None:
        """Reserve `size` bytes. One call always fits, so that a body over the limit cannot starve.

        Raises:
            RequestError: status 503, when there is no room within `patience` seconds.
        """
        if not self._waiting and (not self.used or self.used + size <= self.limit):
            self.charge(size)
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
        self._peak = max(self._peak, self.used)
        self._recent = max(self._recent, self.used)

    def recent(self) -> int:
        """The most bytes held at once since this was last asked."""
        recent, self._recent = max(self._recent, self.used), self.used
        return recent

    @property
    def full(self) -> bool:
        return self.used > self.limit

    def give(self, size: int) -> None:
        self.used -= size
        if not self.used and self._peak > _KEPT:
            self._peak = 0
            if _libc is not None:
                _libc.malloc_trim(0)
        while self._waiting:
            size, future = self._waiting[0]
            if not future.done():
                if self.used and self.used + size > self.limit:
                    return
                self.charge(size)
                future.set_result(None)
            self._waiting.popleft()
