"""What the rows of one execution must be among themselves, whoever built them. Pure; linear in the rows.

Knows nothing of the builder: a tree is checked by what `docs/tree-format.md` promises. What the log has
to say of it is `provenance`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from gyre.proxy.log.findings import Finding, error
from gyre.proxy.log.reading.ragged import RaggedIds, values_of
from gyre.treebuilder.options import Options, Rule

Key = tuple[str, int, int]
"""(call_id, attempt, choice)"""
Row = dict[str, Any]

_COLUMNS = ("parent_id", "depth", "length", "context_id", "role", "cause", "admitted", "sampled")


@dataclass(slots=True)
class Complaints:
    """What is wrong with one execution: the first of each kind, and how many more there are."""

    where: str
    _first: dict[str, str] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)

    def require(self, holds: bool, code: str, text: str) -> None:
        if not holds:
            self._first.setdefault(code, text)
            self._counts[code] += 1

    def findings(self) -> list[Finding]:
        return [error(code, self.where, text + self._more(code)) for code, text in self._first.items()]

    def _more(self, code: str) -> str:
        more = self._counts[code] - 1
        return f"; and {more} more" if more else ""


class Nodes:
    """Nodes as columns; a node is its number."""

    def __init__(self, table: pa.Table) -> None:
        self.count = table.num_rows
        self.ids: list[int] = values_of(table["node_id"])
        columns = (values_of(table[name]) for name in _COLUMNS)
        self.parents, self.depths, self.lengths, self.contexts, self.roles, *more = columns
        self.causes, self.admitted, self.sampled = more
        key = (values_of(table[name]) for name in ("call_id", "attempt", "choice"))
        self.owners: list[Key] = list(zip(*key, strict=True))
        self.tokens, self.logprobs = RaggedIds(table["token_ids"]), RaggedIds(table["logprobs"])
        self.masks = RaggedIds(table["target"])
        self.spans = values_of(table["version_spans"])
        masks = (self.masks[node] for node in range(self.count))
        self.targets = [0 if mask is None else int(np.count_nonzero(mask)) for mask in masks]

    def end(self, node: int | None) -> int:
        """Length of the path that ends with the node."""
        return 0 if node is None else self.depths[node] + self.lengths[node]

    def between(self, node: int | None, above: int | None) -> list[int] | None:
        """From below `above` down to `node`; None if that is no path."""
        path = []
        while node is not None and node != above:
            path.append(node)
            node = self.parents[node]
        return path[::-1] if node == above else None


@dataclass(slots=True)
class View:
    """One attempt of an execution as the folder has it."""

    row: Row
    nodes: Nodes
    links: dict[Key, Row]
    paths: list[Row]
    complaints: Complaints

    @classmethod
    def of(cls, row: Row, tables: dict[str, pa.Table]) -> View:
        name, attempt = row["execution_id"], row["execution_attempt"]
        complaints = Complaints(name if not attempt else f"{name} (attempt {attempt})")
        links: dict[Key, Row] = {}
        for link in tables["links"].to_pylist():
            complaints.require(
                key_of(link) not in links, "repeated_call", f"{call(key_of(link))} has two links"
            )
            links[key_of(link)] = link
        return cls(row, Nodes(tables["nodes"]), links, tables["trajectories"].to_pylist(), complaints)


def key_of(row: Row) -> Key:
    return row["call_id"], row["attempt"], row["choice"]


def call(key: Key) -> str:
    return f"call `{key[0]}`" + (f" (attempt {key[1]}, choice {key[2]})" if key[1] or key[2] else "")


def check_alone(view: View, options: Options) -> bool:
    """Everything that needs no log; False when it is no tree, so that nothing can be followed in it."""
    if view.row["skipped"] is not None:
        empty = not (view.nodes.count or view.links or view.paths)
        view.complaints.require(empty, "skipped_rows", "was skipped and has rows all the same")
        return False
    if not _check_tree(view):
        return False
    _check_lengths(view)
    _check_links(view)
    _check_paths(view, options)
    _check_sums(view)
    return True


def _check_tree(view: View) -> bool:
    """Numbers without gaps, parents before children, depths that add up, no two ways on with one id."""
    nodes, say = view.nodes, view.complaints
    if nodes.ids != list(range(nodes.count)):
        say.require(False, "node_ids", "its node ids are not 0, 1, 2, ...")
        return False
    ways: set[tuple[int | None, int]] = set()
    whole = True
    for node, parent in enumerate(nodes.parents):
        above = parent is None or 0 <= parent < node
        say.require(above, "parents", f"node {node} stands before its parent {parent}")
        whole = whole and above
        if not above:
            continue
        say.require(nodes.depths[node] == nodes.end(parent), "depth", f"node {node} has a wrong depth")
        tokens = nodes.tokens[node]
        if tokens is not None and len(tokens):
            way = (parent, int(tokens[0]))
            say.require(way not in ways, "siblings", f"node {node} begins like another child of {parent}")
            ways.add(way)
    for leaf in (leaf for link in view.links.values() for leaf in (link["prompt_node"], link["output_node"])):
        there = leaf is None or 0 <= leaf < nodes.count
        say.require(there, "unknown_node", f"a link names node {leaf}")
        whole = whole and there
    return whole


def _check_lengths(view: View) -> None:
    nodes, say = view.nodes, view.complaints
    for node, length in enumerate(nodes.lengths):
        tokens, mask, logprobs = nodes.tokens[node], nodes.masks[node], nodes.logprobs[node]
        if view.row["exact"]:
            fits = tokens is not None and len(tokens) == length > 0
        else:
            fits = tokens is None and mask is None and logprobs is None and length > 0
        say.require(fits, "length", f"node {node} has not the tokens that its length says")
        say.require(mask is None or len(mask) == length, "target_length", f"targets of node {node}")
        say.require(logprobs is None or len(logprobs) == length, "logprobs_length", f"node {node}")
        trained = nodes.targets[node] > 0
        say.require(not trained or logprobs is not None, "logprobs_missing", f"node {node} is trained")
        say.require(not trained or nodes.sampled[node], "given_target", f"node {node} was not sampled")
        inside = all(0 <= span["start"] < span["end"] <= length for span in nodes.spans[node])
        say.require(inside, "version_spans", f"node {node} has version spans outside of it")


def _check_links(view: View) -> None:
    """Links and nodes of one call agree, and origins are calls of the tree."""
    nodes, say = view.nodes, view.complaints
    roles = {link["context_id"]: link["role"] for link in view.links.values()}
    trained: Counter[Key] = Counter()
    for node, owner in enumerate(nodes.owners):
        link = view.links.get(owner)
        say.require(
            link is not None, "unknown_call", f"node {node} belongs to {call(owner)}, which has no link"
        )
        if link is None:
            continue
        trained[owner] += nodes.targets[node]
        say.require(nodes.causes[node] == link["cause"], "cause", f"node {node} and its call differ")
        role = roles.get(nodes.contexts[node])
        say.require(
            nodes.roles[node] == role, "role", f"node {node} and its context {nodes.contexts[node]} differ"
        )
        same = not nodes.sampled[node] or nodes.contexts[node] == link["context_id"]
        say.require(same, "context", f"node {node} was sampled in another context than its call")
    for key, link in view.links.items():
        say.require(link["targets"] == trained[key], "sums", f"{call(key)} has {trained[key]} targets")
        say.require(
            roles[link["context_id"]] == link["role"], "role", f"context {link['context_id']} has two roles"
        )
        if link["origin_call_id"] is None:
            continue
        origin = view.links.get((link["origin_call_id"], link["origin_attempt"], link["origin_choice"]))
        known = origin is not None and origin["context_id"] == link["origin_context_id"]
        say.require(
            known, "origin", f"{call(key)} comes from a call that is not there, or not in that context"
        )


def _check_paths(view: View, options: Options) -> None:
    nodes, say = view.nodes, view.complaints
    last = _last_targets(nodes)
    covered: set[int] = set()
    whole: Counter[int] = Counter()
    for number, path in enumerate(view.paths):
        leaf, what = path["leaf_node"], f"trajectory {path['trajectory_id']}"
        if not 0 <= leaf < nodes.count:
            say.require(False, "unknown_node", f"{what} ends in node {leaf}")
            continue
        whole[path["slot"]] += not path["stub"]
        new = _up_to(nodes, leaf, covered)
        covered.update(new)
        targets = sum(nodes.targets[node] for node in new)
        say.require(path["trajectory_id"] == number, "trajectory_ids", f"{what} stands in place {number}")
        say.require(path["tokens"] == nodes.end(leaf), "sums", f"{what} is {nodes.end(leaf)} tokens long")
        say.require(path["targets"] == targets, "sums", f"{what} brings {targets} targets")
        end = last[leaf]
        role = nodes.roles[leaf if end is None else end]
        say.require(path["role"] == role, "role", f"{what} has not the role of its last target")
        side = path["role"] == "side" and options.rule is not Rule.ALL
        say.require(not side, "side", f"{what} is of a side call")
    fits = len(whole) <= options.cap or options.rule is Rule.ALL
    say.require(fits, "cap", f"{len(whole)} slots are taken, the cap is {options.cap}")
    say.require(all(count == 1 for count in whole.values()), "slots", "a slot is more or less than one path")
    right = [node in covered for node in range(nodes.count)] == nodes.admitted
    say.require(right, "admitted", "nodes are admitted that are on no trajectory, or the other way round")


def _last_targets(nodes: Nodes) -> list[int | None]:
    """The last node with targets on the path to each node."""
    last: list[int | None] = []
    for node, parent in enumerate(nodes.parents):
        last.append(node if nodes.targets[node] else None if parent is None else last[parent])
    return last


def _up_to(nodes: Nodes, leaf: int, covered: set[int]) -> list[int]:
    path = []
    node: int | None = leaf
    while node is not None and node not in covered:
        path.append(node)
        node = nodes.parents[node]
    return path


def _check_sums(view: View) -> None:
    """The execution's own row is the sum of its others."""
    nodes, links, row = view.nodes, view.links.values(), view.row
    sampled = sum(length for length, drawn in zip(nodes.lengths, nodes.sampled, strict=True) if drawn)
    kept = sum(count for count, inside in zip(nodes.targets, nodes.admitted, strict=True) if inside)
    sums = {
        "calls": len(links),
        "contexts": len({link["context_id"] for link in links}),
        "prompt_tokens": sum(link["prompt_tokens"] for link in links),
        "tree_tokens": sum(nodes.lengths),
        "sampled_tokens": sampled,
        "targets": sum(nodes.targets),
        "kept_targets": kept,
        "trajectories": len({path["slot"] for path in view.paths}),
        "quarantined": sum(link["confidence"] == "quarantined" for link in links),
        "causes": dict(Counter(link["cause"] for link in links)),
    }
    for name, found in sums.items():
        view.complaints.require(row[name] == found, "sums", f"{name} is {row[name]}, its rows make {found}")
    for name, found in (("left_out", sum(nodes.targets) - kept), ("untrained", sampled - sum(nodes.targets))):
        told = sum(row[name].values())
        view.complaints.require(told == found, "sums", f"{name} adds up to {told}, its rows make {found}")
