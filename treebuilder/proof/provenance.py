"""One execution's rows against its calls in the log. Pure; linear in the tokens of both.

A running digest along each path meets the digest that was taken when a prompt was captured: the path is
the prompt that the engine saw. Below it hangs the call's output, so each position of each output is one
position in the tree, and a token that was sampled once is a target at most once.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from gyre.proxy.log.reading.ragged import packed
from gyre.treebuilder.proof.paths import Key, Nodes, Row, View, call

Array = npt.NDArray[Any]

_NEVER = ("late", "version_unsure")
"""Flags of calls that are never trained."""


@dataclass(frozen=True, slots=True)
class Logged:
    """A call as the log has it."""

    row: Row
    rebuilt: str | None
    """Digest of the prompt as it is put together from the log's rows; None without ids."""
    output: Array | None
    logprobs: Array | None

    @property
    def outputs(self) -> int:
        return 0 if self.output is None else len(self.output)

    def flaw(self, evaluation: bool) -> str | None:
        """Why nothing of it may be trained, whatever became of its answer."""
        if evaluation:
            return "the execution is an evaluation"
        if self.row["delivery_of"] is not None:
            return "it is a stored answer that was sent again"
        if self.row["capture_quality"] != "exact":
            return f"its capture is {self.row['capture_quality']}"
        if self.row["logprob_quality"] in ("greedy", "none"):
            return f"its log-probabilities are {self.row['logprob_quality']}"
        return next((flag for flag in _NEVER if flag in (self.row["capture_flags"] or ())), None)


def check_provenance(view: View, logged: dict[Key, Logged], known: Container[str]) -> None:
    """`view` passed `check_alone`; `logged` are the calls of the execution's attempt.

    Columns of links that the folder is too old to have, so not in `known`, are not looked at.
    """
    say = view.complaints
    for key in logged.keys() - view.links.keys():
        say.require(False, "missing_call", f"{call(key)} is in the log and not in the tree")
    for key in view.links.keys() - logged.keys():
        say.require(False, "extra_call", f"{call(key)} is in the tree and not in the log")
    for key in view.links:
        if key in logged:
            _check_sampling(view, key, logged[key].row, known)
    if not view.row["exact"]:
        with_ids = any(one.rebuilt is not None for one in logged.values())
        say.require(not with_ids, "exact", "has token ids in the log and was built from texts")
        return
    digests = _path_digests(view.nodes)
    runs = {
        key: set(_check_call(view, key, link, logged[key], digests))
        for key, link in view.links.items()
        if key in logged
    }
    used, quoted = _on_prompts(view), _gone_on_from(view)
    drawn = {node for run in runs.values() for node in run}
    for node, owner in enumerate(view.nodes.owners):
        same = bool(view.nodes.sampled[node]) == (node in drawn)
        say.require(same, "sampled", f"node {node} is said to be sampled and was not, or the other way round")
        if view.nodes.sampled[node] and owner in runs:
            inside = node in runs[owner]
            say.require(inside, "provenance", f"node {node} is no part of the output of {call(owner)}")
            if inside:
                _check_run(view, node, owner, logged[owner], node in used or owner in quoted)


def _check_sampling(view: View, key: Key, row: Row, known: Container[str]) -> None:
    told = {
        "temperature": row["temperature"],
        "logprob_quality": row["logprob_quality"] or "none",
        "sampling": _sampling(row),
    }
    for name, value in told.items():
        if name not in known:
            continue
        # A stored answer that is sent again is not sampled.
        expected = None if row["delivery_of"] is not None else value
        same = view.links[key][name] == expected
        view.complaints.require(same, name, f"{call(key)} has {name} {expected} in the log")


def _sampling(row: Row) -> str | None:
    off = {"top_p": 1, "top_k": 0, "min_p": 0, "presence_penalty": 0, "frequency_penalty": 0}
    values = {name: row[name] for name in (*off, "repetition_penalty") if row[name] is not None}
    values["top_k"] = max(values.get("top_k", 0), 0)
    if any(value != off.get(name, 1) for name, value in values.items()):
        return "changed"
    return "neutral" if "top_p" in values else None


def _path_digests(nodes: Nodes) -> list[str]:
    """xxh3-128 of all ids from the root to the end of each node."""
    states: list[xxhash.xxh3_128] = []
    for node, parent in enumerate(nodes.parents):
        state = xxhash.xxh3_128() if parent is None else states[parent].copy()
        state.update(packed(nodes.tokens[node]))
        states.append(state)
    return [state.hexdigest() for state in states]


def _check_call(view: View, key: Key, link: Row, one: Logged, digests: list[str]) -> list[int]:
    """The path is the prompt that the engine saw and what it answered; gives the nodes of the answer."""
    say, nodes, row = view.complaints, view.nodes, one.row
    if row["prompt_tokens"] is None or row["delivery_of"] is not None:
        nothing = link["prompt_node"] is None and link["output_node"] is None
        say.require(nothing, "prompt_path", f"{call(key)} has no ids, and a place in the tree")
        return []
    at = link["prompt_node"]
    say.require(
        one.rebuilt == row["prompt_digest"], "log_prompt", f"{call(key)}: the log's own ids are not right"
    )
    digest = xxhash.xxh3_128_hexdigest(b"") if at is None else digests[at]
    same = digest == row["prompt_digest"] and nodes.end(at) == row["prompt_tokens"] == link["prompt_tokens"]
    say.require(same, "prompt_path", f"the path to {call(key)} is not the prompt that the engine saw")
    run = nodes.between(link["output_node"], at)
    tokens = [nodes.tokens[node] for node in run or ()]
    said = np.concatenate([each for each in tokens if each is not None]) if run else np.zeros(0, np.int32)
    output = np.zeros(0, np.int32) if one.output is None else one.output
    same = run is not None and np.array_equal(said, output) and link["output_tokens"] == len(output)
    say.require(same, "output_path", f"the path below {call(key)} is not what it sampled")
    return run or []


def _check_run(view: View, node: int, owner: Key, one: Logged, used: bool) -> None:
    """A sampled node carries what was captured with its tokens, and is trained only if it may be."""
    say, nodes = view.complaints, view.nodes
    start = nodes.depths[node] - one.row["prompt_tokens"]
    end = start + nodes.lengths[node]
    captured = one.logprobs is not None and len(one.logprobs) == one.outputs
    expected = one.logprobs[start:end].tobytes() if captured and one.logprobs is not None else None
    stored = nodes.logprobs[node]
    same = (None if stored is None else stored.tobytes()) == expected
    say.require(same, "logprobs", f"node {node} has not the log-probabilities of {call(owner)}")
    same = nodes.spans[node] == _clipped(one.row["version_spans"] or (), start, end)
    say.require(same, "version_spans", f"node {node} has not the versions of {call(owner)}")
    if not nodes.targets[node]:
        return
    flaw = one.flaw(view.row["evaluation"])
    say.require(flaw is None, "untrainable", f"node {node} is trained, but of {call(owner)}: {flaw}")
    outcome = one.row["outcome"]
    # An answer that was cut is trained where a later call shows that it reached the agent.
    say.require(
        outcome == "ok" or used, "untrainable", f"node {node} is trained; {call(owner)} ended {outcome}"
    )


def _clipped(spans: Any, start: int, end: int) -> list[Row]:
    """The part of an output's version spans that lies in [start, end)."""
    clipped = []
    for span in spans:
        first, last = max(span["start"], start), min(span["end"], end)
        if first < last:
            clipped.append({"version": span["version"], "start": first - start, "end": last - start})
    return clipped


def _on_prompts(view: View) -> set[int]:
    """Nodes on the path of any prompt."""
    found: set[int] = set()
    for link in view.links.values():
        node = link["prompt_node"]
        while node is not None and node not in found:
            found.add(node)
            node = view.nodes.parents[node]
    return found


def _gone_on_from(view: View) -> set[Key]:
    """Calls that a later one came from, in whatever tokens that renders their answers."""
    return {
        (link["origin_call_id"], link["origin_attempt"], link["origin_choice"])
        for link in view.links.values()
        if link["origin_call_id"] is not None and link["cause"] != "retry"
    }
