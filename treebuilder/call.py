"""One call as the builder is told of it: a row of the log, as values.

A prompt is given whole (`shared` 0, no `parent`) or as what is new in it, exactly as the log stores
it: prompt = (parent.prompt + parent.output)[:shared] + suffix. Messages likewise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gyre.treebuilder.trees import CallKey, Ids, Logprobs


@dataclass(slots=True)
class Call:
    key: CallKey
    parent: CallKey | None = None
    """The row that `shared` and `messages_shared` refer to: storage, not lineage."""
    shared: int = 0
    suffix: Ids | None = None
    """Prompt ids after `shared`; None for a call without ids."""
    prompt_digest: bytes | None = None
    """xxh3-128 of the whole prompt as little-endian int32, taken at capture; proves the rest."""
    output: Ids | None = None
    logprobs: Logprobs | None = None
    version_spans: list[tuple[str, int, int]] = field(default_factory=list)
    messages_shared: int = 0
    messages: list[str] = field(default_factory=list)
    """Addresses of the messages after `messages_shared`."""
    tools: tuple[str, ...] = ()
    """Addresses of the tools."""
    request_digest: bytes = b""
    """Of the whole body: shows a retry where the log has nothing else of a request."""
    response: bytes | None = None
    """JSON of the assistant's message, or of a list of items, or a string."""
    started_ns: int = 0
    ended_ns: int = 0
    """0: the call has no end on record."""
    outcome: str = "ok"
    finish_reason: str | None = None
    temperature: float | None = None
    """As it was in effect when the output was sampled; None: not known."""
    sampling: str | None = None
    """See `Link.sampling`."""
    session_id: str | None = None
    agent_id: str | None = None
    parent_agent_id: str | None = None
    hints: dict[str, str] = field(default_factory=dict)
    """Further labels of the harness, by header name."""
    retry_count: int | None = None
    delivery_of: str | None = None
    capture_quality: str = "exact"
    logprob_quality: str = "sampled"
    flags: tuple[str, ...] = ()
    evaluation: bool = False


def sampling(
    top_p: float | None,
    top_k: int | None,
    min_p: float | None,
    presence_penalty: float | None,
    frequency_penalty: float | None,
    repetition_penalty: float | None,
) -> str | None:
    """`Link.sampling` from the parameters in effect.

    As where log-probabilities are judged at capture: what is not known is off, but for `top_p`, which
    engines take from the model's folder. What is known to be on is enough to say `changed`.
    """
    on = (
        top_p not in (None, 1),
        (top_k or 0) > 0,
        min_p,
        presence_penalty,
        frequency_penalty,
        repetition_penalty not in (None, 1),
    )
    if any(on):
        return "changed"
    return None if top_p is None else "neutral"
