"""A recorded execution with what ATIF has words for, and the tree that belongs to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gyre.treebuilder.trees import Cause, ExecutionTree, Role
from tests.log.builders import LogBuilder, Worker, message
from tests.trees.export.builders import Folder, TreeBuilder

SYSTEM = message("You fix things.", "system")
TASK = message("Fix the bug.")
TOOL = b'{"type":"function","function":{"name":"agent","parameters":{}}}'


def assistant(text: str | None = None, thought: str | None = None, **calls: dict[str, Any]) -> bytes:
    """An answer; `calls` are (name, arguments) by tool-call id."""
    body: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        body["reasoning_content"] = thought
    if calls:
        body["tool_calls"] = [
            {
                "id": ident,
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for ident, call in calls.items()
        ]
    return json.dumps(body).encode()


def result(ident: str, text: str) -> bytes:
    return json.dumps({"role": "tool", "tool_call_id": ident, "content": text}).encode()


DELEGATE = assistant(
    "I ask a helper.",
    "Someone should look.",
    t1={"name": "agent", "arguments": {"prompt": "Look for the bug, please."}},
    t2={"name": "read", "arguments": {"path": "a.py"}},
)
FOUND = assistant("It is in line 3.")
EDITED = assistant(None, t3={"name": "edit", "arguments": {"line": 3}})
SUMMARY = assistant("Summary: line 3 is edited.")
DONE = assistant("All done.")


def record(root: Path) -> tuple[LogBuilder, Worker]:
    log = LogBuilder(root)
    return log, log.worker()


def recorded_run(worker: Worker, name: str = "run") -> ExecutionTree:
    """start -> sub-agent -> next turn, one failed try -> summary -> restart."""
    start = [SYSTEM, TASK]
    turn = [*start, DELEGATE, result("t1", "It is in line 3."), result("t2", "text of a.py")]
    turn = [*turn, message("Go on.")]
    asked = [*turn, EDITED, result("t3", "ok"), message("Summarise.")]
    again = [SYSTEM, message("Summary: line 3 is edited."), message("Continue.")]
    rows: list[tuple[str, list[bytes], bytes | None, dict[str, Any]]] = [
        ("start", start, DELEGATE, {}),
        ("sub", [message("You look.", "system"), message("Look for the bug, please.")], FOUND, {}),
        ("failed", turn, None, {"outcome": "upstream_error", "error": "engine gone", "http_status": 500}),
        ("turn", turn, EDITED, {}),
        ("summary", asked, SUMMARY, {}),
        ("restart", again, DONE, {}),
    ]
    for number, (call, messages, response, more) in enumerate(rows):
        prompt = [100 * number + place for place in range(len(messages))]
        worker.call(
            f"{name}-{call}",
            prompt,
            [7, 8],
            messages,
            tools=[TOOL],
            execution=name,
            response=response,
            **more,
        )
    return _tree_of_run(name)


def _tree_of_run(name: str) -> ExecutionTree:
    built = TreeBuilder(name)
    first = built.call(f"{name}-start", None, [0, 1], [7, 8], cause=Cause.START)
    sub = built.call(
        f"{name}-sub", None, [100, 101], [7, 8], 1, Role.SUB, Cause.DELEGATION,
        origin=f"{name}-start", origin_context_id=0, step="blocking",
    )  # fmt: skip
    built.call(
        f"{name}-failed", None, [200], [7, 8], cause=Cause.RETRY, target=False, origin=f"{name}-turn",
        untrained="outcome_upstream_error",
    )  # fmt: skip
    built.call(f"{name}-turn", first, [300], [7, 8], origin=f"{name}-start", origin_context_id=0)
    built.call(
        f"{name}-summary", None, [400], [7, 8], 2, Role.MAIN_SUMMARY, Cause.COMPACTION,
        origin=f"{name}-turn", origin_context_id=0, step="summary", family="suffix_prompt",
    )  # fmt: skip
    last = built.call(
        f"{name}-restart", None, [500], [7, 8], 3, Role.MAIN, Cause.COMPACTION,
        origin=f"{name}-summary", origin_context_id=2, step="restart", family="suffix_prompt",
    )  # fmt: skip
    for slot, leaf in enumerate((last, sub)):
        built.admit(leaf, slot)
    return built.tree()


def recorded(root: Path) -> Folder:
    """A log in `root` and its trees: a run with everything, and one that has no score."""
    _, worker = record(root)
    folder = Folder(log=root)
    folder.add(recorded_run(worker), group="g", task="fix", score=1.0, outcome="timed_out")
    folder.add(recorded_run(worker, "other"), outcome="completed")
    folder.add(None, "torn", skipped="a call's parent is missing")
    worker.close()
    return folder
