"""What an execution becomes: nodes, links, trajectories. Values only; `builder.py` makes them.

A **node** is a run of token ids with one parent. A **link** says where a call came from and how we
know. A **context** is a sequence of calls that extend each other; each call is in one. A
**trajectory** is an admitted root-to-leaf path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]


class CallKey(NamedTuple):
    """Names a row of the log."""

    call_id: str
    attempt: int = 0
    choice: int = 0


class Role(StrEnum):
    """What a context is in its execution, in the order in which selection takes them."""

    MAIN = "main"
    MAIN_SUMMARY = "main_summary"
    """A request for a summary of the main agent's history, and its answer."""
    SUB = "sub"
    SUB_SUMMARY = "sub_summary"
    SIDE = "side"
    """A request beside the work (title, commit message): its answer enters no context."""
    UNKNOWN = "unknown"
    """Its link is quarantined: the evidence allows more than one reading."""


class Cause(StrEnum):
    """How a call's prompt came about."""

    START = "start"
    """The first call of the main agent."""
    CONTINUATION = "continuation"
    """It goes on where an earlier call of the context ended."""
    RETRY = "retry"
    """A further try of a request that another try answered; `origin` is the one that was kept."""
    COMPACTION = "compaction"
    """A summary was asked for (`step` summary), or a new history begins from one (`step` restart)."""
    DELEGATION = "delegation"
    """A sub-agent's first call."""
    EDIT = "edit"
    """The same history with tool results cleared or shortened."""
    SIDE = "side"
    REASONING_STRIPPED = "reasoning_stripped"
    """Same context, but the template or the harness left out reasoning that was sampled."""
    RETOKENIZED = "retokenized"
    """Same context and text, other token ids."""
    TOOLS_CHANGED = "tools_changed"
    """Same context, another list of tools."""
    REWRITTEN = "rewritten"
    """Same context, but the harness changed earlier messages."""
    UNKNOWN = "unknown"


class Confidence(StrEnum):
    PROVEN = "proven"
    """Token ids, or one request id, show it."""
    STATED = "stated"
    """The harness says so in its headers."""
    INFERRED = "inferred"
    """Texts, tool-call ids and times show it."""
    QUARANTINED = "quarantined"
    """Not decided; `Link.reason` says between what."""


class Evidence(NamedTuple):
    """One witness for a link."""

    witness: str
    """`ids`, `header`, `text`, `tool_call`, `messages`, `time` or `count`."""
    detail: str
    """For people: what was found, and where."""


@dataclass(slots=True)
class Link:
    """Where one call came from."""

    call: CallKey
    context_id: int
    cause: Cause
    confidence: Confidence
    evidence: list[Evidence]
    step: str | None = None
    """Finer kind: `summary`, `restart`, `blocking`, `background`, `nested`, `forked`, `response_absent`."""
    family: str | None = None
    """For a compaction: `suffix_prompt`, `rendered_transcript` or `kept_tail`."""
    origin: CallKey | None = None
    """The call it came from: predecessor, delegating call, summary, or the kept try of a retry."""
    origin_context_id: int | None = None
    reason: str | None = None
    """Why it is quarantined."""
    header_cause: Cause | None = None
    """What the headers alone say; None where they say nothing."""
    header_origin_context_id: int | None = None
    agrees: bool | None = None
    """Whether headers and tokens agree; None where the headers say nothing."""
    role: Role = Role.UNKNOWN
    shared_tokens: int = 0
    """Leading prompt tokens that earlier calls of the execution had already (blocks, if not exact)."""
    break_offset: int | None = None
    """For a prefix break: where the prompt leaves what `origin` had, in tokens from the start."""
    break_before: Ids | None = None
    """Up to 8 ids that `origin` had from there on, and the 8 of this prompt."""
    break_after: Ids | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    temperature: float | None = None
    """With which its output was sampled; None: not known."""
    logprob_quality: str | None = None
    """As in the log: of which distribution its log-probabilities are. None: nothing was generated."""
    sampling: str | None = None
    """`neutral`: from the whole distribution at the temperature; `changed`: cut or with penalties; None:
    not known."""
    prompt_node: int | None = None
    """Node in which the prompt ends; None for a call without ids."""
    output_node: int | None = None
    """Node in which the output ends: a trajectory's leaf."""
    targets: int = 0
    """Tokens of its output that may be trained and that it owns."""
    untrained: str | None = None
    """Why its output is context: `outcome_client_gone`, `capture_incomplete`, `late`, `greedy`, ..."""


@dataclass(slots=True)
class Node:
    """A run of tokens with one parent; `depth` is the position of its first token."""

    node_id: int
    parent_id: int | None
    depth: int
    token_ids: Ids
    call: CallKey
    """The call that sampled these tokens, or else the first whose prompt had them."""
    context_id: int
    role: Role
    cause: Cause
    """Of the link of `call`."""
    sampled: bool
    """Drawn by the policy in this execution; everything else is given."""
    target: bool = False
    """Sampled in a trainable call that owns them: each of these tokens is trained."""
    logprobs: Logprobs | None = None
    """Behaviour log-probabilities, one a token; None unless sampled and captured."""
    version_spans: list[tuple[str, int, int]] = field(default_factory=list)
    """(version, start, end) within this node, of sampled tokens."""
    admitted: bool = False
    """On the path of an admitted trajectory."""


@dataclass(slots=True)
class Trajectory:
    """An admitted path. Rows of one `slot` count once against the cap: a context and its stubs."""

    trajectory_id: int
    slot: int
    stub: bool
    """An output that the next call of the same context did not go on from; rides with its context."""
    leaf_node: int
    context_id: int
    role: Role
    tokens: int
    """Length of the path."""
    targets: int
    """Targets that this path is the first to bring; a path's other targets are trained elsewhere."""


@dataclass(slots=True)
class Disagreement:
    """Headers and tokens tell different stories of one call."""

    call: CallKey
    stated: str
    found: str


@dataclass(slots=True)
class ExecutionTree:
    """One attempt of an execution, rebuilt."""

    execution_id: str
    execution_attempt: int
    exact: bool
    """False: from messages only, for analysis; nodes then count blocks, not tokens."""
    nodes: list[Node]
    """Parents before children; `node_id` is the index."""
    links: list[Link]
    """One per row of the log that is a call, in commit order."""
    trajectories: list[Trajectory]
    sampled_tokens: int = 0
    """Unique sampled tokens."""
    targets: int = 0
    kept_targets: int = 0
    """Targets on admitted paths."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Targets that were not admitted, by reason: `cap:<role>`, `side`, ..."""
    untrained: dict[str, int] = field(default_factory=dict)
    """Sampled tokens that are no targets, by reason."""
    disagreements: list[Disagreement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is odd in this execution without making it unusable."""

    def path(self, node_id: int) -> list[Node]:
        """Nodes from the root to that node."""
        path: list[Node] = []
        at: int | None = node_id
        while at is not None:
            path.append(self.nodes[at])
            at = self.nodes[at].parent_id
        return path[::-1]
