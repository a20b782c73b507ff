"""Executions in the shapes of Codex: items instead of messages, a thread per agent, windows counted."""

from __future__ import annotations

import json

import pytest

from tests.trees.world.labels import Headers, Who
from tests.trees.world.scene import MAIN, Body, Scene

EACH = pytest.mark.parametrize("headers", [Headers.CODEX, Headers.NONE])
TOOLS = ("exec_command", "apply_patch", "spawn_agent", "wait_agent")
CHILD_TOOLS = ("exec_command", "apply_patch")
CHILD = Who("thread-2", "main", 1, 0)
SECOND_WINDOW = Who("main", None, 0, 1)
SUMMARY = "Handed over: the parser reads numbers wrong, the fix is in src/number.c and two tests are left."


def item(role: str, words: str, ident: str = "") -> Body:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": ident, "role": role, "content": [{"type": kind, "text": words}]}


def user(words: str, ident: str = "") -> Body:
    return item("user", words, ident)


def said(words: str) -> Body:
    return item("assistant", words, "msg_1")


def thought(words: str) -> Body:
    summary = [{"type": "summary_text", "text": words}]
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": None}


def call(ident: str, command: str, name: str = "exec_command", key: str = "cmd") -> Body:
    arguments = json.dumps({key: command})
    return {
        "type": "function_call",
        "id": f"fc_{ident}",
        "call_id": ident,
        "name": name,
        "arguments": arguments,
    }


def output(ident: str, words: str) -> Body:
    return {"type": "function_call_output", "id": "", "call_id": ident, "output": words}


BASE = item("developer", "You are Codex.", "base")
CONTEXT = user("<environment_context>cwd /src</environment_context>", "ctx-1")
TASK = user("make the tests pass", "task-1")
FIRST = [BASE, CONTEXT, TASK]
LOOK = [thought("look around first"), call("c1", "ls")]
SECOND = [*FIRST, *LOOK, output("c1", "src tests")]
RUN = [call("c2", "make test")]
THIRD = [*SECOND, *RUN, output("c2", "2 failed")]
DONE = [said("All tests pass.")]
MAIN_RUN = {"m1": "main: start", "m2": "main: continuation <- m1"}


def main_run(scene: Scene) -> None:
    scene.call("m1", FIRST, LOOK, TOOLS)
    scene.call("m2", SECOND, RUN, TOOLS)


@EACH
@pytest.mark.parametrize("ids", [True, False])
def test_items_are_exact_prefixes(headers: Headers, ids: bool) -> None:
    scene = Scene(headers, ids)
    main_run(scene)
    scene.call("m3", THIRD, DONE, TOOLS)
    assert scene.story() == MAIN_RUN | {"m3": "main: continuation <- m2"}


@EACH
def test_a_refused_try_comes_again_with_its_keys_in_another_order(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    other = [dict(reversed(list(body.items()))) for body in THIRD]
    scene.call("e1", THIRD, None, TOOLS, outcome="upstream_error")
    scene.call("m3", other, DONE, TOOLS)
    assert scene.story() == MAIN_RUN | {"e1": "main: retry <- m3", "m3": "main: continuation <- m2"}


@EACH
def test_a_cut_inside_an_item_comes_again(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    scene.call("e1", THIRD, [said("All")], TOOLS, outcome="upstream_cut")
    scene.call("m3", THIRD, DONE, TOOLS)
    assert scene.story() == MAIN_RUN | {"e1": "main: retry <- m3", "m3": "main: continuation <- m2"}


@EACH
def test_items_that_were_complete_before_a_cut_stay_and_the_unfinished_call_is_dropped(
    headers: Headers,
) -> None:
    scene = Scene(headers)
    main_run(scene)
    whole = said("I patch it now.")
    unfinished = {"type": "function_call", "call_id": "c3", "name": "apply_patch", "arguments": '{"pat'}
    scene.call("m3", THIRD, [whole, unfinished], TOOLS, outcome="upstream_cut")
    scene.call("m4", [*THIRD, whole], [call("c4", "patch it", "apply_patch")], TOOLS)
    story = scene.story()
    assert story.pop("m4") in ("main: rewritten <- m3", "main: continuation <- m3")
    assert story == MAIN_RUN | {"m3": "main: continuation <- m2"}
    assert len(scene.contexts()) == 1


@EACH
def test_the_last_of_many_refused_tries_stands_for_all(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    for i in range(6):
        scene.call(f"e{i}", THIRD, None, TOOLS, outcome="upstream_error")
    story = scene.story()
    assert story.pop("e5") == "main: continuation <- m2"
    assert story == MAIN_RUN | {f"e{i}": "main: retry <- e5" for i in range(5)}


@EACH
def test_compaction_sends_no_tools_and_keeps_user_messages_only(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    scene.call("m3", THIRD, [said("Two left.")], TOOLS)
    history = [*THIRD, said("Two left.")]
    scene.call("s1", [*history, user("Write a handover summary.")], [said(SUMMARY)], (), MAIN, "compaction")
    context = user("<environment_context>cwd /src</environment_context>", "ctx-2")
    anew = [BASE, context, TASK, user(f"Another model began this. {SUMMARY}", "sum-1")]
    scene.call("r1", anew, [call("c5", "cat src/number.c")], TOOLS, SECOND_WINDOW)
    scene.call(
        "r2", [*anew, call("c5", "cat src/number.c"), output("c5", "int x")], DONE, TOOLS, SECOND_WINDOW
    )
    assert scene.story() == MAIN_RUN | {
        "m3": "main: continuation <- m2",
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
        "r2": "main: continuation <- r1",
    }
    assert scene.contexts() == [["m1", "m2", "m3"], ["r1", "r2"], ["s1"]]


@EACH
def test_a_spawned_agent_runs_on_and_is_told_of_in_a_user_message(headers: Headers) -> None:
    scene = Scene(headers)
    spawn = [call("c1", "find all uses of strtod", "spawn_agent", "message")]
    given = [*FIRST, *spawn, output("c1", '{"agent_id": "thread-2"}')]
    child = [BASE, CONTEXT, user("find all uses of strtod", "task-2")]
    scene.call("m1", FIRST, spawn, TOOLS, times=(0, 100))
    scene.call("m2", given, RUN, TOOLS, times=(110, 200))
    scene.call("a1", child, [call("d1", "grep -r strtod")], CHILD_TOOLS, CHILD, times=(120, 250))
    result = [*child, call("d1", "grep -r strtod"), output("d1", "number.c")]
    scene.call("a2", result, [said("Only in number.c.")], CHILD_TOOLS, CHILD, times=(260, 400))
    told = user('<subagent_notification>{"agent_id": "thread-2", "status": "Only in number.c."}')
    scene.call("m3", [*given, *RUN, output("c2", "ok"), told], DONE, TOOLS, times=(410, 500))
    assert scene.story() == MAIN_RUN | {
        "a1": "sub: delegation background <- m1",
        "a2": "sub: continuation <- a1",
        "m3": "main: continuation <- m2",
    }


@EACH
def test_a_parent_ends_before_its_child(headers: Headers) -> None:
    scene = Scene(headers)
    spawn = [call("c1", "find all uses of strtod", "spawn_agent", "message")]
    given = [*FIRST, *spawn, output("c1", '{"agent_id": "thread-2"}')]
    child = [BASE, CONTEXT, user("find all uses of strtod", "task-2")]
    scene.call("m1", FIRST, spawn, TOOLS, times=(0, 100))
    scene.call("m2", given, DONE, TOOLS, times=(110, 200))
    scene.call("a1", child, [said("Only in")], CHILD_TOOLS, CHILD, times=(120, 250), outcome="client_gone")
    assert scene.story() == MAIN_RUN | {"a1": "sub: delegation background <- m1"}


@EACH
def test_a_forked_child_keeps_user_messages_but_no_tool_calls(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    spawn = [call("c3", "document the public functions", "spawn_agent", "message")]
    given = [*THIRD, *spawn, output("c3", '{"agent_id": "thread-2"}')]
    child = [BASE, CONTEXT, TASK, user("document the public functions", "task-2")]
    scene.call("m3", THIRD, spawn, TOOLS, times=(300, 400))
    scene.call("m4", given, [call("c4", "make")], TOOLS, times=(410, 500))
    scene.call("a1", child, [call("d1", "ls docs")], CHILD_TOOLS, CHILD, times=(420, 520))
    going = [*child, call("d1", "ls docs"), output("d1", "none")]
    scene.call("a2", going, [said("Documented.")], CHILD_TOOLS, CHILD, times=(530, 600))
    told = user("<subagent_notification> Documented.")
    scene.call("m5", [*given, call("c4", "make"), output("c4", "ok"), told], DONE, TOOLS, times=(610, 700))
    assert scene.story() == MAIN_RUN | {
        "m3": "main: continuation <- m2",
        "m4": "main: continuation <- m3",
        "a1": "sub: delegation background <- m3",
        "a2": "sub: continuation <- a1",
        "m5": "main: continuation <- m4",
    }


@EACH
def test_a_child_forked_in_the_first_call_is_no_trunk_that_lost_an_answer(headers: Headers) -> None:
    """Its messages are those of the parent's first request and one more."""
    scene = Scene(headers)
    spawn = [call("c1", "document the public functions", "spawn_agent", "message")]
    scene.call("m1", FIRST, spawn, TOOLS, times=(0, 100))
    child = [*FIRST, user("document the public functions", "task-2")]
    scene.call("a1", child, [said("Documented.")], CHILD_TOOLS, CHILD, times=(120, 190))
    given = [*FIRST, *spawn, output("c1", '{"agent_id": "thread-2"}')]
    scene.call("m2", given, DONE, TOOLS, times=(110, 200))
    story = scene.story()
    assert story.pop("a1") in ("sub: delegation background <- m1", "sub: delegation forked <- m1")
    assert story == MAIN_RUN


def test_labels_and_texts_tell_the_same_story() -> None:
    """A run with a compaction and a child: nothing is lost when the labels are hidden."""
    stories = []
    for headers in (Headers.CODEX, Headers.NONE):
        scene = Scene(headers)
        main_run(scene)
        scene.call("s1", [*THIRD, user("Write a handover summary.")], [said(SUMMARY)], (), MAIN, "compaction")
        spawn = [call("c3", "document the public functions", "spawn_agent", "message")]
        anew = [BASE, CONTEXT, TASK, user(f"Another model began this. {SUMMARY}")]
        scene.call("r1", anew, spawn, TOOLS, SECOND_WINDOW)
        child = [BASE, CONTEXT, user("document the public functions")]
        scene.call("a1", child, [said("Done.")], CHILD_TOOLS, CHILD)
        given = [*anew, *spawn, output("c3", '{"agent_id": "thread-2"}'), user("Done.")]
        scene.call("r2", given, DONE, TOOLS, SECOND_WINDOW)
        assert scene.tree().disagreements == []
        stories.append((scene.story(), scene.contexts()))
    assert stories[0] == stories[1]
