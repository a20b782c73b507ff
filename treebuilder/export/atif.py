"""`atif`: one JSON document per execution in the Agent Trajectory Interchange Format, for viewing.

The document's steps are the main agent's, across compactions: where a history begins anew only what
is new in it is a step. Sub-agents, summary requests and side calls are embedded trajectories, referred
to by the step they came from. Texts are the log's, so the log must still be there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson
import xxhash

from gyre.proxy.errors import LogError
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.export.atif_steps import Steps, first_prompt, refer
from gyre.treebuilder.export.files import whole_folder
from gyre.treebuilder.export.recorded import Recorded
from gyre.treebuilder.export.source import ExportReport, Source
from gyre.treebuilder.summary import ExecutionSummary
from gyre.treebuilder.trees import CallKey, Cause, ExecutionTree, Link

VERSION = "ATIF-v1.7"
"""1.8 adds sound, which is not recorded; 1.7 is read by more."""
BATCH = 8
"""Executions whose texts are in memory at a time."""
LONGEST_NAME = 200
"""File systems take 255."""

Document = dict[str, Any]


def export_atif(
    trees: Source,
    out: Path,
    report: ExportReport,
    *,
    log: str | Path | None,
    force: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    """A folder of documents, `<execution>.json`, later attempts `<execution>~1.json`.

    Raises:
        TreeError: the log is gone, or does not have the calls of the trees.
    """
    summaries = trees.executions()
    skipped = sum(summary.skipped is not None for summary in summaries)
    report.left_out = {"skipped": skipped} if skipped else {}
    pairs = iter(trees)
    with whole_folder(out, force, ".json") as temporary:
        while batch := list(islice(pairs, BATCH)):
            recorded = _read(log or trees.log, {summary.execution_id for summary, _ in batch})
            for summary, tree in batch:
                if not any(link.cause is not Cause.RETRY for link in tree.links):
                    report.left_out["no_calls"] = report.left_out.get("no_calls", 0) + 1
                    continue
                text = orjson.dumps(document_of(summary, tree, recorded), option=orjson.OPT_INDENT_2)
                (temporary / _name(summary)).write_bytes(text)
                report.executions += 1
                report.rows += 1
                report.tokens += tree.sampled_tokens
                report.targets += tree.kept_targets
                if progress:
                    progress(report.executions, len(summaries) - skipped)


def _name(summary: ExecutionSummary) -> str:
    """No two are the same; a name too long for a file is cut and told from others by its hash."""
    name = quote(summary.execution_id, safe="").replace("~", "%7E")
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}~{xxhash.xxh3_64_hexdigest(summary.execution_id.encode())}"
    attempt = f"~{summary.execution_attempt}" if summary.execution_attempt else ""
    return f"{name}{attempt}.json"


def _read(log: str | Path | None, executions: set[str]) -> Recorded:
    hint = "texts are only in the log: say where it is now with `--logs`"
    if log is None:
        raise TreeError("these trees do not know their log", hint)
    try:
        return Recorded(log, executions)
    except LogError as error:
        raise TreeError(f"the log of these trees cannot be read: {error}", hint) from error


def document_of(summary: ExecutionSummary, tree: ExecutionTree, recorded: Recorded) -> Document:
    """One execution as an ATIF trajectory."""
    threads = _threads(tree.links)
    tries = _tries(tree.links)
    root = _root(threads)
    documents: dict[int, Document] = {}
    steps_of: dict[CallKey, dict[str, Any]] = {}
    for head, contexts in threads.items():
        name = summary.execution_id if head == root else f"context-{head}"
        documents[head] = _document(name, contexts, recorded, tries, steps_of)
    for head, document in documents.items():
        if head != root:
            _refer(threads[head][0][0], document["trajectory_id"], recorded, steps_of)
    main = documents.pop(root)
    more = {"subagent_trajectories": list(documents.values())} if documents else {}
    return {"session_id": summary.execution_id} | main | {"extra": _about(summary)} | more


def _threads(links: list[Link]) -> dict[int, list[list[Link]]]:
    """First context -> the contexts that go on from each other, each as its calls; without retries."""
    contexts: dict[int, list[Link]] = defaultdict(list)
    for link in links:
        if link.cause is not Cause.RETRY:
            contexts[link.context_id].append(link)
    by_call = {link.call: link for link in links}
    head_of: dict[int, int] = {}
    threads: dict[int, list[list[Link]]] = {}
    continued: set[int] = set()
    for context, calls in contexts.items():
        before = _before(calls[0], by_call)
        if before is None or before not in head_of or before in continued:
            head_of[context] = context
            threads[context] = [calls]
            continue
        continued.add(before)
        head_of[context] = head_of[before]
        threads[head_of[before]].append(calls)
    return threads


def _before(first: Link, by_call: dict[CallKey, Link]) -> int | None:
    """The context whose work a context goes on with."""
    if first.cause is Cause.EDIT:
        return first.origin_context_id
    if first.cause is not Cause.COMPACTION or first.step == "summary":
        return None
    summary = by_call.get(first.origin) if first.origin else None
    return first.origin_context_id if summary is None else summary.origin_context_id


def _tries(links: list[Link]) -> dict[CallKey, list[CallKey]]:
    """Kept call -> its other tries."""
    tries: dict[CallKey, list[CallKey]] = defaultdict(list)
    for link in links:
        if link.cause is Cause.RETRY and link.origin is not None:
            tries[link.origin].append(link.call)
    return tries


def _root(threads: dict[int, list[list[Link]]]) -> int:
    """The main agent's thread; where nothing is known of one, the first."""
    started = (head for head, contexts in threads.items() if contexts[0][0].cause is Cause.START)
    return next(started, next(iter(threads)))


def _document(
    name: str,
    contexts: list[list[Link]],
    recorded: Recorded,
    tries: dict[CallKey, list[CallKey]],
    steps_of: dict[CallKey, dict[str, Any]],
) -> Document:
    steps = Steps()
    for calls in contexts:
        known = 0
        for place, link in enumerate(calls):
            messages = recorded.messages(link.call)
            answer = recorded.answer(link.call)
            if place:
                steps.more(messages, known, answer.started_at)
            else:
                old = len(messages) - 1 if _takes_all(link) else 0
                steps.context(messages[:old], answer.started_at, copied=True)
                steps.context(messages[old:], answer.started_at, copied=False)
            known = max(known, sum(map(len, messages)))
            steps_of[link.call] = steps.answer(link, answer, tries.get(link.call, ()))
    first = contexts[0][0]
    return {
        "schema_version": VERSION,
        "trajectory_id": name,
        "agent": recorded.agent(first.call),
        "steps": steps.steps,
        "final_metrics": _totals(steps.steps),
        "extra": {"role": first.role.value, "cause": first.cause.value},
    }


def _takes_all(first: Link) -> bool:
    """Whether the context begins with another one's whole history and one message more."""
    return first.step == "forked" or (first.step == "summary" and first.family == "suffix_prompt")


def _refer(
    first: Link, trajectory_id: str, recorded: Recorded, steps_of: dict[CallKey, dict[str, Any]]
) -> None:
    step = steps_of.get(first.origin) if first.origin else None
    if step is not None:
        refer(step, trajectory_id, first_prompt(recorded.messages(first.call)))


def _totals(steps: list[dict[str, Any]]) -> dict[str, int]:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    sums = {
        f"total_{name}": sum(each.get(name, 0) for each in metrics)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
    }
    return sums | {"total_steps": len(steps)}


def _about(summary: ExecutionSummary) -> dict[str, Any]:
    told: Iterator[tuple[str, Any]] = (
        (name, getattr(summary, name))
        for name in ("task", "group", "outcome", "score", "reason", "artifact", "exact", "targets")
    )
    fixed = {"execution_id": summary.execution_id, "execution_attempt": summary.execution_attempt}
    return fixed | {"kept_targets": summary.kept_targets} | {k: v for k, v in told if v is not None}
