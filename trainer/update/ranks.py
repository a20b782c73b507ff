"""The processes that train together, as the rest of training sees them: as a face with few features.

All of it but `rank`, `size` and `is_main` is collective: every process calls it, in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor, nn


class Ranks(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def is_main(self) -> bool:
        """The one that prints and writes."""
        ...

    def sum_(self, tensor: Tensor) -> None:
        """Add up over the processes, in place."""
        ...

    def any(self, value: bool) -> bool: ...

    def max(self, value: float) -> float: ...

    def barrier(self) -> None: ...

    def passes(self, model: nn.Module, *, grad: bool) -> AbstractContextManager[None]:
        """Around the passes of an update, of which each process has its own number.

        With `grad`, once it is left without an error, gradients are sums over all processes.
        """
        ...

    def norm(self, grads: Sequence[Tensor]) -> float:
        """Global L2 norm; not finite where any gradient is not."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """A sharded tensor put together, detached, on the CPU. Its memory may be the tensor's own."""
        ...

    def fill_(self, tensor: Tensor, whole: Tensor) -> None:
        """The other way: a sharded tensor gets its share."""
        ...


class OneProcess:
    """Nobody to talk to."""

    rank = 0
    size = 1
    is_main = True

    def sum_(self, tensor: Tensor) -> None:
        pass

    def any(self, value: bool) -> bool:
        return value

    def max(self, value: float) -> float:
        return value

    def barrier(self) -> None:
        pass

    def passes(self, model: nn.Module, *, grad: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def norm(self, grads: Sequence[Tensor]) -> float:
        return float(nn.utils.get_total_norm(grads)) if grads else 0.0

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu()

    def fill_(self, tensor: Tensor, whole: Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(whole)
