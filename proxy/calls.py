"""What one call is: the words every other module of the proxy uses for it.

Values only, no I/O. `CallRecord` is a row of the log (one per attempt and choice) in the compact
form the journal stores; `gyre.proxy.log.schema` has the public columns it is widened to.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How an attempt ended."""

    OK = "ok"
    UPSTREAM_ERROR = "upstream_error"
    """The engine answered with an error status or with something that is no answer."""
    UPSTREAM_CUT = "upstream_cut"
    """The engine broke off after the first byte of its answer."""
    CLIENT_GONE = "client_gone"
    TIMEOUT = "timeout"
    """One of our limits fired; `phase` says which."""
    INTERRUPTED = "interrupted"
    """The proxy ended before the attempt did: stopped at its shutdown limit, or killed."""
    REJECTED = "rejected"
    """The proxy itself refused: bad request, too large, no backend in time, disk full."""


class Phase(StrEnum):
    """How far an attempt came, and for a timeout which limit fired."""

    REQUEST = "request"
    HOLD = "hold"
    CONNECT = "connect"
    FIRST_BYTE = "first_byte"
    IDLE = "idle"
    TOTAL = "total"
    DONE = "done"


class Wire(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    MESSAGES = "messages"
    RESPONSES = "responses"
    COUNT_TOKENS = "count_tokens"
    """Of a Messages request; nothing is generated."""
    MODELS = "models"
    OPAQUE = "opaque"

    @property
    def generates(self) -> bool:
        """Whether a request of this wire makes the engine sample."""
        return self in _GENERATING


_GENERATING = frozenset((Wire.CHAT, Wire.COMPLETIONS, Wire.MESSAGES, Wire.RESPONSES))


class CaptureQuality(StrEnum):
    """Are the token ids of this row complete?"""

    EXACT = "exact"
    """Prompt ids, sampled ids and one log-probability per sampled id."""
    IDS_ONLY = "ids_only"
    """All ids, but the log-probabilities are missing or do not fit them."""
    INCOMPLETE = "incomplete"
    """Some ids are missing; `capture_flags` says why. Never trained."""
    NONE = "none"
    """The engine gave no ids."""


class LogprobQuality(StrEnum):
    """Are the log-probabilities of the distribution that was sampled from?"""

    SAMPLED = "sampled"
    RAW = "raw"
    """Of the untempered, untruncated softmax, while sampling used another one."""
    GREEDY = "greedy"
    """Temperature 0: nothing was sampled."""
    UNKNOWN = "unknown"
    """The engine's sampling defaults are not known."""
    NONE = "none"


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """Effective sampling parameters: the request's, else the engine's default where it is known."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Who is calling, and how we know (`*_source` names the signal)."""

    execution_id: str
    execution_source: str
    session_id: str | None = None
    session_source: str | None = None
    agent_id: str | None = None
    agent_source: str | None = None
    parent_agent_id: str | None = None
    parent_agent_source: str | None = None
    retry_count: int | None = None
    client: str | None = None
    """The User-Agent header."""
    hints: dict[str, Any] = {}
    """Further lineage labels the harness sent (turn metadata, idempotency key, ...)."""
    flags: list[str] = []
    """`identity_conflict` when weaker signals named another execution."""


class VersionSpan(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, end) are the work of policy `version`: of an output, unless something else is said."""

    version: str
    start: int
    end: int


class WeightDigest(msgspec.Struct, frozen=True, array_like=True):
    """Which weights a version is."""

    version: str
    digest: str


class OwnReport(msgspec.Struct, frozen=True, array_like=True):
    """What only gyre's own engine says of a choice."""

    raw_logprobs: bytes | None = None
    """Of the softmax at temperature 1, where `logprobs` are of another distribution."""
    kv_spans: list[VersionSpan] | None = None
    """Over positions of prompt and output: whose weights computed their KV."""
    weight_digests: list[WeightDigest] | None = None
    spliced_tokens: int | None = None
    """Prompt tokens that are the engine's own earlier output instead of its text tokenized again."""


class NewMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message, tool or prompt text that the log does not hold yet."""

    hash: bytes
    """First 16 bytes of the SHA-256 of `body`."""
    kind: str
    """`message`, `tool` or `prompt`."""
    body: bytes
    """The exact bytes received."""


class IntentRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Written when an attempt is dispatched, so that a killed proxy leaves a trace of it."""

    order: int
    worker: str
    call_id: str
    attempt: int
    execution_id: str
    execution_attempt: int
    wire: str
    method: str
    path: str
    model: str | None
    backend: str
    stream: bool
    started_ns: int
    request_digest: bytes


class CallRecord(msgspec.Struct, array_like=True, tag=2, kw_only=True):
    """One row of the log: an attempt's choice. Times are Unix nanoseconds, ids little-endian int32."""

    order: int
    """Commit order: per worker `max(last + 1, time_ns)`."""
    worker: str
    call_id: str
    attempt: int = 0
    choice: int = 0
    execution_attempt: int = 0
    identity: Identity
    parent_call_id: str | None = None
    parent_attempt: int = 0
    parent_choice: int = 0
    wire: str
    method: str
    path: str
    model: str | None = None
    upstream_model: str | None = None
    backend: str | None = None
    cell: str | None = None
    engine: str | None = None
    stream: bool = False
    started_ns: int
    first_byte_ns: int | None = None
    ended_ns: int
    held_s: float = 0.0
    outcome: str
    phase: str
    http_status: int | None = None
    error: str | None = None
    finish_reason: str | None = None
    request: bytes | None = None
    """Request body with arrays kept elsewhere cut out; see docs/log-format.md."""
    request_bytes: int = 0
    request_digest: bytes = b""
    """xxh3-128 of the body as the client sent it (after content-encoding)."""
    raw_request: bytes | None = None
    """The exact body, only where reassembly from the parts would not give it back."""
    messages_shared: int = 0
    message_suffix: list[bytes] = []
    tools: list[bytes] = []
    new_messages: list[NewMessage] = []
    response: bytes | None = None
    response_meta: bytes | None = None
    response_bytes: int = 0
    response_digest: bytes = b""
    """xxh3-128 of the answer's bytes as the engine sent them."""
    raw_response: bytes | None = None
    prompt_tokens: int | None = None
    """Length of the full prompt in ids; null without ids."""
    prompt_digest: bytes | None = None
    """xxh3-128 of the full prompt's little-endian int32 ids, taken at capture."""
    prompt_shared: int = 0
    prompt_suffix: bytes | None = None
    output: bytes | None = None
    logprobs: bytes | None = None
    """Little-endian float32, one per output id."""
    version_spans: list[VersionSpan] = []
    usage: bytes | None = None
    sampling: Sampling = Sampling()
    capture_quality: str = CaptureQuality.NONE.value
    logprob_quality: str = LogprobQuality.NONE.value
    capture_flags: list[str] = []
    delivery_of: str | None = None
    """Set when no generation took place and the stored answer of that call was sent again."""
    upstream_wire: str | None = None
    """Protocol the engine was asked in; None where it is the client's own."""
    own: OwnReport | None = None


class ExecutionRecord(msgspec.Struct, array_like=True, tag=3, kw_only=True):
    """Something that happened to an execution: `started`, `updated`, `ended`, `timed_out`, `scored`."""

    order: int
    worker: str
    execution_id: str
    execution_attempt: int = 0
    event: str
    at_ns: int
    outcome: str | None = None
    task: str | None = None
    group: str | None = None
    score: float | None = None
    artifact: str | None = None
    reason: str | None = None
    evaluation: bool | None = None
    details: bytes | None = None
    """JSON."""


class CloseRecord(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """The segment was left in order: intents still open are repeated in the next one."""

    order: int
    worker: str


Record = IntentRecord | CallRecord | ExecutionRecord | CloseRecord
"""Whatever a journal row can hold."""
