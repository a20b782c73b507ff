"""A model whose weights are spread over processes, with FSDP2, and passes over it.

Each decoder layer is gathered when it is computed and dropped afterwards; what is left, the embedding, the
last norm and the head, is the root and stays gathered from a forward pass to the end of its backward pass,
because the head is called outside of it, chunk by chunk (`passes/head.py`). Gradients are added up over
processes, never averaged: the loss is weighted over the whole batch. Optimizer and weights are fp32; layers
are gathered in the dtype that is computed in, the root in fp32, so that the head's gradients, one a chunk,
add up in fp32.

Every process takes part in gathering a layer, so all of them have to compute alike:

- `flat` and `packed` are forward and backward passes in turn. Before each of them a process tells the others
  that there is one; who has none left computes a few tokens with gradient 0, until nobody has (`_in_step`).
- `dfs` has several forward passes open at once, and how many depends on the tree. All layers are gathered
  before the first and dropped after the last, nothing is sent in between, and gradients are added up by one
  more pass of gradient 0, which all have in common (`_gathered`). A process without any piece is no case
  of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gyre.trainer.passes.policy import Policy

_TOKENS = 8
"""Of a pass without a gradient of its own; more than one, which some recurrent layers compute otherwise."""


class Agree(Protocol):
    """What processes have to settle between them; all of them ask at the same point."""

    def any(self, value: bool) -> bool: ...


class Sharded:
    """Takes the place of a policy's body. From here on the model's parameters are `DTensor`s."""

    def __init__(self, policy: Policy, mesh: DeviceMesh, agree: Agree, *, alike: bool) -> None:
        """alike: passes are forward and backward in turn, as those of `flat` and `packed` are."""
        self._policy = policy
        self._agree = agree
        self._alike = alike
        self._announce = False
        self._root = _Root(policy.model, policy.body)
        self._whole = _shard(self._root, mesh, policy.compute)
        self._parts = [module for module in self._root.modules() if isinstance(module, FSDPModule)]
        policy.body = self

    def __call__(self, **kwargs: Any) -> Any:
        if self._announce:
            self._agree.any(True)
        return self._root(**kwargs)

    def passes(self, *, grad: bool) -> AbstractContextManager[None]:
        """As `Ranks.passes`."""
        return self._in_step(grad=grad) if self._alike else self._gathered(grad=grad)

    @contextmanager
    def _in_step(self, *, grad: bool) -> Iterator[None]:
        self._announce = True
        try:
            yield
        finally:
            self._announce = False
        while self._agree.any(False):
            self._empty_pass(grad=grad)
        self._drop()

    @contextmanager
    def _gathered(self, *, grad: bool) -> Iterator[None]:
        self._gather()
        done = False
        try:
            yield
            done = True
        finally:
            # Not done: one of these has no memory left, and the others need not know yet.
            if self._agree.any(not done):
                self._whole.reset_iter_state()
                self._gather()
            if grad:
                self._add_up()
            self._drop()

    def _gather(self) -> None:
        self._whole.set_reshard_after_forward(False)
        self._whole.set_reshard_after_backward(False)
        self._whole.set_requires_gradient_sync(False)
        for part in self._parts:
            part.unshard()

    def _add_up(self) -> None:
        self._whole.set_requires_gradient_sync(True)
        self._empty_pass(grad=True)

    def _drop(self) -> None:
        for part in self._parts:
            part.reshard()

    def _empty_pass(self, *, grad: bool) -> None:
        ids_1S = torch.zeros(1, _TOKENS, dtype=torch.int64, device=self._policy.device)
        with torch.set_grad_enabled(grad):
            hidden_1SD = self._policy.hidden(ids_1S)
        if grad:
            torch.autograd.backward(hidden_1SD, torch.zeros_like(hidden_1SD))


class _Root(nn.Module):
    """A model as FSDP wants it: what is called is the module that holds all the others."""

    def __init__(self, model: nn.Module, body: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._body = (body,)  # no child: it is a part of the model
        self._anchor = torch.zeros((), requires_grad=True)

    def forward(self, **kwargs: Any) -> Any:
        out = self._body[0](**kwargs)
        if torch.is_grad_enabled() and not out.last_hidden_state.requires_grad:
            # Only the head is trained. Its gradients are added up when a backward pass comes through here.
            out.last_hidden_state = out.last_hidden_state + self._anchor.to(out.last_hidden_state)
        return out

    def layers(self) -> Iterator[nn.Module]:
        for child in self._body[0].children():
            if isinstance(child, nn.ModuleList):
                yield from child


def _shard(root: _Root, mesh: DeviceMesh, compute: torch.dtype) -> FSDPModule:
    # Inputs are left as they are: in bf16, autocast decides what is computed in which dtype, as in a
    # single process.
    mixed = MixedPrecisionPolicy(
        param_dtype=None if compute == torch.float32 else compute,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    for layer in root.layers():
        fully_shard(layer, mesh=mesh, mp_policy=mixed)
    whole = fully_shard(root, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other
    # An expert that is used on one process only is then no reason to wait for the others forever.
    whole.set_reduce_scatter_unused_params(True)
    return whole
