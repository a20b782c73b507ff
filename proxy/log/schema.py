"""The public columns of the log, with one line on each: what `docs/log-format.md` documents.

Columns may be added within a format version; readers ignore those they do not know. Nothing is
renamed or given another meaning without a new format version.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 3

STRING = pa.string()
INT32 = pa.int32()
INT64 = pa.int64()
FLOAT64 = pa.float64()
BOOL = pa.bool_()
BINARY = pa.binary()
TIME = pa.timestamp("us", tz="UTC")
STRINGS = pa.list_(STRING)
IDS = pa.list_(INT32)
LOGPROBS = pa.list_(pa.float32())
SPANS = pa.list_(pa.struct([("version", STRING), ("start", INT32), ("end", INT32)]))
DIGESTS = pa.list_(pa.struct([("version", STRING), ("digest", STRING)]))


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType
    text: str


CALLS = (
    Column("execution_id", STRING, "execution this call belongs to"),
    Column("execution_attempt", INT32, "0, then +1 each time a name is used again after its end"),
    Column("execution_source", STRING, "signal that named the execution: `url`, `key`, `header`, ..."),
    Column("call_id", STRING, "the request as the harness sees it; sent back as `x-gyre-call-id`"),
    Column("attempt", INT32, "which try against a backend, from 0"),
    Column("choice", INT32, "which of n answers, from 0; usage stands on choice 0"),
    Column("parent_call_id", STRING, "row whose tokens or messages this row extends; null: stored whole"),
    Column("parent_attempt", INT32, "attempt of the parent row; 0 without a parent"),
    Column("parent_choice", INT32, "choice of the parent row; 0 without a parent"),
    Column("session_id", STRING, "session id the harness sent"),
    Column("session_source", STRING, "signal that gave the session id"),
    Column("agent_id", STRING, "agent id the harness sent"),
    Column("agent_source", STRING, "signal that gave the agent id"),
    Column("parent_agent_id", STRING, "id of the agent that started this one"),
    Column("parent_agent_source", STRING, "signal that gave the parent agent id"),
    Column(
        "wire", STRING, "`chat`, `completions`, `messages`, `responses`, `count_tokens`, `models`, `opaque`"
    ),
    Column("upstream_wire", STRING, "protocol at the engine: `chat` where translated, else as `wire`"),
    Column("method", STRING, "HTTP method"),
    Column("path", STRING, "path the engine was asked for, without the identity prefix"),
    Column("model", STRING, "model the client asked for"),
    Column("upstream_model", STRING, "model the engine was asked for, after mapping"),
    Column("backend", STRING, "backend the attempt went to"),
    Column("cell", STRING, "cell the backend is part of"),
    Column("engine", STRING, "capture profile: `vllm`, `sglang`, `llamacpp`, `gyre`, `text`"),
    Column("started_at", TIME, "attempt dispatched"),
    Column("first_byte_at", TIME, "first byte of the engine's answer"),
    Column("ended_at", TIME, "attempt over; null when interrupted"),
    Column("held_s", FLOAT64, "seconds that gyre itself held the request; no fault of engine or agent"),
    Column("outcome", STRING, "how the attempt ended, see Outcomes"),
    Column("phase", STRING, "how far it came; for a timeout the limit that fired"),
    Column("http_status", INT32, "status of the engine's answer, or gyre's own when it refused"),
    Column("error", STRING, "what went wrong, for people"),
    Column("finish_reason", STRING, "as the engine gave it"),
    Column("stream", BOOL, "the client asked for a stream"),
    Column("request", STRING, "request body with messages, tools and prompt cut out, see Request bodies"),
    Column("request_bytes", INT64, "length of the whole body"),
    Column("request_digest", STRING, "xxh3-128 of the whole body, hex"),
    Column("raw_request", BINARY, "the exact body, only where the parts would not give it back"),
    Column("messages_shared", INT32, "entries shared with the start of the parent's message list"),
    Column("message_hashes", STRINGS, "hashes of the entries after those"),
    Column("tool_hashes", STRINGS, "hashes of all tools, in order"),
    Column("response", STRING, "assembled answer, JSON in the form of `upstream_wire`"),
    Column("response_meta", STRING, "JSON of the answer's other fields"),
    Column("response_bytes", INT64, "length of the answer as the engine sent it"),
    Column("response_digest", STRING, "xxh3-128 of those bytes, hex"),
    Column("raw_response", BINARY, "the exact answer, where it could not be assembled or is opaque"),
    Column("prompt_tokens", INT32, "number of ids of the whole prompt; null without ids"),
    Column("prompt_digest", STRING, "xxh3-128 of the whole prompt as little-endian int32, hex, from capture"),
    Column("prompt_shared", INT32, "ids shared with the start of the parent's prompt + output"),
    Column("prompt_suffix_ids", IDS, "prompt ids after those; null without ids"),
    Column("output_ids", IDS, "sampled ids; null without ids"),
    Column("output_logprobs", LOGPROBS, "log-probability of each sampled id; null when not captured"),
    Column(
        "raw_logprobs",
        LOGPROBS,
        "the same at temperature 1, nothing cut off; null where those above are these",
    ),
    Column("version_spans", SPANS, "output ids [start, end) were sampled by that policy version"),
    Column(
        "kv_spans", SPANS, "KV of prompt + output [start, end) was computed by that version; null: not told"
    ),
    Column("weight_digests", DIGESTS, "digest of each version's weights; null: not told"),
    Column("usage", STRING, "JSON of the engine's usage block"),
    Column("usage_prompt_tokens", INT64, "prompt tokens by the engine's count"),
    Column("usage_completion_tokens", INT64, "completion tokens by the engine's count"),
    Column("usage_cached_tokens", INT64, "prompt tokens the engine took from its cache"),
    Column(
        "spliced_tokens",
        INT32,
        "prompt ids that are the engine's earlier output, not its text tokenized again",
    ),
    Column("temperature", FLOAT64, "effective sampling temperature; null when not known"),
    Column("top_p", FLOAT64, "effective top_p"),
    Column("top_k", INT64, "effective top_k"),
    Column("min_p", FLOAT64, "effective min_p"),
    Column("presence_penalty", FLOAT64, "effective presence penalty"),
    Column("frequency_penalty", FLOAT64, "effective frequency penalty"),
    Column("repetition_penalty", FLOAT64, "effective repetition penalty"),
    Column("seed", INT64, "effective seed"),
    Column("capture_quality", STRING, "are the ids complete: `exact`, `ids_only`, `incomplete`, `none`"),
    Column("logprob_quality", STRING, "`sampled`, `raw`, `greedy`, `unknown`, `none`"),
    Column("capture_flags", STRINGS, "why ids or log-probabilities are not what they should be"),
    Column("delivery_of", STRING, "call whose stored answer was sent again; nothing was generated"),
    Column("retry_count", INT32, "retry number the client's library sent"),
    Column("client", STRING, "User-Agent"),
    Column("lineage_hints", STRING, "JSON of further lineage labels the harness sent"),
    Column("order", INT64, "commit order: about Unix nanoseconds, rising per worker"),
    Column("worker", STRING, "proxy worker that wrote the row"),
)

MESSAGES = (
    Column("hash", STRING, "first 16 bytes of the SHA-256 of `body`, hex"),
    Column("kind", STRING, "`message`, `tool` or `prompt`"),
    Column("body", STRING, "the exact JSON text received"),
)

EXECUTIONS = (
    Column("execution_id", STRING, "execution it happened to"),
    Column("execution_attempt", INT32, "which attempt of it"),
    Column("event", STRING, "`started`, `updated`, `ended`, `timed_out`, `scored`"),
    Column("at", TIME, "when"),
    Column("outcome", STRING, "how the execution ended"),
    Column("task", STRING, "task it works on"),
    Column("group", STRING, "executions that share a baseline"),
    Column("score", FLOAT64, "score of the artifact"),
    Column("artifact", STRING, "what it left behind"),
    Column("reason", STRING, "why, for people"),
    Column("evaluation", BOOL, "an evaluation execution: never trained"),
    Column("details", STRING, "JSON of whatever else was given"),
    Column("order", INT64, "commit order, as in calls"),
    Column("worker", STRING, "proxy worker that wrote the row"),
)

COLUMNS = {"calls": CALLS, "messages": MESSAGES, "executions": EXECUTIONS}
SCHEMAS = {name: pa.schema([(c.name, c.type) for c in columns]) for name, columns in COLUMNS.items()}

ROW_KEY = ("call_id", "attempt", "choice")
COMMIT_ORDER = ("order", "worker", *ROW_KEY)


def type_name(column: Column) -> str:
    """A column's type as the documentation spells it."""
    return str(column.type).replace("item: ", "")
