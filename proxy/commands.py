"""What can be changed while the proxy runs, as values.

Commands reach every worker in the same order (from the control API, through the supervisor when
there are several workers), so all of them agree on backends, versions and executions. Carrying one
out twice does no harm.
"""

from __future__ import annotations

import msgspec

from gyre.proxy.allowance import Allowance
from gyre.proxy.settings import Backend, Pin


class AddBackend(msgspec.Struct, frozen=True, tag="add_backend"):
    backend: Backend


class DrainBackend(msgspec.Struct, frozen=True, tag="drain_backend"):
    name: str
    draining: bool


class RemoveBackend(msgspec.Struct, frozen=True, tag="remove_backend"):
    name: str


class SetVersion(msgspec.Struct, frozen=True, tag="set_version"):
    """Backend `name` (all of them when None) serves policy `version` from now on."""

    name: str | None
    version: str


class PutExecution(msgspec.Struct, frozen=True, tag="put_execution"):
    """Fields of None leave what is known as it is."""

    name: str
    task: str | None = None
    group: str | None = None
    evaluation: bool | None = None
    pin: Pin | None = None
    restore_arguments: bool | None = None
    limits: Allowance | None = None


class StartExecution(msgspec.Struct, frozen=True, tag="start_execution"):
    """So many attempts of the execution have begun."""

    name: str
    begun: int


class EndExecution(msgspec.Struct, frozen=True, tag="end_execution"):
    """So many attempts of the execution have ended: a number, since workers see different calls."""

    name: str
    ends: int


class SpendExecution(msgspec.Struct, frozen=True, tag="spend_execution"):
    """The attempt has reached a limit, as all workers together see it: no more of its calls."""

    name: str
    attempt: int
    limit: str


class ForgetLog(msgspec.Struct, frozen=True, tag="forget_log"):
    """What was written so far may be pruned: refer to none of it any more."""


Command = (
    AddBackend
    | DrainBackend
    | RemoveBackend
    | SetVersion
    | PutExecution
    | StartExecution
    | EndExecution
    | SpendExecution
    | ForgetLog
)
