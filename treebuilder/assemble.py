"""Nodes, trajectories and sums from what the other modules decided. Pure."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gyre.treebuilder.lineage.turn import Context, Try
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.select import Admitted, Leaf, Unit, select
from gyre.treebuilder.targets import Targets
from gyre.treebuilder.tokens.prefix import Position, PrefixTree, Run
from gyre.treebuilder.trees import ExecutionTree, Ids, Link, Node, Role, Trajectory

_WINDOW = 8
"""Ids shown on each side of a prefix break."""


def assemble(
    made: ExecutionTree,
    tree: PrefixTree,
    tries: list[Try],
    contexts: list[Context],
    targets: Targets,
    open_tries: set[int],
    options: Options,
) -> None:
    """Fill in `made`, whose links are there already."""
    numbers = _make_nodes(made, tree, tries, targets)
    _finish_links(made, tries, targets, numbers)
    _show_breaks(made.links, tries, tree)
    weights = {node.node_id: len(node.token_ids) for node in made.nodes if node.target}
    made.sampled_tokens, made.targets = targets.sampled, sum(weights.values())
    made.untrained = dict(sorted(targets.untrained.items()))
    units = _units(made, tries, contexts, open_tries, numbers, weights, options.rule)
    name = f"{made.execution_id}/{made.execution_attempt}"
    _admit(made, select(units, weights, options, name), weights)


def _make_nodes(made: ExecutionTree, tree: PrefixTree, tries: list[Try], targets: Targets) -> dict[int, int]:
    """Append a node per run; gives the node's number by the run's identity."""
    numbers: dict[int, int] = {}
    roles = {link.context_id: link.role for link in made.links}
    for run in tree.runs():
        sampled = id(run) in targets.owners
        one = tries[targets.owners.get(id(run), run.owner)]
        link = made.links[one.index]
        # A prompt belongs to the context of its turn, even when the try that first had it does not.
        context = link.context_id if sampled or one.turn is None else one.turn.context.number
        node = Node(
            node_id=len(made.nodes),
            parent_id=numbers.get(id(run.parent)),
            depth=run.depth,
            token_ids=run.ids,
            call=one.call.key,
            context_id=context,
            role=roles[context],
            cause=link.cause,
            sampled=sampled,
            target=id(run) in targets.trained,
        )
        if sampled:
            _add_capture(node, run, one)
        numbers[id(run)] = node.node_id
        made.nodes.append(node)
    return numbers


def _add_capture(node: Node, run: Run, one: Try) -> None:
    """Log-probabilities and versions of the part of the output that this run is."""
    assert one.prompt_end is not None
    start = run.depth - one.prompt_end.depth
    logprobs, output = one.call.logprobs, one.call.output
    if logprobs is not None and output is not None and len(logprobs) == len(output):
        node.logprobs = logprobs[start : start + run.size]
    for version, first, last in one.call.version_spans:
        first, last = max(first - start, 0), min(last - start, run.size)
        if first < last:
            node.version_spans.append((version, first, last))


def _finish_links(made: ExecutionTree, tries: list[Try], targets: Targets, numbers: dict[int, int]) -> None:
    by_call = {link.call: link for link in made.links}
    for one, link in zip(tries, made.links, strict=True):
        if one.prompt_end is not None and one.output_end is not None:
            link.prompt_node = numbers.get(id(one.prompt_end.run))
            link.output_node = numbers.get(id(one.output_end.run))
        link.untrained = targets.reasons.get(one.index)
    for node in made.nodes:
        if node.target:
            by_call[node.call].targets += len(node.token_ids)
            by_call[node.call].untrained = None


def _show_breaks(links: list[Link], tries: list[Try], tree: PrefixTree) -> None:
    """Put the ids on both sides of each prefix break into its link."""
    for one, link in zip(tries, links, strict=True):
        origin = one.turn.origin if one.turn is not None else None
        end = None if origin is None else origin.output_end
        if link.break_offset is not None and end is not None and one.prompt_end is not None:
            link.break_before = _window(tree, end, link.break_offset)
            link.break_after = _window(tree, one.prompt_end, link.break_offset)


def _window(tree: PrefixTree, end: Position, offset: int) -> Ids:
    """Up to 8 ids of the path to `end`, from `offset` on."""
    pieces = []
    for run in tree.path(tree.up(end, min(offset + _WINDOW, end.depth))):
        if run.end > offset:
            pieces.append(run.ids[max(offset - run.depth, 0) : offset + _WINDOW - run.depth])
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int32)


def _units(
    made: ExecutionTree,
    tries: list[Try],
    contexts: list[Context],
    open_tries: set[int],
    numbers: dict[int, int],
    weights: dict[int, int],
    rule: Rule,
) -> list[Unit]:
    """What could take a slot: each context with its stubs; by the literal rule each leaf."""
    paths = _Paths(made.nodes, weights)
    units = []
    for context in contexts:
        ends = [one for turn in context.turns for one in turn.tries if one.index not in open_tries]
        leaves = paths.leaves(context.tip.kept, ends, numbers)
        if rule is Rule.PAPER:
            units += [Unit(leaf) for leaf in leaves]
        elif leaves:
            units.append(Unit(leaves[0], leaves[1:]))
    alone = [paths.leaves(tries[index], [], numbers) for index in sorted(open_tries)]
    units += [Unit(leaf) for leaves in alone for leaf in leaves]
    if rule is Rule.PAPER:
        units = [unit for unit in units if not paths.has_child(unit.leaf.node)]
    return units


class _Paths:
    """Paths as lists of nodes with targets; other nodes do not matter to the choice."""

    def __init__(self, nodes: list[Node], weights: dict[int, int]) -> None:
        self._nodes = nodes
        self._inner = {node.parent_id for node in nodes}
        self._weighted: list[int | None] = []
        """The nearest node with targets on the way up, the node itself included."""
        for node in nodes:
            above = None if node.parent_id is None else self._weighted[node.parent_id]
            self._weighted.append(node.node_id if node.node_id in weights else above)

    def has_child(self, node: int) -> bool:
        return node in self._inner

    def leaves(self, tip: Try, others: list[Try], numbers: dict[int, int]) -> list[Leaf]:
        """The path to the output of `tip`, then those outputs that are not on a path before them."""
        found: list[Leaf] = []
        covered: set[int] = set()
        for one in [tip, *reversed(others)]:
            if one.output_end is None or (node := numbers.get(id(one.output_end.run))) is None:
                continue
            path = self._path(node, covered)
            if path or not found:
                found.append(self._leaf(node))
        return [leaf for leaf in found if leaf.path] or found[:1]

    def _path(self, node: int, covered: set[int]) -> list[int]:
        """Nodes with targets up from `node` that no earlier path covers."""
        at, new = self._weighted[node], []
        while at is not None and at not in covered:
            covered.add(at)
            new.append(at)
            parent = self._nodes[at].parent_id
            at = None if parent is None else self._weighted[parent]
        return new

    def _leaf(self, node: int) -> Leaf:
        path = self._path(node, set())
        last = self._nodes[path[0]] if path else self._nodes[node]
        return Leaf(node, path, last.context_id, last.role)


def _admit(made: ExecutionTree, kept: list[Admitted], weights: dict[int, int]) -> None:
    left = dict(weights)
    for number, one in enumerate(kept):
        leaf = made.nodes[one.leaf.node]
        at: Node | None = leaf
        while at is not None and not at.admitted:
            at.admitted = True
            left.pop(at.node_id, None)
            at = None if at.parent_id is None else made.nodes[at.parent_id]
        made.trajectories.append(
            Trajectory(
                trajectory_id=number,
                slot=one.slot,
                stub=one.stub,
                leaf_node=leaf.node_id,
                context_id=one.leaf.context_id,
                role=one.leaf.role,
                tokens=leaf.depth + len(leaf.token_ids),
                targets=one.targets,
            )
        )
    made.kept_targets = made.targets - sum(left.values())
    reasons: Counter[str] = Counter()
    for node_id, count in left.items():
        role = made.nodes[node_id].role
        reasons["side" if role is Role.SIDE else f"cap:{role}"] += count
    made.left_out = dict(sorted(reasons.items()))
