"""What a tree has to hold whatever its links are: found from the rows alone, token by token."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from gyre.treebuilder.trees import CallKey, ExecutionTree, Link, Node
from tests.trees.world.row import Row

Place = int
"""A token with all that stands before it."""


class Places:
    """Numbers for beginnings of sequences."""

    def __init__(self) -> None:
        self._known: dict[tuple[Place, int], Place] = {}

    def walk(self, ids: list[int]) -> list[Place]:
        at, places = -1, []
        for token in ids:
            at = self._known.setdefault((at, token), len(self._known))
            places.append(at)
        return places


class Sampled(NamedTuple):
    unique: int
    """Tokens that were sampled, the same beginning counted once."""
    targets: int
    """Those that some trainable call sampled."""


def sampled(rows: list[Row], labels: bool) -> Sampled:
    places = Places()
    drawn: set[Place] = set()
    targets: set[Place] = set()
    for row in rows:
        if row.has_ids and row.reply:
            own = places.walk(row.path.ids)[len(row.prompt.ids) :]
            drawn.update(own)
            if row.trained(labels):
                targets.update(own)
    return Sampled(len(drawn), len(targets))


def violations(tree: ExecutionTree, rows: list[Row]) -> list[str]:
    """What no tree may do."""
    by_key = {row.key: row for row in rows}
    links = {link.call: link for link in tree.links}
    return [
        *_sums(tree),
        *_forks(tree),
        *(text for link in tree.links for text in _path(tree, link, by_key[link.call])),
        *(text for node in tree.nodes for text in _node(node, links, by_key)),
        *_selection(tree),
    ]


def _sums(tree: ExecutionTree) -> list[str]:
    nodes = sum(len(node.token_ids) for node in tree.nodes if node.target)
    drawn = sum(len(node.token_ids) for node in tree.nodes if node.sampled)
    links = sum(link.targets for link in tree.links)
    kept = sum(len(node.token_ids) for node in tree.nodes if node.target and node.admitted)
    found = []
    if not nodes == links == tree.targets:
        found.append(f"targets: nodes {nodes}, links {links}, tree {tree.targets}")
    if tree.kept_targets + sum(tree.left_out.values()) != tree.targets or kept != tree.kept_targets:
        found.append(
            f"kept {tree.kept_targets} ({kept} in nodes), left out {tree.left_out}, of {tree.targets}"
        )
    if drawn != tree.sampled_tokens or tree.targets + sum(tree.untrained.values()) != drawn:
        found.append(f"sampled: nodes {drawn}, tree {tree.sampled_tokens}, untrained {tree.untrained}")
    return found


def _forks(tree: ExecutionTree) -> list[str]:
    """No two children of a node begin alike, and each stands where its parent ends."""
    first = Counter((node.parent_id, int(node.token_ids[0])) for node in tree.nodes)
    found = [
        f"{count} children of {parent} begin with {token}"
        for (parent, token), count in first.items()
        if count > 1
    ]
    for index, node in enumerate(tree.nodes):
        parent = None if node.parent_id is None else tree.nodes[node.parent_id]
        start = 0 if parent is None else parent.depth + len(parent.token_ids)
        ordered = node.node_id == index and (node.parent_id is None or node.parent_id < index)
        if not ordered or node.depth != start:
            found.append(f"node {index} is out of place")
    return found


def _path(tree: ExecutionTree, link: Link, row: Row) -> list[str]:
    """The tokens on the way to a call are those that its engine saw and sampled."""
    if not row.has_ids:
        return [] if link.prompt_node is None else [f"{row.key} has no ids, but a node"]
    found = []
    for node, ids in ((link.prompt_node, row.prompt.ids), (link.output_node, row.path.ids)):
        if node is None or ids_to(tree, node) != ids:
            found.append(f"the path of {row.key} is not what the engine saw")
    if (link.prompt_tokens, link.output_tokens) != (
        len(row.prompt.ids),
        len(row.path.ids) - len(row.prompt.ids),
    ):
        found.append(f"{row.key} counts {link.prompt_tokens} and {link.output_tokens} tokens")
    return found


def ids_to(tree: ExecutionTree, node_id: int) -> list[int]:
    ids: list[int] = np.concatenate([node.token_ids for node in tree.path(node_id)]).tolist()
    return ids


def _node(node: Node, links: dict[CallKey, Link], rows: dict[CallKey, Row]) -> list[str]:
    """A target was sampled by the call that owns it, with these log-probabilities and versions."""
    if not node.target:
        return []
    row, link = rows[node.call], links[node.call]
    start = node.depth - len(row.prompt.ids)
    end = start + len(node.token_ids)
    if not (node.sampled and row.reply and start >= 0 and end <= len(row.reply.sampled.ids)):
        return [f"{node.call} did not sample node {node.node_id}"]
    whole = link.targets == link.output_tokens or not row.continued
    found = [f"{node.call} has targets but is `{link.untrained}`"] if link.untrained and whole else []
    if row.reply.sampled.ids[start:end] != node.token_ids.tolist():
        found.append(f"{node.call} sampled something else than node {node.node_id}")
    logprobs = np.array(row.reply.logprobs[start:end], np.float32)
    if node.logprobs is None or not np.array_equal(node.logprobs, logprobs):
        found.append(f"node {node.node_id} has log-probabilities of something else")
    if _versions(node.version_spans, 0, len(node.token_ids)) != _versions(row.spans, start, end):
        found.append(f"node {node.node_id} has versions {node.version_spans}, not {row.spans} from {start}")
    return found


def _versions(spans: list[tuple[str, int, int]], start: int, end: int) -> list[str | None]:
    named = {i: version for version, first, last in spans for i in range(first, last)}
    return [named.get(i) for i in range(start, end)]


def _selection(tree: ExecutionTree, cap: int = 5) -> list[str]:
    """The cap counts slots, and what is admitted is what admitted paths go through."""
    slots = {path.slot for path in tree.trajectories}
    found = [] if len(slots) <= cap else [f"{len(slots)} slots"]
    through = {node.node_id for path in tree.trajectories for node in tree.path(path.leaf_node)}
    if through != {node.node_id for node in tree.nodes if node.admitted}:
        found.append("admitted nodes are not those of the trajectories")
    if sum(path.targets for path in tree.trajectories) != tree.kept_targets:
        found.append("targets of the trajectories do not add up to those kept")
    return found
