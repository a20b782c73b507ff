"""Several processes that torchrun started: gloo on CPU, NCCL on GPUs.

    torchrun --nproc-per-node 2 -m gyre.cli.main train ...

torchrun tells each its number, starts it in a session of its own, and ends all when one ends with an error.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor

from gyre.trainer.errors import TrainError
from gyre.trainer.passes.policy import Policy
from gyre.trainer.settings import Device
from gyre.trainer.update.ranks import OneProcess, Ranks, Value
from gyre.trainer.update.sharding import Sharded

_PATIENCE = timedelta(minutes=30)
"""How long a process waits for another. One that ends is noticed at once, this is for one that hangs."""
_TOLD = re.compile("(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|ROLE_NAME|TORCHELASTIC_.*")
"""What torchrun says to a process in its environment."""
_GONE = "Connection (closed|reset) by peer|Broken pipe"
"""What gloo says then, among other errors that a pass may have."""


def start(device: Device = Device.AUTO) -> Ranks:
    """The processes that this one was started with. Before the model is loaded: it goes to this one's GPU.

    Programs that this one starts, as an engine with processes of its own, do not hear of them.
    """
    try:
        return _start(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else OneProcess()
    finally:
        for name in filter(_TOLD.fullmatch, list(os.environ)):
            del os.environ[name]


def _start(device: Device) -> Ranks:
    cuda = torch.cuda.is_available() and device != Device.CPU
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # What is agreed on are numbers in this machine's memory: they go over gloo, and no GPU is waited for.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", timeout=_PATIENCE)
    return Processes("cuda" if cuda else "cpu")


class Processes:
    """As `Ranks`, in a process group that exists."""

    def __init__(self, device: str) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.is_main = self.rank == 0
        self.can_redo = True
        self._mesh = init_device_mesh(device, (self.size,))
        self._sharded: dict[nn.Module, Sharded] = {}

    def sum_(self, tensor: Tensor) -> None:
        with _others():
            dist.all_reduce(tensor)

    def any(self, value: bool) -> bool:
        return self.max(float(value)) > 0

    def max(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64)
        with _others():
            dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.item()

    def barrier(self) -> None:
        self.max(0.0)

    def share(self, value: Value) -> Value:
        told = [value]
        with _others():
            dist.broadcast_object_list(told, src=0)
        return told[0]

    def shard(self, policy: Policy, *, alike: bool) -> None:
        self._sharded[policy.model] = Sharded(policy, self._mesh, self, alike=alike)
        self.can_redo = self.can_redo and not alike

    @contextmanager
    def passes(self, model: nn.Module, *, grad: bool) -> Iterator[None]:
        sharded = self._sharded.get(model)
        with _others(_GONE), sharded.passes(grad=grad) if sharded else nullcontext():
            yield

    def norm(self, grads: Sequence[Tensor]) -> float:
        with _others(_GONE):
            return float(_full(nn.utils.get_total_norm(grads))) if grads else 0.0

    def whole(self, tensor: Tensor) -> Tensor:
        with _others(_GONE):
            whole = _full(tensor.detach())
        return whole.cpu() if self.is_main else torch.empty(0, dtype=tensor.dtype)

    def fill_(self, tensor: Tensor, whole: Tensor) -> None:
        with torch.no_grad():
            if isinstance(tensor, DTensor):
                # Without a source nothing is sent: each takes its share of its own copy.
                whole = whole.to(tensor.device)
                share = distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)
                tensor.to_local().copy_(share.to_local())
            else:
                tensor.copy_(whole)

    def leave(self, code: int) -> NoReturn:
        # Threads of the process group that are still there at the interpreter's end abort the process now
        # and then ("terminate called without an active exception"), with all results written. So there is
        # no such end.
        if code != 1:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is ending
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            code = int(self.max(code))
            dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@contextmanager
def _others(gone: str = "") -> Iterator[None]:
    """TrainError for errors that say `gone`, a pattern: one of them is."""
    try:
        yield
    except RuntimeError as problem:
        if not re.search(gone, str(problem)):
            raise
        text = "another process of this run has ended"
        raise TrainError(text, "its own message says why") from problem


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
