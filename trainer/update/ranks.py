"""The processes that train together, as the rest of training sees them: as a face with few features.

All of it but the properties is collective: every process calls it, in the same order. `processes.py` has
those that torchrun starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from gyre.trainer.passes.policy import Policy

Value = TypeVar("Value")


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

    def share(self, value: Value) -> Value:
        """That of the main process, for all of them. What the others bring does not matter."""
        ...

    def shard(self, policy: Policy, *, alike: bool) -> None:
        """Spread the weights over the processes, before anything holds on to a parameter.

        alike: the passes to come are forward and backward passes in turn, as those of `flat` and `packed`;
        otherwise, with `dfs`, every process holds all of the weights while it computes.
        """
        ...

    def passes(self, model: nn.Module, *, grad: bool) -> AbstractContextManager[None]:
        """Around the passes of an update, of which each process has its own number, or none.

        With `grad`, once it is left without an error, gradients are sums over all processes. Within it a
        process may call nothing else of this face.
        """
        ...

    @property
    def can_redo(self) -> bool:
        """Whether one process may leave `passes` by an error, as when its memory is full.

        Gradients are then worthless, and the others have still to be told of it. Where it may not, they
        wait for its part of a layer: it can only end, and with it all of them.
        """
        ...

    def norm(self, grads: Sequence[Tensor]) -> float:
        """Global L2 norm; not finite where any gradient is not."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """A sharded tensor put together, detached, on the CPU, for the main process.

        Its memory may be the tensor's own. The others get an empty one: their memory would have to hold
        the model once more each.
        """
        ...

    def fill_(self, tensor: Tensor, whole: Tensor) -> None:
        """The other way: a sharded tensor gets its share of one that every process has. Not collective."""
        ...

    def leave(self, code: int) -> None:
        """The end of the process, with the largest of their exit codes; a single one just goes on.

        1, an error, is a process's own: it does not wait for the others.
        """
        ...


class OneProcess:
    """Nobody to talk to."""

    rank = 0
    size = 1
    is_main = True
    can_redo = True

    def shard(self, policy: Policy, *, alike: bool) -> None:
        pass

    def sum_(self, tensor: Tensor) -> None:
        pass

    def any(self, value: bool) -> bool:
        return value

    def max(self, value: float) -> float:
        return value

    def barrier(self) -> None:
        pass

    def share(self, value: Value) -> Value:
        return value

    def passes(self, model: nn.Module, *, grad: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def norm(self, grads: Sequence[Tensor]) -> float:
        return float(nn.utils.get_total_norm(grads)) if grads else 0.0

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu()

    def fill_(self, tensor: Tensor, whole: Tensor) -> None:
        with torch.no_grad():
            tensor.copy_(whole)

    def leave(self, code: int) -> None:
        pass
