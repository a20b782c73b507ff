"""What the control API takes and gives, as its OpenAPI description shows it.

Pydantic stands at this edge only: an unknown field is an error, NaN is no number, and no answer
repeats what a wrong request held.
"""

from __future__ import annotations

from typing import Any, Literal, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gyre.proxy.allowance import MOST, Allowance
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.proxy.settings import MOST_TOP_K, Backend, EngineName, Pin, Translate
from gyre.proxy.status import BackendStatus, ExecutionStatus, LogStatus
from gyre.proxy.tally import Tally

SCHEMA = 1


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)


class BackendBody(Body):
    """An engine to add; the fields of `[[backends]]` in the configuration file."""

    url: str = Field(max_length=2048)
    name: str = Field(default="", max_length=256)
    profile: EngineName = "auto"
    key_env: str | None = None
    translate: Translate = "auto"
    models: dict[str, str] = {}
    cell: str | None = None
    version: str | None = None
    draining: bool = False

    def backend(self) -> Backend:
        return Backend(**self.model_dump())


class BackendChange(Body):
    draining: bool | None = None
    version: str | None = Field(default=None, max_length=256)

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if self.draining is None and self.version is None:
            raise ValueError("give `draining` or `version`")
        return self


class VersionBody(Body):
    version: str = Field(max_length=256)


class PinBody(Body):
    """Sampling forced on every call; fields left out are the client's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = Field(default=None, ge=-1, le=MOST_TOP_K)
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None

    def pin(self) -> Pin:
        return Pin(**self.model_dump())


class LimitBody(Body):
    """Of each attempt of an execution; a call beyond is refused."""

    calls: int | None = Field(default=None, ge=1, le=MOST)
    tokens: int | None = Field(default=None, ge=1, le=MOST)
    """Sampled ones."""

    def allowance(self) -> Allowance:
        return Allowance(**self.model_dump())


class ExecutionBody(Body):
    """Fields left out stay as they are."""

    task: str | None = Field(default=None, max_length=1024)
    group: str | None = Field(default=None, max_length=1024)
    evaluation: bool | None = None
    pin: PinBody | None = None
    restore_arguments: bool | None = None
    """Send arguments of tool calls as they were sampled, where the harness wrote them anew."""
    limits: LimitBody | None = None
    new: bool = False
    """Refuse it with 409 where something is known of an execution of that name."""


class EventBody(Body):
    event: Literal["started", "ended", "timed_out", "scored"]
    outcome: ExecutionOutcome | None = None
    """`completed` for `ended` and `timed_out` for `timed_out`, unless given."""
    score: float | None = None
    artifact: str | None = Field(default=None, max_length=65536)
    reason: str | None = Field(default=None, max_length=65536)
    details: dict[str, Any] | None = None
    attempt: int | None = Field(default=None, ge=0)
    """Which one is meant: where the event would be of another, it is refused with 409."""

    @model_validator(mode="after")
    def _score_or_why_not(self) -> Self:
        if self.event == "scored" and self.score is None and self.outcome is None:
            raise ValueError("`scored` needs a `score`, or an `outcome` that says why there is none")
        return self

    def outcome_of(self) -> ExecutionOutcome | None:
        implied = {"ended": ExecutionOutcome.COMPLETED, "timed_out": ExecutionOutcome.TIMED_OUT}
        return self.outcome or implied.get(self.event)


class TallyView(BaseModel):
    """Calls of `attempt` that ask for an answer to be sampled, since the proxy's start."""

    made: int
    """Those that were refused or tried again included."""
    answered: int
    tokens: int
    lost: bool
    """Whether the one that ended last found no engine."""
    error: str | None
    """Of the last that was not answered."""
    limit: str
    """Which limit calls were refused for; empty: none."""


class ExecutionView(BaseModel):
    """An execution since the proxy's start; `attempt` runs now or ended last."""

    name: str
    attempt: int
    ended: bool
    task: str | None
    group: str | None
    evaluation: bool | None
    pin: PinBody | None
    restore_arguments: bool | None
    limits: LimitBody | None
    tally: TallyView
    held_s: float
    """Seconds during which at least one of its calls waited in gyre for an engine."""
    calls: int
    open: int
    prompt_tokens: int
    output_tokens: int
    first_ns: int
    last_ns: int

    @classmethod
    def of(cls, status: ExecutionStatus) -> Self:
        return cls(
            name=status.name,
            attempt=status.attempt,
            ended=status.ended,
            task=status.task,
            group=status.group,
            evaluation=status.evaluation,
            pin=PinBody(**msgspec.structs.asdict(status.pin)) if status.pin else None,
            restore_arguments=status.restore_arguments,
            limits=LimitBody(**msgspec.structs.asdict(status.limits)) if status.limits else None,
            tally=tally_view(status),
            held_s=status.held_s,
            calls=status.calls,
            open=status.open,
            prompt_tokens=status.prompt_tokens,
            output_tokens=status.output_tokens,
            first_ns=status.first_ns,
            last_ns=status.last_ns,
        )


def tally_view(status: ExecutionStatus) -> TallyView:
    """Of the attempt that the view speaks of, which may have had no call yet."""
    tally = status.tally if status.tally.attempt == status.attempt else Tally()
    return TallyView(
        made=tally.made,
        answered=tally.answered,
        tokens=tally.tokens,
        lost=tally.lost,
        error=tally.error,
        limit=tally.limit,
    )


class ExecutionsView(BaseModel):
    executions: list[ExecutionView]


class EventView(BaseModel):
    execution: str
    attempt: int
    """Which attempt of the execution the event was written for."""
    event: ExecutionEvent
    outcome: ExecutionOutcome | None


class BackendsView(BaseModel):
    backends: list[BackendStatus]


class VersionView(BaseModel):
    version: str
    backends: list[str]
    """Those that serve it now."""


class StatusView(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    schema_version: int = Field(default=SCHEMA, serialization_alias="schema")
    gyre: str
    """Version of gyre."""
    logs: str
    workers: int
    stopping: bool
    in_flight: int
    holding: int
    memory: int
    backends: list[BackendStatus]
    log: LogStatus


class HealthView(BaseModel):
    status: Literal["ok", "degraded", "failing"]
    """`degraded`: no backend takes calls, so they wait; `failing`: calls are refused."""
    reason: str | None = None
    backends: dict[str, str]
    """Name -> `ready`, `draining` or what is wrong."""


class SealView(BaseModel):
    reports: list[dict[str, Any] | None]
    """One per worker; null where sealing failed."""


class ErrorDetail(BaseModel):
    code: str
    message: str
    hint: str = ""


class ErrorView(BaseModel):
    """Every answer of status 400 or more."""

    error: ErrorDetail


class ForgetView(BaseModel):
    forgotten: bool
