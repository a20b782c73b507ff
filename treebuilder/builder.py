"""ENTRY: the calls of one execution in, its tree out. Pure; the same code online and offline.

    builder = Builder("run-7", bodies=messages)
    for call in calls:              # in commit order: a parent before its children
        builder.add(call)
    tree = builder.tree(Options(cap=5))

`add` puts token ids where they belong and proves them against the digest taken at capture. `tree` reads
the story out of them: turns and contexts (`lineage.trace`), what began each context (`lineage.resolve`),
roles, targets, the choice of trajectories.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from gyre.treebuilder.assemble import assemble
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.lineage.headers import hold_against
from gyre.treebuilder.lineage.labels import Labels
from gyre.treebuilder.lineage.links import make_links
from gyre.treebuilder.lineage.requests import with_requests
from gyre.treebuilder.lineage.resolve import resolve
from gyre.treebuilder.lineage.roles import roles_of
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.textual import textual_tree
from gyre.treebuilder.lineage.trace import trace
from gyre.treebuilder.lineage.turn import Try
from gyre.treebuilder.options import Options
from gyre.treebuilder.targets import find_targets
from gyre.treebuilder.tokens.match import Ends, as_bytes, path_hasher
from gyre.treebuilder.tokens.prefix import Position, PrefixTree
from gyre.treebuilder.trees import CallKey, ExecutionTree, Ids


class Builder:
    """One attempt of one execution."""

    def __init__(
        self, execution_id: str, execution_attempt: int = 0, *, bodies: Mapping[str, bytes] | None = None
    ) -> None:
        """`bodies` gives the JSON of a message by its address, asked only where ids leave a link open."""
        self.execution_id = execution_id
        self.execution_attempt = execution_attempt
        self._tree = PrefixTree()
        self._ends = Ends()
        self._texts = Texts({} if bodies is None else bodies)
        self._tries: list[Try] = []
        self._known: dict[CallKey, Try] = {}
        self._hashers: dict[CallKey, xxhash.xxh3_128] = {}
        """State after prompt and output: the next prompt is proven by hashing what is new in it."""
        self._after_prompt: dict[CallKey, xxhash.xxh3_128] = {}
        """State after the prompt alone, for templates that render the output otherwise."""

    def add(self, call: Call) -> None:
        """Take the next call. Linear in its new tokens, or in all of them where it came whole.

        Raises:
            ExecutionError: the call contradicts earlier ones (missing parent, a digest that does not fit).
        """
        earlier = self._known.get(call.key)
        if earlier is not None:
            if not _alike(earlier.call, call):
                raise ExecutionError(f"call `{_name(call.key)}` is recorded twice with different content")
            return
        one = Try(len(self._tries), call)
        if call.suffix is not None and call.delivery_of is None:
            self._put(one, call.suffix)
        self._tries.append(one)
        self._known[call.key] = one
        self._texts.add(call)

    def tree(self, options: Options | None = None) -> ExecutionTree:
        """The tree of all calls so far; more may be added afterwards.

        Raises:
            ExecutionError: the messages of a call cannot be put together.
        """
        calls = with_requests([one.call for one in self._tries])
        tree, tries = self._tree, list(map(self._settled, self._tries, calls))
        exact = any(one.prompt_end is not None for one in tries)
        if not exact:
            tree = textual_tree(tries, self._texts)
        labels = Labels(tries)
        contexts = resolve(trace(tries, tree, self._texts), tries, tree, self._texts, labels)
        links = make_links(contexts, tries, roles_of(contexts))
        disagreements = hold_against(links.links, tries, labels)
        targets = find_targets(tries, contexts, links.open_tries, tree, exact)
        made = ExecutionTree(self.execution_id, self.execution_attempt, exact, [], links.links, [])
        made.disagreements, made.problems = disagreements, labels.problems
        assemble(made, tree, tries, contexts, targets, links.open_tries, options or Options())
        return made

    def _put(self, one: Try, suffix: Ids) -> None:
        call = one.call
        at, hasher = self._entrance(call, suffix)
        new = suffix[at.depth - call.shared :]
        hasher.update(as_bytes(new))
        digest = hasher.digest()
        if call.prompt_digest is not None and digest != call.prompt_digest:
            raise ExecutionError(f"call `{_name(call.key)}`: its prompt ids are not those that were captured")
        one.prompt_end, known = self._tree.grow(at, new, one.index)
        one.shared = at.depth + known
        if one.prompt_end.depth:
            self._ends.add(digest, one.prompt_end, int(_last(one.prompt_end)))
        self._after_prompt[call.key] = hasher.copy()
        self._put_output(one, hasher)

    def _entrance(self, call: Call, suffix: Ids) -> tuple[Position, xxhash.xxh3_128]:
        """Where the ids that may be new begin, and the state of the digest there."""
        if not call.shared:
            at, hasher = self._ends.find(suffix)
            return at or self._tree.start, hasher
        parent = self._known.get(call.parent) if call.parent is not None else None
        if parent is None or parent.output_end is None:
            raise ExecutionError(f"call `{_name(call.key)}`: the call before its own ids is missing")
        length = parent.output_end.depth
        if call.shared > length:
            raise ExecutionError(f"call `{_name(call.key)}`: the call before its own ids is too short")
        at = self._tree.up(parent.output_end, call.shared)
        if call.shared == length:
            return at, self._hashers[parent.call.key].copy()
        known = parent.prompt_end.depth if parent.prompt_end is not None else 0
        if call.shared < known or parent.call.output is None:
            return at, path_hasher(self._tree, at)
        hasher = self._after_prompt[parent.call.key].copy()
        hasher.update(as_bytes(parent.call.output[: call.shared - known]))
        return at, hasher

    def _put_output(self, one: Try, hasher: xxhash.xxh3_128) -> None:
        assert one.prompt_end is not None
        one.output_end = one.prompt_end
        output = one.call.output
        if output is not None and len(output):
            one.output_end = self._tree.sample(one.prompt_end, output, one.index)
            hasher.update(as_bytes(output))
            self._ends.add(hasher.digest(), one.output_end, int(output[-1]))
        self._hashers[one.call.key] = hasher

    def _settled(self, one: Try, call: Call) -> Try:
        """A copy for one reading of the story, in the tree as it is now."""
        ends = [None if end is None else self._tree.settle(end) for end in (one.prompt_end, one.output_end)]
        return Try(one.index, call, ends[0], ends[1], one.shared)


def _last(end: Position) -> int:
    return int(end.run.ids[end.depth - end.run.depth - 1])


def _alike(one: Call, other: Call) -> bool:
    """Whether two rows of one key say the same."""
    return (
        one.prompt_digest == other.prompt_digest
        and one.outcome == other.outcome
        and one.response == other.response
        and bytes(as_bytes(one.output) if one.output is not None else b"")
        == bytes(as_bytes(other.output) if other.output is not None else b"")
    )


def _name(key: CallKey) -> str:
    more = f" attempt {key.attempt}" if key.attempt else ""
    return f"{key.call_id}{more}" + (f" choice {key.choice}" if key.choice else "")
