"""Executions in which words or ids are alike and stand for different things; labels hidden."""

from __future__ import annotations

from gyre.treebuilder.trees import Cause
from tests.trees.world.labels import Headers, Who
from tests.trees.world.messages import assistant, result, system, tool_call, transcript, user
from tests.trees.world.scene import Scene

ASKED = "please read every file under src and say which of them parses numbers"
FIRST = [system("You are a careful programmer."), user("make the tests pass")]
CHILD = [system("You help another agent."), user(ASKED)]
SUMMARIES = (
    "We repaired the number parser in src/number.c and the date parser is still to be done.",
    "The date parser in src/date.c is repaired as well; only the release notes are left to write.",
)


def test_two_children_that_were_asked_the_very_same_are_two() -> None:
    scene = Scene()
    both = assistant("", [tool_call(f"d{n}", "delegate", {"prompt": ASKED}) for n in (1, 2)])
    scene.call("m1", FIRST, both)
    for child in ("a", "b"):
        looked = assistant(f"{child} looks", [tool_call(f"{child}1", "read", {"path": f"src/{child}.c"})])
        scene.call(f"{child}1", CHILD, looked)
        scene.call(f"{child}2", [*CHILD, looked, result(f"{child}1", "text")], assistant(f"{child} is done"))
    assert scene.story() == {
        "m1": "main: start",
        "a1": "sub: delegation blocking <- m1",
        "a2": "sub: continuation <- a1",
        "b1": "sub: delegation blocking <- m1",
        "b2": "sub: continuation <- b1",
    }
    assert scene.contexts() == [["a1", "a2"], ["b1", "b2"], ["m1"]]


def test_a_rendered_history_that_holds_an_earlier_summary_is_a_summary_request_itself() -> None:
    """Nobody here has tools, so that a request without them says nothing."""
    scene = Scene()
    scene.call("m1", FIRST, assistant("I looked at src/number.c."), ())
    history = [*FIRST, assistant("I looked at src/number.c.")]
    for n, summary in enumerate(SUMMARIES, 1):
        asked = [system("You summarise."), user(transcript(history[1:]))]
        scene.call(f"s{n}", asked, assistant(summary), ())
        history = [FIRST[0], user(f"The story so far: {summary}")]
        scene.call(f"r{n}", history, assistant(f"I go on with part {n} of the work."), ())
        history = [*history, assistant(f"I go on with part {n} of the work.")]
    assert scene.story() == {
        "m1": "main: start",
        "s1": "main_summary: compaction summary <- m1",
        "r1": "main: compaction restart <- s1",
        "s2": "main_summary: compaction summary <- r1",
        "r2": "main: compaction restart <- s2",
    }


def test_a_session_under_a_new_name_goes_on_by_ids_and_the_headers_are_told_off() -> None:
    scene = Scene(Headers.OPENCODE)
    scene.call("m1", FIRST, assistant("done"))
    again = Who("resumed", None, 0, 0)
    scene.call("m2", [*FIRST, assistant("done"), user("and now?")], assistant("more"), who=again)
    first, second = scene.tree().links
    assert (second.cause, second.origin, second.agrees) == (Cause.CONTINUATION, first.call, False)
    assert [one.call for one in scene.tree().disagreements] == [second.call]
