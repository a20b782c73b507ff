"""ATIF documents: read by the format's own models, and what they say of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atif
import numpy as np
import pytest

from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from gyre.treebuilder.trees import Cause, Confidence, ExecutionTree, Role
from tests.log.builders import message
from tests.trees.export.builders import Folder, TreeBuilder
from tests.trees.export.logs import SYSTEM, TASK, assistant, record, recorded, result

GOLDEN = Path(__file__).parent / "golden" / "atif.json"


def document(folder: Folder, out: Path, name: str = "run") -> dict[str, Any]:
    export_trees(folder, Format.ATIF, out, force=True)
    text = (out / f"{name}.json").read_bytes()
    atif.Trajectory.model_validate_json(text)
    found: dict[str, Any] = json.loads(text)
    assert list(unresolved(found)) == []
    return found


def unresolved(found: dict[str, Any]) -> Iterator[str]:
    """References that lead nowhere, and results whose call is not in their step."""
    known = {each["trajectory_id"] for each in found.get("subagent_trajectories", ())}
    for each in [found, *found.get("subagent_trajectories", ())]:
        for step in each["steps"]:
            calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            for one in step.get("observation", {"results": []})["results"]:
                if "source_call_id" in one and one["source_call_id"] not in calls:
                    yield one["source_call_id"]
                references = one.get("subagent_trajectory_ref", ())
                yield from (ref["trajectory_id"] for ref in references if ref["trajectory_id"] not in known)


def told(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["source"], step["message"]) for step in found["steps"]]


def test_an_export_is_what_it_was(tmp_path: Path) -> None:
    assert document(recorded(tmp_path / "log"), tmp_path / "out") == json.loads(GOLDEN.read_text())


def test_the_main_agents_steps_go_on_across_a_compaction(tmp_path: Path) -> None:
    found = document(recorded(tmp_path / "log"), tmp_path / "out")
    assert told(found) == [
        ("system", "You fix things."),
        ("user", "Fix the bug."),
        ("agent", "I ask a helper."),
        ("user", "Go on."),
        ("agent", ""),
        ("user", "Summary: line 3 is edited."),
        ("user", "Continue."),
        ("agent", "All done."),
    ]
    assert not any("is_copied_context" in step for step in found["steps"])
    assert found["final_metrics"]["total_completion_tokens"] == 6


def test_a_sub_agent_is_referred_to_by_the_tool_call_that_holds_its_prompt(tmp_path: Path) -> None:
    found = document(recorded(tmp_path / "log"), tmp_path / "out")
    results = found["steps"][2]["observation"]["results"]
    assert [one["source_call_id"] for one in results if "subagent_trajectory_ref" in one] == ["t1"]
    sub = found["subagent_trajectories"][0]
    assert (sub["trajectory_id"], sub["extra"]["role"]) == ("context-1", "sub")
    assert told(sub)[-1] == ("agent", "It is in line 3.")


def test_the_history_that_a_summary_request_repeats_is_marked_as_copied(tmp_path: Path) -> None:
    summary = document(recorded(tmp_path / "log"), tmp_path / "out")["subagent_trajectories"][1]
    assert [step.get("is_copied_context", False) for step in summary["steps"]] == [True] * 5 + [False] * 2


def test_failed_tries_are_named_by_the_call_that_was_kept(tmp_path: Path) -> None:
    found = document(recorded(tmp_path / "log"), tmp_path / "out")
    assert found["steps"][4]["extra"]["tries"] == ["run-failed"]
    assert "run-failed" not in [step.get("extra", {}).get("call_id") for step in found["steps"]]


def test_executions_without_score_are_there_to_be_seen(tmp_path: Path) -> None:
    report = export_trees(recorded(tmp_path / "log"), Format.ATIF, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["other.json", "run.json"]
    assert (report.executions, report.rows, report.left_out) == (2, 2, {"skipped": 1})


def one_context(
    tmp_path: Path, lists: list[list[bytes]], answers: list[bytes], **link: Any
) -> dict[str, Any]:
    """A run of one context: the message list and the answer of each call."""
    _, worker = record(tmp_path / "log")
    built = TreeBuilder("run")
    leaf: int | None = None
    for number, (messages, answer) in enumerate(zip(lists, answers, strict=True)):
        worker.call(f"c{number}", [number], [7], messages, execution="run", response=answer)
        more = link if number else {}
        leaf = built.call(
            f"c{number}", leaf, [number], [7], cause=Cause.START if leaf is None else Cause.REWRITTEN
        )
        for name, value in more.items():
            setattr(built.links[-1], name, value)
    worker.close()
    folder = Folder(log=tmp_path / "log")
    folder.add(built.tree())
    return document(folder, tmp_path / "out")


def test_a_harness_that_changes_earlier_messages_adds_only_what_is_new(tmp_path: Path) -> None:
    first = [message("It is 9 o'clock.", "system"), TASK]
    second = [message("It is 10 o'clock.", "system"), TASK, assistant("One."), message("More.")]
    found = one_context(tmp_path, [first, second], [assistant("One."), assistant("Two.")])
    assert told(found)[2:] == [("agent", "One."), ("user", "More."), ("agent", "Two.")]


def test_an_answer_that_the_next_request_leaves_out_is_kept(tmp_path: Path) -> None:
    found = one_context(
        tmp_path,
        [[TASK], [TASK, message("Bad format.")], [TASK, message("Bad format.")]],
        [assistant("Hm."), assistant("One."), assistant("Another.")],
    )
    assert [text for _, text in told(found)] == ["Fix the bug.", "Hm.", "Bad format.", "One.", "Another."]


def test_turns_that_no_call_sampled_are_copied(tmp_path: Path) -> None:
    found = one_context(tmp_path, [[TASK, assistant("Yes?"), message("Do.")]], [assistant("Done.")])
    assert [step.get("is_copied_context", False) for step in found["steps"]] == [False, True, False, False]


def test_what_is_no_good_tool_call_is_still_shown(tmp_path: Path) -> None:
    broken = json.dumps(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "ls", "arguments": "{-l"}}],
        }
    ).encode()
    image = (
        b'{"role":"user","content":[{"type":"text","text":"See:"},{"type":"image_url","image_url":"data:"}]}'
    )
    found = one_context(
        tmp_path, [[TASK], [TASK, broken, result("t9", "late"), image]], [broken, assistant("k")]
    )
    call = found["steps"][1]["tool_calls"][0]
    assert (call["function_name"], call["arguments"], call["extra"]) == ("ls", {}, {"arguments": "{-l"})
    assert found["steps"][2]["source"] == "system"
    assert found["steps"][2]["observation"]["results"] == [
        {"content": "late", "extra": {"tool_call_id": "t9"}}
    ]
    assert found["steps"][3]["message"] == "See:\n\n[image_url]"


def test_what_was_not_decided_is_said(tmp_path: Path) -> None:
    _, worker = record(tmp_path / "log")
    for call in ("a", "b"):
        worker.call(call, [1], [2], [TASK], execution="run", response=None, outcome="client_gone")
    worker.close()
    built = TreeBuilder("run")
    built.call("a", None, [1], [2])
    built.call("b", None, [3], [4], 1, Role.UNKNOWN, Cause.UNKNOWN, reason="a retry or a resample")
    built.links[-1].confidence = Confidence.QUARANTINED
    folder = Folder(log=tmp_path / "log")
    folder.add(built.tree())
    found = document(folder, tmp_path / "out")
    [other] = found["subagent_trajectories"]
    assert found["steps"][-1]["extra"]["outcome"] == "client_gone"
    assert other["steps"][-1]["extra"]["undecided"] == "a retry or a resample"


def edited_and_forked(name: str) -> ExecutionTree:
    built = TreeBuilder(name, 1)
    built.call("a", None, [1], [2], cause=Cause.START)
    built.call("b", None, [3], [4], 1, cause=Cause.EDIT, origin="a", origin_context_id=0)
    built.call("f", None, [5], [6], 2, Role.SUB, Cause.DELEGATION, origin="b", step="forked")
    return built.tree()


def test_an_edit_goes_on_in_place_and_a_fork_has_its_history_copied(tmp_path: Path) -> None:
    _, worker = record(tmp_path / "log")
    first = [SYSTEM, TASK, assistant(None, t1={"name": "ls", "arguments": {}}), result("t1", "a b c")]
    cleared = [*first[:3], result("t1", "[cleared]"), message("And now?")]
    forked = [*cleared, assistant("Now this."), message("You are a fork.")]
    for call, messages, answer in (("a", first, "One."), ("b", cleared, "Now this."), ("f", forked, "Yes.")):
        worker.call(
            call, [1], [2], messages, execution="run", execution_attempt=1, response=assistant(answer)
        )
    worker.close()
    folder = Folder(log=tmp_path / "log")
    folder.add(edited_and_forked("run"))
    found = document(folder, tmp_path / "out", "run~1")
    assert [text for _, text in told(found)] == [
        *("You fix things.", "Fix the bug.", "", "One.", "And now?", "Now this."),
    ]
    assert [one["content"] for one in found["steps"][2]["observation"]["results"]] == ["a b c", "[cleared]"]
    [fork] = found["subagent_trajectories"]
    assert [step.get("is_copied_context", False) for step in fork["steps"]] == [True] * 5 + [False] * 2


def test_a_log_that_is_gone_or_another_one_is_an_error(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "log")
    out = tmp_path / "out"
    (tmp_path / "log").rename(tmp_path / "moved")
    with pytest.raises(TreeError, match="cannot be read") as raised:
        export_trees(folder, Format.ATIF, out)
    assert "--logs" in raised.value.hint
    assert not out.exists()
    export_trees(folder, Format.ATIF, out, log=tmp_path / "moved")
    _, worker = record(tmp_path / "other")
    worker.call("x", execution="run")
    worker.close()
    with pytest.raises(TreeError, match="`run-start` is not in the log"):
        export_trees(folder, Format.ATIF, tmp_path / "out2", log=tmp_path / "other")
    folder.log = None
    with pytest.raises(TreeError, match="do not know their log"):
        export_trees(folder, Format.ATIF, tmp_path / "out2")


def test_a_folder_with_other_things_in_it_is_not_replaced(tmp_path: Path) -> None:
    folder, out = recorded(tmp_path / "log"), tmp_path / "out"
    out.mkdir()
    (out / "old.json").write_text("{}")
    export_trees(folder, Format.ATIF, out, force=True)
    assert sorted(path.name for path in out.iterdir()) == ["other.json", "run.json"]
    (out / "notes.txt").touch()
    with pytest.raises(TreeError, match="holds other things"):
        export_trees(folder, Format.ATIF, out, force=True)
    assert (out / "notes.txt").exists()


def test_an_execution_without_calls_has_no_document(tmp_path: Path) -> None:
    _, worker = record(tmp_path / "log")
    worker.close()
    folder = Folder(log=tmp_path / "log")
    folder.add(TreeBuilder("idle").tree())
    report = export_trees(folder, Format.ATIF, tmp_path / "out")
    assert (report.executions, report.left_out) == (0, {"no_calls": 1})


NAMES = ("..", "a/b", "-x", "a~1", "\x1b[31m", "n" * 300, "n" * 301, "", "\N{GRINNING FACE}" * 90)


def test_every_name_has_a_document_of_its_own(tmp_path: Path) -> None:
    _, worker = record(tmp_path / "log")
    folder, out = Folder(log=tmp_path / "log"), tmp_path / "out"
    for number, (name, attempt) in enumerate([*((name, 0) for name in NAMES), ("a", 0), ("a", 1)]):
        worker.call(f"c{number}", [1], [2], [TASK], execution=name, execution_attempt=attempt)
        built = TreeBuilder(name, attempt)
        built.call(f"c{number}", None, [1], [2], cause=Cause.START)
        folder.add(built.tree())
    worker.close()
    export_trees(folder, Format.ATIF, out)
    export_trees(folder, Format.ATIF, out, force=True)
    documents = [json.loads(path.read_bytes()) for path in out.iterdir()]
    assert sorted(found["session_id"] for found in documents) == sorted([*NAMES, "a", "a"])


def test_a_message_that_the_log_has_lost_is_an_error(tmp_path: Path) -> None:
    _, worker = record(tmp_path / "log")
    worker.call("a", [1], [2], [TASK], execution="run", new_messages=[])
    worker.close()
    built = TreeBuilder("run")
    built.call("a", None, [1], [2], cause=Cause.START)
    folder = Folder(log=tmp_path / "log")
    folder.add(built.tree())
    with pytest.raises(TreeError, match=r"message `[0-9a-f]{32}` is not in the log"):
        export_trees(folder, Format.ATIF, tmp_path / "out")


def test_what_the_format_has_no_words_for_is_still_a_document(tmp_path: Path) -> None:
    """Tools that are no objects, and log-probabilities that are no numbers."""
    _, worker = record(tmp_path / "log")
    tools = [b"null", b"[1]", b"not json"]
    no_numbers = np.array([np.nan, -np.inf], "<f4").tobytes()
    worker.call("a", [1], [2, 3], [TASK], tools, execution="run", logprobs=no_numbers)
    worker.close()
    built = TreeBuilder("run")
    built.call("a", None, [1], [2, 3], cause=Cause.START)
    folder = Folder(log=tmp_path / "log")
    folder.add(built.tree())
    found = document(folder, tmp_path / "out")
    assert found["agent"]["tool_definitions"] == [{"tool": None}, {"tool": [1]}, {"tool": "not json"}]
    assert "logprobs" not in found["steps"][-1]["metrics"]
