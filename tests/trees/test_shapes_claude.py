"""Executions in the shapes of Claude Code: blocks, moving cache markers, agent ids on sub-agents only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trees.world.labels import Headers, Who
from tests.trees.world.scene import Body, Scene

EACH = pytest.mark.parametrize("headers", [Headers.CLAUDE, Headers.NONE])
MARK = {"cache_control": {"type": "ephemeral"}}
TOOLS = ("Bash", "Read", "Agent")
SUMMARY = "The user wants the parser fixed; the tokenizer was rewritten and three tests still fail in it."
INSTRUCTION = "Your task is to write a detailed summary of the conversation so far."
CHILD = Who("a1f", None, 1, 0)
OTHER = Who("b2e", None, 1, 0)
NESTED = Who("c3d", "a1f", 2, 0)


def text(words: str, **more: Any) -> Body:
    return {"type": "text", "text": words, **more}


def use(ident: str, command: str, name: str = "Bash", key: str = "command") -> Body:
    return {"type": "tool_use", "id": ident, "name": name, "input": {key: command}}


def result(ident: str, words: str, **more: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": ident, "content": words, **more}


def thinking(words: str) -> Body:
    return {"type": "thinking", "thinking": words, "signature": "c2ln"}


def user(*blocks: Body) -> Body:
    return {"role": "user", "content": list(blocks)}


def said(*blocks: Body) -> Body:
    return {"role": "assistant", "content": list(blocks)}


def system(print_: str = "a1b", words: str = "You are a coding agent.") -> Body:
    billing = f"x-anthropic-billing-header: cc_version=2.1.220.{print_}; cc_entrypoint=cli;"
    return {"role": "system", "content": [text(billing), text(words)]}


SYSTEM = system()
TASK = user(text("<system-reminder>today is monday</system-reminder>"), text("fix the parser please"))
LOOK = said(thinking("I should look first"), text("Let me look."), use("t1", "ls src"))
RUN = said(use("t2", "make test"))
EDIT = said(text("Now the fix."), use("t3", "sed -i s/a/b/ src/parser.c"))
DONE = said(text("The parser is fixed."))
HISTORY = [SYSTEM, TASK, LOOK, user(result("t1", "parser.c lexer.c"))]
LONGER = [*HISTORY, RUN, user(result("t2", "3 tests failed"))]
LONGEST = [*LONGER, EDIT, user(result("t3", "done"))]


def main_run(scene: Scene, length: int = 3) -> None:
    """The first calls of a run, marker moving."""
    prompts = [[SYSTEM, TASK], HISTORY, LONGER]
    for i, (messages, answer) in enumerate(zip(prompts, (LOOK, RUN, EDIT), strict=True)):
        if i < length:
            scene.call(f"m{i + 1}", marked(messages), answer, TOOLS)


def marked(messages: list[Body]) -> list[Body]:
    """The cache marker stands on the last block of the last message."""
    *before, last = messages
    *blocks, block = last["content"]
    return [*before, last | {"content": [*blocks, block | MARK]}]


MAIN_RUN = {
    "m1": "main: start",
    "m2": "main: continuation <- m1",
    "m3": "main: continuation <- m2",
}


@EACH
def test_the_cache_marker_moves(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene)
    assert scene.story() == MAIN_RUN


@EACH
@pytest.mark.parametrize("ids", [True, False])
def test_system_messages_stand_inside_and_lose_their_list_with_the_marker(
    headers: Headers, ids: bool
) -> None:
    scene = Scene(headers, ids)
    skills = "skills: pdf, docx"
    listed = {"role": "system", "content": [text(skills, **MARK)]}
    bare = {"role": "system", "content": skills}
    scene.call("m1", [SYSTEM, TASK, listed], LOOK, TOOLS)
    scene.call("m2", [SYSTEM, TASK, bare, LOOK, user(result("t1", "parser.c", **MARK))], RUN, TOOLS)
    again = {"role": "system", "content": [text("skills: pdf", **MARK)]}
    later = [SYSTEM, TASK, bare, LOOK, user(result("t1", "parser.c")), RUN, user(result("t2", "ok")), again]
    scene.call("m3", later, DONE, TOOLS)
    assert scene.story() == MAIN_RUN


@EACH
@pytest.mark.parametrize("overflow", [False, True])
def test_auto_compaction_leaves_the_latest_round_out_and_keeps_it(headers: Headers, overflow: bool) -> None:
    """Also when the engine says that the prompt is too long; the billing line changes with the history."""
    scene = Scene(headers)
    main_run(scene)
    if overflow:
        scene.call("too-long", marked(LONGEST), None, TOOLS, outcome="upstream_error")
    *before, last = LONGER
    asked = [*before, user(*last["content"], text(INSTRUCTION, **MARK))]
    answer = said(text(f"<analysis>first the files</analysis>\n<summary>{SUMMARY}</summary>"))
    scene.call("s1", asked, answer, TOOLS, kind="compaction")
    notice = user(
        text("<system-reminder>skills: pdf</system-reminder>"), text(f"This goes on from: {SUMMARY}")
    )
    anew = [system("c3d"), notice, EDIT, user(result("t3", "done"))]
    scene.call("r1", marked(anew), use_answer("t4"), TOOLS)
    scene.call("r2", marked([*anew, use_answer("t4"), user(result("t4", "ok"))]), DONE, TOOLS)
    story = scene.story()
    assert story.pop("too-long", "main: continuation <- m3") == "main: continuation <- m3"
    assert story.pop("s1") in (
        "main_summary: compaction summary <- m2",
        "main_summary: compaction summary <- m3",
    )
    assert story == MAIN_RUN | {
        "r1": "main: compaction restart <- s1",
        "r2": "main: continuation <- r1",
    }
    families = {link.call.call_id: link.family for link in scene.tree().links}
    assert (families["s1"], families["r1"]) == ("suffix_prompt", "kept_tail")
    assert not any(link.targets == 0 for link in scene.tree().links if link.call.call_id != "too-long")


def use_answer(ident: str) -> Body:
    return said(use(ident, f"cat {ident}"))


@EACH
def test_a_sub_agent_is_compacted_and_its_task_is_gone(headers: Headers) -> None:
    scene = Scene(headers)
    give = said(use("t1", "check the lexer for leaks", "Agent", "prompt"))
    scene.call("m1", [SYSTEM, TASK], give, TOOLS)
    helper = system("d4e", "You are a helper.")
    asked = [
        helper,
        user(text("<system-reminder>be brief</system-reminder>"), text("check the lexer for leaks")),
    ]
    first = [*asked, use_answer("u1"), user(result("u1", "lexer.c"))]
    scene.call("c1", asked, use_answer("u1"), ("Bash",), CHILD)
    scene.call("c2", first, use_answer("u2"), ("Bash",), CHILD)
    shorter = [*first[:-1], user(*first[-1]["content"], text(INSTRUCTION))]
    scene.call("s1", shorter, said(text(f"<summary>{SUMMARY}</summary>")), ("Bash",), CHILD, "compaction")
    anew = [helper, user(text(f"This goes on from: {SUMMARY}")), use_answer("u2"), user(result("u2", "ok"))]
    scene.call("c3", anew, said(text("No leaks.")), ("Bash",), CHILD)
    back = [SYSTEM, TASK, give, user(result("t1", "No leaks.\nagentId: a1f"))]
    scene.call("m2", back, DONE, TOOLS)
    story = scene.story()
    assert story.pop("s1") in (
        "sub_summary: compaction summary <- c1",
        "sub_summary: compaction summary <- c2",
    )
    assert story == {
        "m1": "main: start",
        "c1": "sub: delegation blocking <- m1",
        "c2": "sub: continuation <- c1",
        "c3": "sub: compaction restart <- s1",
        "m2": "main: continuation <- m1",
    }


@EACH
def test_children_in_the_background_overlap_and_are_told_of_later(headers: Headers) -> None:
    """Parent goes on at once, both children interleave, one ends after the parent's last answer."""
    scene = Scene(headers)
    give = said(
        use("t1", "count the lines of all C files", "Agent", "prompt"),
        use("t2", "list the public functions", "Agent", "prompt"),
    )
    launched = user(result("t1", "launched, agentId: a1f"), result("t2", "launched, agentId: b2e"))
    helper = system("d4e", "You are a helper.")
    one = [helper, user(text("count the lines of all C files"))]
    two = [helper, user(text("list the public functions"))]
    parent = [SYSTEM, TASK, give, launched]
    waiting = said(text("I wait for both."))
    scene.call("m1", [SYSTEM, TASK], give, TOOLS, times=(0, 100))
    scene.call("a1", one, use_answer("u1"), ("Bash",), CHILD, times=(120, 300))
    scene.call("b1", two, use_answer("u2"), ("Bash",), OTHER, times=(125, 320))
    scene.call("m2", parent, waiting, TOOLS, times=(110, 330))
    scene.call(
        "a2",
        [*one, use_answer("u1"), user(result("u1", "90"))],
        said(text("90 lines")),
        ("Bash",),
        CHILD,
        times=(310, 400),
    )
    note = user(text("<task-notification>agent a1f is done: 90 lines</task-notification>"))
    told = [*parent, waiting, note]
    scene.call("m3", told, said(text("One is done.")), TOOLS, times=(410, 500))
    scene.call(
        "b2",
        [*two, use_answer("u2"), user(result("u2", "f g"))],
        said(text("f and g")),
        ("Bash",),
        OTHER,
        times=(330, 550),
    )
    last = user(text("<task-notification>agent b2e is done: f and g</task-notification>"))
    scene.call("m4", [*told, said(text("One is done.")), last], DONE, TOOLS, times=(560, 700))
    assert scene.story() == {
        "m1": "main: start",
        "a1": "sub: delegation background <- m1",
        "b1": "sub: delegation background <- m1",
        "m2": "main: continuation <- m1",
        "a2": "sub: continuation <- a1",
        "m3": "main: continuation <- m2",
        "b2": "sub: continuation <- b1",
        "m4": "main: continuation <- m3",
    }
    assert scene.contexts() == [["a1", "a2"], ["b1", "b2"], ["m1", "m2", "m3", "m4"]]


@EACH
def test_a_child_has_a_child_of_its_own(headers: Headers) -> None:
    scene = Scene(headers)
    give = said(use("t1", "review the whole parser", "Agent", "prompt"))
    deeper = said(use("u1", "review only the error paths", "Agent", "prompt"))
    helper = system("d4e", "You are a helper.")
    child = [helper, user(text("review the whole parser"))]
    scene.call("m1", [SYSTEM, TASK], give, TOOLS)
    scene.call("c1", child, deeper, ("Agent",), CHILD)
    scene.call(
        "n1",
        [helper, user(text("review only the error paths"))],
        said(text("two are wrong")),
        ("Bash",),
        NESTED,
    )
    scene.call(
        "c2", [*child, deeper, user(result("u1", "two are wrong"))], said(text("fix two")), ("Agent",), CHILD
    )
    scene.call("m2", [SYSTEM, TASK, give, user(result("t1", "fix two"))], DONE, TOOLS)
    assert scene.story() == {
        "m1": "main: start",
        "c1": "sub: delegation blocking <- m1",
        "n1": "sub: delegation nested <- c1",
        "c2": "sub: continuation <- c1",
        "m2": "main: continuation <- m1",
    }


@EACH
def test_a_fork_begins_with_its_parents_history_but_for_the_billing_line(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene, 1)
    give = said(text("I fork."), use("t2", "write the tests for the parser", "Agent", "prompt"))
    scene.call("m2", HISTORY, give, TOOLS)
    rest = [*HISTORY[1:], give]
    launched = user(result("t2", "launched, agentId: a1f"))
    scene.call("m3", [SYSTEM, *rest, launched], said(text("It runs.")), TOOLS, times=(310, 400))
    stub = user(result("t2", "fork started"), text("You are a fork. Do this: write the tests for the parser"))
    scene.call("f1", [system("e5f"), *rest, stub], use_answer("u1"), TOOLS, CHILD, times=(320, 380))
    going = [system("e5f"), *rest, stub, use_answer("u1"), user(result("u1", "ok"))]
    scene.call("f2", going, said(text("Tests are written.")), TOOLS, CHILD, times=(390, 500))
    note = user(text("<task-notification>a1f: Tests are written.</task-notification>"))
    scene.call("m4", [SYSTEM, *rest, launched, said(text("It runs.")), note], DONE, TOOLS, times=(510, 600))
    assert scene.story() == {
        "m1": "main: start",
        "m2": "main: continuation <- m1",
        "f1": "sub: delegation forked <- m2",
        "m3": "main: continuation <- m2",
        "f2": "sub: continuation <- f1",
        "m4": "main: continuation <- m3",
    }


@EACH
def test_the_title_is_asked_for_first(headers: Headers) -> None:
    scene = Scene(headers)
    asked = [{"role": "system", "content": "Name this session."}, user(text("fix the parser please"))]
    scene.call("t", asked, said(text('{"title": "Parser fix"}')), (), kind="side", times=(0, 90))
    scene.clock = 70
    main_run(scene)
    assert scene.story() == MAIN_RUN | {"t": "side: side"}


@EACH
def test_refused_and_cut_tries_come_again_byte_for_byte(headers: Headers) -> None:
    """The retry count of this harness is always 0."""
    scene = Scene(headers)
    main_run(scene, 1)
    scene.call("e1", marked(HISTORY), None, TOOLS, outcome="upstream_error", retry_count=0)
    scene.call(
        "e2", marked(HISTORY), said(thinking("I should")), TOOLS, outcome="upstream_cut", retry_count=0
    )
    scene.call("m2", marked(HISTORY), RUN, TOOLS, retry_count=0)
    scene.call("m3", marked(LONGER), EDIT, TOOLS, retry_count=0)
    assert scene.story() == MAIN_RUN | {"e1": "main: retry <- m2", "e2": "main: retry <- m2"}
    assert len(scene.contexts()) == 1


@EACH
@pytest.mark.parametrize("outcome", ["upstream_cut", "client_gone"])
def test_a_run_ends_in_the_middle_of_an_answer(headers: Headers, outcome: str) -> None:
    """Cut after visible text, or killed: nothing comes after it, and nothing of it is trained."""
    scene = Scene(headers)
    main_run(scene, 2)
    scene.call("m3", marked(LONGER), said(text("Now the")), TOOLS, outcome=outcome)
    assert scene.story() == MAIN_RUN
    link = scene.tree().links[-1]
    assert (link.targets, link.untrained) == (0, f"outcome_{outcome}")


@EACH
def test_an_answer_at_its_limit_is_resumed(headers: Headers) -> None:
    """And a later process goes on with the same history."""
    scene = Scene(headers)
    half = said(text("The parser has"))
    scene.call("m1", [SYSTEM, TASK], half, TOOLS, finish_reason="length")
    asked = [SYSTEM, TASK, half, user(text("Output limit hit. Resume."))]
    scene.call("m2", asked, said(text("three faults.")), TOOLS)
    scene.clock += 3_600_000
    scene.call("m3", [*asked, said(text("three faults.")), user(text("fix them"))], RUN, TOOLS)
    assert scene.story() == MAIN_RUN


@EACH
def test_compaction_by_hand_then_the_next_process_starts_from_the_summary(headers: Headers) -> None:
    scene = Scene(headers)
    main_run(scene, 2)
    *before, last = LONGER
    scene.call("m3", LONGER, DONE, TOOLS)
    asked = [*before, last, DONE, user(text(INSTRUCTION))]
    scene.call("s1", asked, said(text(f"<summary>{SUMMARY}</summary>")), TOOLS, kind="compaction")
    scene.call("r1", [system("c3d"), user(text(f"Continued. {SUMMARY}"), text("go on"))], RUN, TOOLS)
    assert scene.story() == MAIN_RUN | {
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
    }
