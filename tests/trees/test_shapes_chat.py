"""Executions in the shapes of agents that speak chat completions: OpenCode, Qwen Code and smaller ones."""

from __future__ import annotations

import pytest

from tests.trees.world.labels import Headers, Who
from tests.trees.world.messages import (
    Message,
    assistant,
    respaced,
    result,
    system,
    tool_call,
    transcript,
    user,
)
from tests.trees.world.scene import Scene

OPENCODE = pytest.mark.parametrize("headers", [Headers.OPENCODE, Headers.NONE])
SYSTEM = system("You are a careful programmer.")
TASK = user("make the tests pass")
FIRST = [SYSTEM, TASK]
SUMMARY = "We repaired the number parser in src/number.c; the date parser is still to be done, see its tests."
MAIN_RUN = {"m1": "main: start", "m2": "main: continuation <- m1", "m3": "main: continuation <- m2"}


def use(ident: str, path: str = "src") -> Message:
    """An answer that calls a tool."""
    return assistant(f"now {ident}", [tool_call(ident, "read", {"path": path})])


def rounds(*idents: str, size: int = 6) -> list[Message]:
    """Rounds of a tool call and its long result."""
    pairs = [(use(i), result(i, f"output of {i}: " + f"{i} " * size)) for i in idents]
    return [message for pair in pairs for message in pair]


def main_run(scene: Scene, length: int = 3) -> list[Message]:
    """The first calls of a run; returns its history, the last round included."""
    names = [f"k{i + 1}" for i in range(length)]
    for i, name in enumerate(names):
        scene.call(f"m{i + 1}", [*FIRST, *rounds(*names[:i])], use(name))
    return [*FIRST, *rounds(*names)]


@OPENCODE
def test_opencode_inserts_the_call_that_was_aborted(headers: Headers) -> None:
    scene = Scene(headers)
    history = main_run(scene, 1)
    broken = {"role": "assistant", "content": None, "tool_calls": [tool_call("x", "read", {})]}
    scene.call("e1", history, broken, outcome="upstream_cut")
    scene.call("m2", history, use("k2"))
    inserted = [*history, broken, result("x", "Tool execution aborted"), *rounds("k2")]
    scene.call("m3", inserted, use("k3"))
    scene.call("m4", [*inserted, *rounds("k3")], assistant("Done."))
    assert scene.story() == {
        "m1": "main: start",
        "e1": "main: retry <- m2",
        "m2": "main: continuation <- m1",
        "m3": "main: rewritten <- m2",
        "m4": "main: continuation <- m3",
    }
    assert len(scene.contexts()) == 1


@OPENCODE
def test_opencode_summarises_a_transcript_and_keeps_nothing(headers: Headers) -> None:
    scene = Scene(headers)
    scene.call("t", [system("Write a title."), TASK, user("title")], assistant("Tests"), (), kind="side")
    history = main_run(scene)
    asked = [system("You summarise."), user(f"{transcript(history[1:])}\nSummarise this.")]
    scene.call("s1", asked, assistant(SUMMARY), ())
    anew = [
        SYSTEM,
        user("What did we do so far?"),
        assistant(SUMMARY),
        user("Continue if you have next steps"),
    ]
    scene.call("r1", anew, use("k8"))
    scene.call("r2", [*anew, *rounds("k8")], assistant("Done."))
    assert scene.story() == MAIN_RUN | {
        "t": "side: side",
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
        "r2": "main: continuation <- r1",
    }
    families = {link.call.call_id: link.family for link in scene.tree().links}
    assert families["s1"] == "rendered_transcript"
    r1 = next(link for link in scene.tree().links if link.call.call_id == "r1")
    assert r1.targets == r1.output_tokens, "the summary in its prompt is context"


@OPENCODE
def test_opencode_waits_for_two_tasks_at_once(headers: Headers) -> None:
    scene = Scene(headers)
    one, two = Who("one", "main", 1, 0), Who("two", "main", 1, 0)
    calls = [
        tool_call(i, "task", {"prompt": f"check the {what} parser"})
        for i, what in (("t1", "date"), ("t2", "number"))
    ]
    give = assistant("", calls)
    child = [[SYSTEM, user(f"check the {what} parser")] for what in ("date", "number")]
    scene.call("m1", FIRST, give, times=(0, 100))
    scene.call("a1", child[0], use("u1"), ("read",), one, times=(110, 200))
    scene.call("b1", child[1], use("u2"), ("read",), two, times=(111, 210))
    scene.call(
        "a2", [*child[0], *rounds("u1")], assistant("dates are fine"), ("read",), one, times=(220, 300)
    )
    scene.call(
        "b2", [*child[1], *rounds("u2")], assistant("numbers are not"), ("read",), two, times=(215, 310)
    )
    results = [
        result("t1", '<task id="ses_one" state="completed">dates are fine</task>'),
        result("t2", '<task id="ses_two" state="completed">numbers are not</task>'),
    ]
    scene.call("m2", [*FIRST, give, *results], use("k2"), times=(320, 400))
    assert scene.story() == {
        "m1": "main: start",
        "a1": "sub: delegation blocking <- m1",
        "b1": "sub: delegation blocking <- m1",
        "a2": "sub: continuation <- a1",
        "b2": "sub: continuation <- b1",
        "m2": "main: continuation <- m1",
    }
    assert scene.contexts() == [["a1", "a2"], ["b1", "b2"], ["m1", "m2"]]


@OPENCODE
@pytest.mark.parametrize("ids", [True, False])
def test_opencode_prunes_old_results(headers: Headers, ids: bool) -> None:
    """Same roles, order and tool-call ids; what was sampled before counts once."""
    scene = Scene(headers, ids)
    history = main_run(scene)
    scene.call("m4", history, assistant("Done."))
    old = {"k1", "k2"}
    pruned = [m | {"content": "[cleared]"} if m.get("tool_call_id") in old else m for m in history]
    scene.call("p1", [*pruned, assistant("Done."), user("and the docs?")], use("k5"))
    scene.call(
        "p2", [*pruned, assistant("Done."), user("and the docs?"), *rounds("k5")], assistant("Done too.")
    )
    tree = scene.tree()
    assert scene.story() == MAIN_RUN | {
        "m4": "main: continuation <- m3",
        "p1": "main: edit <- m4",
        "p2": "main: continuation <- p1",
    }
    assert scene.contexts() == [["m1", "m2", "m3", "m4"], ["p1", "p2"]]
    assert tree.targets == (sum(link.output_tokens for link in tree.links) if ids else 0)


@OPENCODE
def test_arguments_come_back_in_other_words(headers: Headers) -> None:
    """JSON-same, not byte-same: the ids break, the context goes on."""
    scene = Scene(headers)
    said = [use("k1"), use("k2")]
    scene.call("m1", FIRST, said[0])
    second = [*FIRST, respaced(said[0]), result("k1", "ok")]
    scene.call("m2", second, said[1])
    scene.call("m3", [*second, respaced(said[1]), result("k2", "ok")], assistant("Done."))
    assert scene.story() == {
        "m1": "main: start",
        "m2": "main: retokenized <- m1",
        "m3": "main: retokenized <- m2",
    }
    assert len(scene.contexts()) == 1


def test_qwen_collapses_a_recovered_answer() -> None:
    scene = Scene()
    history = main_run(scene, 1)
    half = assistant("I will read")
    scene.call("m2", history, half, outcome="upstream_cut")
    scene.call("m3", [*history, half, user("Continue where you left off.")], use("k2"))
    both = use("k2") | {"content": "I will readnow k2"}
    scene.call("m4", [*history, both, result("k2", "ok")], assistant("Done."))
    story = scene.story()
    assert story == {
        "m1": "main: start",
        "m2": "main: continuation <- m1",
        "m3": "main: continuation <- m2",
        "m4": "main: rewritten <- m3",
    }
    assert len(scene.contexts()) == 1


def test_qwen_compacts_and_puts_reminders_before_the_summary() -> None:
    scene = Scene()
    history = main_run(scene)
    scene.call(
        "s1",
        [*history, user("Summarise the conversation.")],
        assistant(f"<state_snapshot>{SUMMARY}</state_snapshot>"),
    )
    last = use("k3") | {"content": "Got it. Thanks for the context! now k3"}
    anew = [SYSTEM, user(f"<state_snapshot>{SUMMARY}</state_snapshot>"), last, history[-1]]
    scene.call("r1", anew, use("k7"))
    reminded = user(
        f"<system-reminder>todo list is empty</system-reminder>\n<state_snapshot>{SUMMARY}</state_snapshot>"
    )
    scene.call("r2", [SYSTEM, reminded, *anew[2:], *rounds("k7")], use("k8"))
    scene.call("r3", [SYSTEM, reminded, *anew[2:], *rounds("k7", "k8")], assistant("Done."))
    assert scene.story() == MAIN_RUN | {
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
        "r2": "main: rewritten <- r1",
        "r3": "main: continuation <- r2",
    }
    families = {link.call.call_id: link.family for link in scene.tree().links}
    assert (families["s1"], families["r1"]) == ("suffix_prompt", "kept_tail")


def test_qwen_at_its_hard_limit_swaps_the_system_prompt() -> None:
    """The history from index 1 is the same; here the run goes on from it."""
    scene = Scene()
    history = main_run(scene)
    scene.call(
        "s1", [system("You compress histories."), *history[1:], user("Compress.")], assistant(SUMMARY), ()
    )
    scene.call("r1", [SYSTEM, user(SUMMARY), *history[-2:]], assistant("Done."))
    assert scene.story() == MAIN_RUN | {
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
    }


def test_qwen_runs_agents_in_the_background() -> None:
    scene = Scene()
    give = assistant("", [tool_call("t1", "agent", {"prompt": "measure how long the tests take"})])
    child = [system("You work for another agent."), user("<env>linux</env>\nmeasure how long the tests take")]
    launched = [*FIRST, give, result("t1", "running in the background, task_id: t1-9")]
    scene.call("m1", FIRST, give, times=(0, 100))
    scene.call("m2", launched, use("k2"), times=(105, 200))
    scene.call("a1", child, assistant("It takes nine seconds."), ("run",), times=(108, 260))
    note = user("<task-notification>t1: It takes nine seconds.</task-notification>")
    scene.call("m3", [*launched, *rounds("k2"), note], assistant("Done."), times=(270, 300))
    assert scene.story() == MAIN_RUN | {"a1": "sub: delegation background <- m1"}


@pytest.mark.parametrize("ids", [True, False])
def test_mini_swe_agent_leaves_out_an_answer_without_a_call(ids: bool) -> None:
    scene = Scene(ids=ids)
    history = main_run(scene, 1)
    scene.call("m2", history, assistant("I think it is done."))
    error = user("Format error: call exactly one tool.")
    scene.call("m3", [*history, error], use("k3"))
    scene.call("m4", [*history, error, *rounds("k3")], assistant("Done."))
    assert scene.story() == {
        "m1": "main: start",
        "m2": "main: continuation <- m1",
        "m3": "main: continuation response_absent <- m2",
        "m4": "main: continuation <- m3",
    }
    assert len(scene.contexts()) == 1
    assert all(link.targets for link in scene.tree().links) == ids


def test_deepagents_summarises_a_transcript_and_keeps_the_latest_round() -> None:
    scene = Scene()
    history = main_run(scene)
    scene.call("s1", [user(f"Extract what matters.\n{transcript(history)}")], assistant(SUMMARY), ())
    anew = [SYSTEM, user(f"Here is a summary of the conversation to date: {SUMMARY}"), *history[-2:]]
    scene.call("r1", anew, assistant("Done."))
    assert scene.story() == MAIN_RUN | {
        "s1": "main_summary: compaction summary <- m3",
        "r1": "main: compaction restart <- s1",
    }
    families = {link.call.call_id: link.family for link in scene.tree().links}
    assert (families["s1"], families["r1"]) == ("rendered_transcript", "kept_tail")


@pytest.mark.parametrize("tools", [(), ("search",)])
def test_an_agent_as_a_tool_gets_its_input_as_json(tools: tuple[str, ...]) -> None:
    """openai-agents: {"input": ...}; the child may have no tools at all, as a title call has none."""
    scene = Scene()
    give = assistant("", [tool_call("t1", "ask_expert", {"input": "which parser is faster?"})])
    scene.call("m1", FIRST, give)
    scene.call(
        "a1",
        [system("You are an expert."), user("which parser is faster?")],
        assistant("The new one."),
        tools,
    )
    scene.call("m2", [*FIRST, give, result("t1", "The new one.")], assistant("Use the new one."))
    assert scene.story() == {
        "m1": "main: start",
        "a1": "sub: delegation blocking <- m1",
        "m2": "main: continuation <- m1",
    }


def test_aider_puts_words_into_the_models_mouth_and_asks_for_a_commit_message() -> None:
    scene = Scene()
    canned = [SYSTEM, user("Here are my files"), assistant("Ok, I will use them."), TASK]
    scene.call("m1", canned, assistant("change a to b"))
    more = [*canned, assistant("change a to b"), user("The files changed."), assistant("Ok."), user("now c")]
    scene.call("m2", more, assistant("change b to c"))
    commit = [system("Write a commit message."), user("diff: -a +b")]
    scene.call("x", commit, assistant("fix: b for a"), (), kind="side")
    tree = scene.tree()
    assert scene.story() == {"m1": "main: start", "m2": "main: continuation <- m1", "x": "side: side"}
    sampled = {link.call.call_id: link.output_tokens for link in tree.links}
    assert tree.targets == sum(sampled.values()), "the canned turns are context"


@pytest.mark.parametrize("stripped", [True, False])
def test_reasoning_is_left_out_by_the_template_or_by_the_harness(stripped: bool) -> None:
    scene = Scene()
    first = assistant("looking", [tool_call("k1", "read", {"path": "a"})], "what do we have here")
    second = assistant("looking on", [tool_call("k2", "read", {"path": "b"})], "not enough yet")
    kept = first if stripped else {k: v for k, v in first.items() if k != "reasoning_content"}
    history = [*FIRST, kept, result("k1", "ok")]
    scene.call("m1", FIRST, first, stripped=stripped)
    scene.call("m2", history, second, stripped=stripped)
    kept = second if stripped else {k: v for k, v in second.items() if k != "reasoning_content"}
    scene.call("m3", [*history, kept, result("k2", "ok")], assistant("Done."), stripped=stripped)
    assert scene.story() == {
        "m1": "main: start",
        "m2": "main: reasoning_stripped <- m1",
        "m3": "main: reasoning_stripped <- m2",
    }
    assert len(scene.contexts()) == 1


def test_smolagents_writes_tool_calls_as_text() -> None:
    scene = Scene()
    scene.call("m1", FIRST, use("k1"))
    told = [*FIRST, assistant("now k1"), assistant("Calling tools: read src"), user("Observation: ok")]
    scene.call("m2", told, assistant("Done."))
    assert scene.story() == {"m1": "main: start", "m2": "main: rewritten <- m1"}
    assert len(scene.contexts()) == 1
