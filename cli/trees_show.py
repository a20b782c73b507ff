"""`gyre-trees show`: an execution's contexts as a tree in the terminal, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gyre.cli.output import counted

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from gyre.treebuilder.summary import ExecutionSummary
    from gyre.treebuilder.trees import CallKey, ExecutionTree, Ids, Link
    from gyre.treebuilder.views.show import ContextView

STYLES = {
    "main": "bold cyan",
    "main_summary": "cyan",
    "sub": "bold magenta",
    "sub_summary": "magenta",
    "side": "dim",
    "unknown": "bold yellow",
}
PIPE_WIDTH = 200


Spell = Callable[["Ids"], str]
"""Token ids as text."""


class Worth(NamedTuple):
    """What is computed of it when trees are read."""

    advantage: float | None
    left_out: str | None


def print_tree(
    summary: ExecutionSummary,
    tree: ExecutionTree,
    worth: Worth,
    calls: bool,
    width: int | None,
    spell: Spell | None = None,
) -> None:
    """Coloured at a terminal, plain text in a pipe; `width` columns, or the terminal's.

    With `calls` both sides of each prefix break are shown, as text if there is something to `spell` ids.
    """
    from rich.console import Console

    from gyre.treebuilder.views.show import contexts_of

    console = Console(file=sys.stdout, highlight=False, soft_wrap=width is None and not sys.stdout.isatty())
    if width is not None:
        console.width = width
    elif not sys.stdout.isatty():
        console.width = PIPE_WIDTH
    for line in _header(summary, tree, worth):
        console.print(line)
    console.print()
    for view in contexts_of(tree):
        console.print(_branch(view, tree, calls, spell or _numbers))


def as_json(summary: ExecutionSummary, tree: ExecutionTree, worth: Worth, calls: bool) -> dict[str, Any]:
    from dataclasses import asdict

    from gyre.treebuilder.views.show import contexts_of, walk

    contexts = [_context(depth, view, calls) for depth, view in walk(contexts_of(tree))]
    execution = asdict(summary) | {"kept_share": summary.kept_share}
    said = {"advantage": worth.advantage, "not_trained": worth.left_out}
    return {"execution": execution, **said, "contexts": contexts}


def _header(summary: ExecutionSummary, tree: ExecutionTree, worth: Worth) -> list[Text]:
    from rich.text import Text

    name = Text(summary.execution_id, "bold")
    if summary.execution_attempt or summary.superseded:
        name.append(f" attempt {summary.execution_attempt}", "bold")
    said = [
        f"score {summary.score:g}" if summary.score is not None else "no score",
        f"advantage {worth.advantage:+.3f}" if worth.advantage is not None else "",
        summary.outcome or "",
        f"task {summary.task}" if summary.task is not None else "",
        f"group {summary.group}" if summary.group is not None else "",
        f"not trained: {worth.left_out}" if worth.left_out is not None else "",
    ]
    lines = [name.append("  " + " · ".join(filter(None, said)), "not bold")]
    lines += [Text(line) for line in _totals(summary, tree)]
    lines += [Text(f"odd: {problem}", "yellow") for problem in summary.problems]
    return lines


def _totals(summary: ExecutionSummary, tree: ExecutionTree) -> list[str]:
    unit = "tokens" if summary.exact else "message blocks"
    prompt = sum(link.prompt_tokens for link in tree.links)
    shared = sum(link.shared_tokens for link in tree.links)
    facts = [
        counted(summary.calls, "call"),
        counted(summary.contexts, "context"),
        f"{prompt:,} prompt {unit}, {_share(shared, prompt)} shared",
        f"{summary.tree_tokens:,} in the tree",
    ]
    if not summary.exact:
        return [" · ".join(facts), "built from texts: for analysis, never trained"]
    facts += [f"{summary.sampled_tokens:,} sampled", _targets(summary.targets, summary.kept_targets)]
    lines = [" · ".join(facts)]
    for what, numbers in (("not trained", summary.untrained), ("left out", summary.left_out)):
        if numbers:
            lines.append(f"{what}: " + ", ".join(f"{n:,} {why}" for why, n in sorted(numbers.items())))
    return lines


def _branch(view: ContextView, tree: ExecutionTree, calls: bool, spell: Spell) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    style = STYLES[view.role.value]
    label = Text.assemble((f"{view.role} #{view.context_id}", style), "  ", (_cause(view), "italic"))
    label.append("  " + " · ".join(_facts(view, tree)))
    for note, colour in _notes(view, tree):
        label.append(f"\n  {note}", colour)
    branch = Tree(label, guide_style="dim")
    places: dict[CallKey | None, Tree] = {}
    for link in view.calls if calls else ():
        places[link.call] = branch.add(Text("  ".join(_call_facts(link, spell)), "dim"))
    for below in view.below:
        places.get(below.origin, branch).children.append(_branch(below, tree, calls, spell))
    return branch


def _cause(view: ContextView) -> str:
    """How it came about: `delegation (blocking) from #0`, `compaction (restart, kept_tail) after #0`."""
    finer = ", ".join(filter(None, (view.step, view.family)))
    text = f"{view.cause} ({finer})" if finer else view.cause.value
    if view.follows is not None:
        return f"{text} after #{view.follows}"
    if view.origin_context_id is None:
        return text
    return f"{text} from #{view.origin_context_id}"


def _facts(view: ContextView, tree: ExecutionTree) -> list[str]:
    unit = "tokens" if tree.exact else "blocks"
    facts = [
        counted(len(view.calls), "call"),
        f"{view.tokens:,} {unit}",
        f"{_share(view.shared_tokens, view.prompt_tokens)} shared",
    ]
    if not tree.exact:
        return facts
    facts.append(_targets(view.targets, view.kept))
    if view.slots:
        numbers = ", ".join(str(slot) for slot in view.slots)
        facts.append(f"trajectory {numbers}")
    if view.stubs:
        facts.append(counted(view.stubs, "stub"))
    return facts


def _notes(view: ContextView, tree: ExecutionTree) -> Iterable[tuple[str, str]]:
    """What is not as it should be, a line each."""
    if view.reason is not None:
        yield f"{view.confidence}: {view.reason}", "yellow"
    breaks: dict[str, list[Link]] = {}
    for link in view.breaks:
        breaks.setdefault(link.cause.value, []).append(link)
    for cause, links in breaks.items():
        yield f"{cause}: {counted(len(links), 'call')}, {_places(links)}", ""
    if view.retries and view.cause != "retry":
        yield counted(view.retries, "try", "tries") + " beside the one that was kept", ""
    for why, count in sorted(view.untrained.items()):
        yield f"not trained: {why}, {counted(count, 'call')}", ""
    mine = {link.call for link in view.calls}
    for other in tree.disagreements:
        if other.call in mine:
            yield f"headers say {other.stated}, tokens {other.found}: {_call(other.call)}", "yellow"


def _places(links: Sequence[Link], most: int = 4) -> str:
    """Where the prompts left what was there before, the first few."""
    at = [f"{link.break_offset:,}" for link in links if link.break_offset is not None]
    if not at:
        return "place unknown"
    return f"at token {', '.join(at[:most])}" + (", ..." if len(at) > most else "")


def _call_facts(link: Link, spell: Spell) -> list[str]:
    facts = [_call(link.call), link.cause.value]
    if link.break_offset is not None:
        sides = (spell(ids) for ids in (link.break_before, link.break_after) if ids is not None)
        facts.append(f"at token {link.break_offset:,}: {' became '.join(sides)}")
    facts.append(f"{link.prompt_tokens:,} ({link.shared_tokens:,} shared) + {link.output_tokens:,}")
    facts.append(f"{link.targets:,} targets" if link.untrained is None else f"not trained: {link.untrained}")
    facts.append("; ".join(f"{one.witness}: {one.detail}" for one in link.evidence))
    return facts


def _numbers(ids: Ids) -> str:
    return f"[{' '.join(map(str, ids))}]"


def _call(key: CallKey) -> str:
    """Its id, and which try and answer where there are several."""
    more = f"{key.attempt}" if key.attempt or key.choice else ""
    return f"{key.call_id}/{more}/{key.choice}" if more else key.call_id


def _targets(targets: int, kept: int) -> str:
    if not targets:
        return "no targets"
    amount = "all" if kept == targets else f"{kept:,}" if kept else "none"
    return f"{counted(targets, 'target')}, {amount} kept"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _context(depth: int, view: ContextView, calls: bool) -> dict[str, Any]:
    context = {
        "context_id": view.context_id,
        "depth": depth,
        "role": view.role,
        "cause": view.cause,
        "step": view.step,
        "family": view.family,
        "confidence": view.confidence,
        "reason": view.reason,
        "origin": _key(view.origin),
        "origin_context_id": view.origin_context_id,
        "follows": view.follows,
        "calls": len(view.calls),
        "tokens": view.tokens,
        "prompt_tokens": view.prompt_tokens,
        "shared_tokens": view.shared_tokens,
        "output_tokens": view.output_tokens,
        "targets": view.targets,
        "kept_targets": view.kept,
        "slots": view.slots,
        "stubs": view.stubs,
        "retries": view.retries,
        "breaks": [_break(link) for link in view.breaks],
        "untrained": view.untrained,
    }
    return context | ({"links": [_link(link) for link in view.calls]} if calls else {})


def _break(link: Link) -> dict[str, Any]:
    sides = [None if ids is None else ids.tolist() for ids in (link.break_before, link.break_after)]
    place = {"call": _key(link.call), "cause": link.cause, "offset": link.break_offset}
    return place | {"before": sides[0], "after": sides[1]}


def _link(link: Link) -> dict[str, Any]:
    return {
        "call": _key(link.call),
        "cause": link.cause,
        "confidence": link.confidence,
        "origin": _key(link.origin),
        "break_offset": link.break_offset,
        "prompt_tokens": link.prompt_tokens,
        "shared_tokens": link.shared_tokens,
        "output_tokens": link.output_tokens,
        "targets": link.targets,
        "untrained": link.untrained,
        "evidence": [one._asdict() for one in link.evidence],
    }


def _key(call: CallKey | None) -> dict[str, Any] | None:
    return None if call is None else call._asdict()
