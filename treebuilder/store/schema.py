"""The public columns of a trees folder, with one line on each: what `docs/tree-format.md` documents.

Columns may be added within a format version; readers ignore those they do not know. Nothing is
renamed or given another meaning without a new format version. Nothing here is a time: the same log
gives the same bytes.
"""

from __future__ import annotations

import pyarrow as pa

from gyre.proxy.log.schema import (
    BOOL,
    FLOAT64,
    IDS,
    INT32,
    INT64,
    LOGPROBS,
    SPANS,
    STRING,
    Column,
    type_name,
)

__all__ = ["COLUMNS", "FORMAT_VERSION", "SCHEMAS", "SCHEMA_VERSION", "TABLES", "Column", "type_name"]

FORMAT_VERSION = 1
SCHEMA_VERSION = 2

COUNTS = pa.map_(STRING, INT64)
STRINGS = pa.list_(STRING)
EVIDENCE = pa.list_(pa.struct([("witness", STRING), ("detail", STRING)]))
DISAGREEMENTS = pa.list_(
    pa.struct(
        [("call_id", STRING), ("attempt", INT32), ("choice", INT32), ("stated", STRING), ("found", STRING)]
    )
)

EXECUTIONS = (
    Column("execution_id", STRING, "execution, as in the log"),
    Column("execution_attempt", INT32, "which attempt of it: each is a row and a tree of its own"),
    Column("skipped", STRING, "why it could not be rebuilt; then it has no rows in the other tables"),
    Column("superseded", BOOL, "a later attempt of the same name exists"),
    Column("exact", BOOL, "built from token ids; false: from messages, for analysis only"),
    Column("task", STRING, "task it works on"),
    Column("group", STRING, "executions that share a baseline"),
    Column("outcome", STRING, "how it ended; null while nothing was said"),
    Column("score", FLOAT64, "last score that was given"),
    Column("reason", STRING, "why, for people"),
    Column("artifact", STRING, "what it left behind"),
    Column("evaluation", BOOL, "an evaluation execution: never trained"),
    Column("calls", INT32, "rows of the log that are calls, each with a link"),
    Column("contexts", INT32, "sequences of calls that extend each other"),
    Column("prompt_tokens", INT64, "sum of all prompts as the engine saw them"),
    Column("tree_tokens", INT64, "tokens in the tree, each shared prefix once"),
    Column("sampled_tokens", INT64, "unique tokens that the policy sampled"),
    Column("targets", INT64, "tokens that may be trained, each once"),
    Column("kept_targets", INT64, "targets on admitted trajectories"),
    Column("trajectories", INT32, "admitted slots, at most the cap"),
    Column("quarantined", INT32, "links that were not decided"),
    Column("left_out", COUNTS, "targets that were not admitted, by reason"),
    Column("untrained", COUNTS, "sampled tokens that are no targets, by reason"),
    Column("causes", COUNTS, "links by cause"),
    Column("disagreements", DISAGREEMENTS, "calls of which headers and tokens tell different stories"),
    Column("problems", STRINGS, "what is odd without making it unusable"),
    Column("log_digest", STRING, "changes with every row of the log that this row depends on, hex"),
)

NODES = (
    Column("execution_id", STRING, "execution the node belongs to"),
    Column("node_id", INT32, "from 0 within the attempt, parents before children"),
    Column("parent_id", INT32, "node that it follows; null for a root"),
    Column("depth", INT32, "position of its first token from the start of the path"),
    Column("token_ids", IDS, "its tokens; null when the execution is not exact"),
    Column("target", pa.list_(BOOL), "which tokens are trained; null: none"),
    Column(
        "logprobs", LOGPROBS, "behaviour log-probability of each token; null when not sampled or captured"
    ),
    Column("version_spans", SPANS, "tokens [start, end) of the node were sampled by that policy version"),
    Column("call_id", STRING, "call that sampled it, or else the first that had it in its prompt"),
    Column("context_id", INT32, "context of that call"),
    Column("role", STRING, "`main`, `main_summary`, `sub`, `sub_summary`, `side`, `unknown`"),
    Column("cause", STRING, "cause of that call's link"),
    Column("admitted", BOOL, "on the path of an admitted trajectory"),
    Column("execution_attempt", INT32, "which attempt of the execution"),
    Column("attempt", INT32, "attempt of the call's row in the log"),
    Column("choice", INT32, "choice of the call's row in the log"),
    Column("sampled", BOOL, "drawn by the policy in this execution; everything else was given"),
    Column("length", INT32, "number of tokens; of message blocks when the execution is not exact"),
    Column("text_tokens", INT32, "tokens of its text by the tokenizer that the build was given; else null"),
)

LINKS = (
    Column("execution_id", STRING, "execution the call belongs to"),
    Column("execution_attempt", INT32, "which attempt of the execution"),
    Column("call_id", STRING, "the call"),
    Column("attempt", INT32, "attempt of its row in the log"),
    Column("choice", INT32, "choice of its row in the log"),
    Column("context_id", INT32, "context it is in"),
    Column("role", STRING, "role of that context"),
    Column("cause", STRING, "how its prompt came about, see Causes"),
    Column("step", STRING, "finer kind, see Steps"),
    Column("family", STRING, "of a compaction: `suffix_prompt`, `rendered_transcript`, `kept_tail`"),
    Column("confidence", STRING, "`proven`, `stated`, `inferred` or `quarantined`"),
    Column("evidence", EVIDENCE, "what shows it: a witness and what it found"),
    Column("reason", STRING, "why it is quarantined"),
    Column("origin_call_id", STRING, "call it came from; null: none"),
    Column("origin_attempt", INT32, "attempt of that row"),
    Column("origin_choice", INT32, "choice of that row"),
    Column("origin_context_id", INT32, "context of that call"),
    Column("header_cause", STRING, "what the harness's headers alone say; null: nothing"),
    Column("header_origin_context_id", INT32, "context that the headers name as the origin"),
    Column("agrees", BOOL, "whether headers and tokens agree; null where the headers say nothing"),
    Column("shared_tokens", INT32, "leading prompt tokens that earlier calls had already"),
    Column("break_offset", INT32, "of a prefix break: where the prompt leaves what its origin had"),
    Column("break_before", IDS, "ids that the origin had from there, up to 8"),
    Column("break_after", IDS, "ids that the prompt has from there, up to 8"),
    Column("prompt_tokens", INT32, "length of the whole prompt"),
    Column("output_tokens", INT32, "length of the output"),
    Column("prompt_node", INT32, "node in which the prompt ends; null without ids"),
    Column("output_node", INT32, "node in which the output ends"),
    Column("targets", INT32, "tokens of its output that may be trained and that it owns"),
    Column("untrained", STRING, "why its output is context"),
    Column("temperature", FLOAT64, "effective sampling temperature; null when not known"),
    Column("logprob_quality", STRING, "as in the log: `sampled`, `raw`, `greedy`, `unknown`, `none`"),
    Column("sampling", STRING, "`neutral`, or `changed` by a cut or a penalty; null when not known"),
)

TRAJECTORIES = (
    Column("execution_id", STRING, "execution it belongs to"),
    Column("execution_attempt", INT32, "which attempt of the execution"),
    Column("trajectory_id", INT32, "from 0 within the attempt"),
    Column("slot", INT32, "what counts against the cap: a context and its stubs share one"),
    Column("stub", BOOL, "an output that the next call of its context did not go on from"),
    Column("leaf_node", INT32, "node in which the path ends"),
    Column("context_id", INT32, "context of its last target"),
    Column("role", STRING, "role of that context"),
    Column("tokens", INT32, "length of the path"),
    Column("targets", INT32, "targets that this path is the first to bring"),
)

COLUMNS = {"executions": EXECUTIONS, "nodes": NODES, "links": LINKS, "trajectories": TRAJECTORIES}
TABLES = tuple(COLUMNS)
SCHEMAS = {name: pa.schema([(c.name, c.type) for c in columns]) for name, columns in COLUMNS.items()}
