"""An execution as a person looks at it: its contexts, who works for whom, what of each is trained. Pure.

What goes on with the same agent's work (a history that begins anew from a summary, or with old tool
results cleared) stands beside what it follows; what is done for a context (a sub-agent, a summary,
something on the side) stands below it. So a run that compacts thirty times does not lean thirty times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gyre.treebuilder.trees import CallKey, Cause, Confidence, ExecutionTree, Link, Role

BREAKS = (Cause.REASONING_STRIPPED, Cause.RETOKENIZED, Cause.TOOLS_CHANGED, Cause.REWRITTEN)
"""The context goes on, but not from the tokens that it had."""


@dataclass(slots=True)
class ContextView:
    """One context, told by its first call's link; numbers are of all its calls."""

    context_id: int
    role: Role
    cause: Cause
    step: str | None
    family: str | None
    confidence: Confidence
    reason: str | None
    """Why it is quarantined."""
    origin: CallKey | None
    origin_context_id: int | None
    follows: int | None = None
    """The context whose work it goes on with; None for one that stands below its origin."""
    calls: list[Link] = field(default_factory=list)
    """In commit order."""
    targets: int = 0
    kept: int = 0
    """Targets on admitted paths."""
    slots: list[int] = field(default_factory=list)
    stubs: int = 0
    below: list[ContextView] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """How long it became."""
        return max((link.prompt_tokens + link.output_tokens for link in self.calls), default=0)

    @property
    def prompt_tokens(self) -> int:
        return sum(link.prompt_tokens for link in self.calls)

    @property
    def shared_tokens(self) -> int:
        return sum(link.shared_tokens for link in self.calls)

    @property
    def output_tokens(self) -> int:
        return sum(link.output_tokens for link in self.calls)

    @property
    def retries(self) -> int:
        return sum(link.cause == Cause.RETRY for link in self.calls)

    @property
    def breaks(self) -> list[Link]:
        return [link for link in self.calls if link.cause in BREAKS]

    @property
    def untrained(self) -> dict[str, int]:
        """Calls whose output is context, by reason."""
        return dict(Counter(link.untrained for link in self.calls if link.untrained is not None))


def contexts_of(tree: ExecutionTree) -> list[ContextView]:
    """Those at the top, in order of their first calls; the others stand in their `below`."""
    views = _views(tree)
    _count_targets(tree, views)
    top: list[ContextView] = []
    for view in views.values():
        view.follows = _followed(view, views)
        above = _above(view, views)
        (top if above is None else views[above].below).append(view)
    return top


def walk(views: Iterable[ContextView], depth: int = 0) -> Iterator[tuple[int, ContextView]]:
    """(depth, context) from top to bottom, as it is shown."""
    for view in views:
        yield depth, view
        yield from walk(view.below, depth + 1)


def _views(tree: ExecutionTree) -> dict[int, ContextView]:
    views: dict[int, ContextView] = {}
    for context_id, links in _by_context(tree.links).items():
        # A retry may come before the try that was kept, and says nothing of the context.
        first = next((link for link in links if link.cause != Cause.RETRY), links[0])
        views[context_id] = ContextView(
            context_id=context_id,
            role=first.role,
            cause=first.cause,
            step=first.step,
            family=first.family,
            confidence=first.confidence,
            reason=first.reason,
            origin=first.origin,
            origin_context_id=first.origin_context_id,
            calls=links,
        )
    return views


def _by_context(links: Iterable[Link]) -> dict[int, list[Link]]:
    found: dict[int, list[Link]] = defaultdict(list)
    for link in links:
        found[link.context_id].append(link)
    return found


def _count_targets(tree: ExecutionTree, views: dict[int, ContextView]) -> None:
    for node in tree.nodes:
        if node.target and node.context_id in views:
            view = views[node.context_id]
            view.targets += len(node.token_ids)
            view.kept += len(node.token_ids) * node.admitted
    for trajectory in tree.trajectories:
        if trajectory.context_id in views:
            view = views[trajectory.context_id]
            view.stubs += trajectory.stub
            if not trajectory.stub:
                view.slots.append(trajectory.slot)


def _followed(view: ContextView, views: dict[int, ContextView]) -> int | None:
    """The context of the same agent that this one takes over from."""
    origin = views.get(-1 if view.origin_context_id is None else view.origin_context_id)
    if origin is None or origin is view:
        return None
    if view.cause == Cause.EDIT:
        return origin.context_id
    if view.cause != Cause.COMPACTION or view.step == "summary":
        return None
    if origin.cause == Cause.COMPACTION and origin.step == "summary":
        # What was summarised, where that is known.
        return origin.context_id if origin.origin_context_id is None else origin.origin_context_id
    return origin.context_id


def _above(view: ContextView, views: dict[int, ContextView]) -> int | None:
    """The context it stands below; None at the top. Origins that lead in a circle end at the top."""
    seen = {view.context_id}
    at = view
    while (followed := _followed(at, views)) is not None and followed in views and followed not in seen:
        seen.add(followed)
        at = views[followed]
    above = at.origin_context_id if _followed(at, views) is None else None
    return above if above in views and not _leads_to(above, view, views) else None


def _leads_to(start: int, view: ContextView, views: dict[int, ContextView]) -> bool:
    """Whether going up from `start` comes by `view`."""
    seen: set[int] = set()
    at: int | None = start
    while at is not None and at in views and at not in seen:
        if at == view.context_id:
            return True
        seen.add(at)
        at = views[at].origin_context_id
    return False
