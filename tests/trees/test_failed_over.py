"""Attempts at an engine that failed, answered by another one: only the last row says what was asked."""

from __future__ import annotations

import pytest

from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.lineage.requests import with_requests
from gyre.treebuilder.trees import CallKey, Cause, Confidence, ExecutionTree
from tests.trees.world.built import plain
from tests.trees.world.labels import Headers, Who
from tests.trees.world.messages import assistant, result, system, tool_call, user
from tests.trees.world.scene import Body, Scene, line

EACH = pytest.mark.parametrize("headers", [Headers.CLAUDE, Headers.CODEX, Headers.OPENCODE, Headers.NONE])
IDS = pytest.mark.parametrize("ids", [True, False])
TASKS = ("look at everything on the left side", "look at everything on the right side")
FIRST = [system("You are a careful programmer."), user("make the tests pass")]
BOTH = assistant("", [tool_call(f"d{n}", "delegate", {"prompt": task}) for n, task in enumerate(TASKS)])
FOUND = [result(f"d{n}", f"child {n} found nothing") for n in range(2)]
AFTER = [*FIRST, BOTH, *FOUND]
EARLY, MIDDLE, LATE = (200, 300), (310, 390), (400, 500)


def child(number: int, task: str | None = None) -> list[Body]:
    return [system("You help another agent."), user(task or TASKS[number])]


def who(number: int) -> Who:
    return Who(f"child-{number}", "main", 1, 0)


def say(scene: Scene, number: int, tried: list[tuple[int, int]], task: str | None = None) -> None:
    """The one call of a child."""
    found = assistant(f"child {number} found nothing")
    scene.call(f"s{number}", child(number, task), found, ("read",), who(number), times=LATE, tried=tried)


@EACH
@IDS
@pytest.mark.parametrize("tried", [[EARLY], [EARLY, MIDDLE], [(200, 600)]], ids=["one", "two", "told late"])
def test_children_whose_only_call_failed_over_are_delegated(
    headers: Headers, ids: bool, tried: list[tuple[int, int]]
) -> None:
    scene = Scene(headers, ids)
    scene.call("m1", FIRST, BOTH)
    say(scene, 0, tried)
    say(scene, 1, tried)
    scene.call("m2", AFTER, assistant("done"), times=(700, 800))
    tries = {f"s{n} try {i}": f"sub: retry <- s{n}" for n in range(2) for i in range(len(tried))}
    assert scene.story() == tries | {
        "m1": "main: start",
        "s0": "sub: delegation blocking <- m1",
        "s1": "sub: delegation blocking <- m1",
        "m2": "main: continuation <- m1",
    }


@EACH
@IDS
def test_the_main_agent_and_each_of_its_turns_may_fail_over(headers: Headers, ids: bool) -> None:
    scene = Scene(headers, ids)
    looked = assistant("", [tool_call("k1", "read", {"path": "a.c"})])
    scene.call("m1", FIRST, looked, times=(100, 150), tried=[(10, 90)])
    scene.call("m2", [*FIRST, looked, result("k1", "text")], BOTH, times=(300, 350), tried=[(200, 290)])
    assert scene.story() == {
        "m1 try 0": "main: retry <- m1",
        "m1": "main: start",
        "m2 try 0": "main: retry <- m2",
        "m2": "main: continuation <- m1",
    }


@EACH
@IDS
def test_side_calls_stay_side_calls(headers: Headers, ids: bool) -> None:
    scene = Scene(headers, ids)
    scene.call("m1", FIRST, BOTH)
    scene.call(
        "title", [system("Give it a title."), user("make")], assistant("Tests"), (), tried=[(110, 150)]
    )
    story = scene.story()
    assert (story["title"], story["title try 0"]) == ("side: side", "side: retry <- title")


@IDS
@pytest.mark.parametrize("other", [EARLY, MIDDLE], ids=["together", "one by one"])
def test_two_that_were_asked_the_very_same_and_failed_over_are_two(ids: bool, other: tuple[int, int]) -> None:
    """An engine that is down fails them in a moment, one after the other, while both calls are open."""
    scene = Scene(Headers.NONE, ids)
    calls = [tool_call(f"d{n}", "delegate", {"prompt": TASKS[0]}) for n in (0, 1)]
    scene.call("m1", FIRST, assistant("", calls))
    say(scene, 0, [EARLY], TASKS[0])
    say(scene, 1, [other], TASKS[0])
    history = [*FIRST, assistant("", calls), *FOUND]
    scene.call("m2", history, assistant("done"))
    assert scene.story() == {
        "m1": "main: start",
        "s0 try 0": "sub: retry <- s0",
        "s1 try 0": "sub: retry <- s1",
        "s0": "sub: delegation blocking <- m1",
        "s1": "sub: delegation blocking <- m1",
        "m2": "main: continuation <- m1",
    }


def kill(scene: Scene, attempts: int) -> None:
    """The last call's attempts were a call of their own, whose proxy died in the last of them."""
    *tried, answered = scene.calls[-1 - attempts :]
    for row in tried:
        row.key = CallKey("gone", row.key.attempt)
    answered.key = CallKey(answered.key.call_id)
    lost = tried[-1]
    lost.outcome, lost.hints = "interrupted", {}
    lost.session_id = lost.agent_id = lost.parent_agent_id = None


@EACH
@IDS
@pytest.mark.parametrize("tried", [[EARLY], [EARLY, MIDDLE]], ids=["one", "two"])
def test_a_call_that_died_with_its_proxy_asked_what_is_asked_again(
    headers: Headers, ids: bool, tried: list[tuple[int, int]]
) -> None:
    """No attempt of it got as far as to carry the request, and the last one names nobody."""
    scene = Scene(headers, ids)
    scene.call("m1", FIRST, BOTH)
    say(scene, 0, tried)
    kill(scene, len(tried))
    scene.call("m2", AFTER, assistant("done"))
    tries = {"gone try 0": "sub: retry <- s0"} if len(tried) > 1 else {}
    assert scene.story() == tries | {
        "m1": "main: start",
        "gone": "sub: retry <- s0",
        "s0": "sub: delegation blocking <- m1",
        "m2": "main: continuation <- m1",
    }
    link = next(link for link in scene.tree().links if link.call == CallKey("s0"))
    assert headers is Headers.NONE or link.confidence is Confidence.STATED


def test_a_summary_request_that_died_with_its_proxy_is_still_one() -> None:
    scene = Scene(Headers.CODEX)
    scene.call("m1", FIRST, assistant("I look at a.c"))
    asked = [*FIRST, assistant("I look at a.c"), user("write down what there is to know")]
    scene.call("sum", asked, assistant("a.c was looked at"), kind="compaction", times=LATE, tried=[EARLY])
    kill(scene, 1)
    assert scene.story() == {
        "m1": "main: start",
        "gone": "main_summary: retry <- sum",
        "sum": "main_summary: compaction summary <- m1",
    }


def family(headers: Headers, ids: bool) -> Scene:
    scene = Scene(headers, ids)
    scene.call("m1", FIRST, BOTH, times=(100, 150), tried=[(10, 90)])
    say(scene, 0, [EARLY])
    say(scene, 1, [EARLY, MIDDLE])
    scene.call("m2", AFTER, assistant("done"), times=(700, 800), tried=[(600, 900)])
    return scene


def added(scene: Scene, calls: list[Call], *, asking: bool) -> ExecutionTree:
    builder = Builder("e1", bodies=scene.bodies)
    for call in calls:
        builder.add(call)
        if asking:
            builder.tree()
    return builder.tree()


@EACH
@IDS
@pytest.mark.parametrize("last_first", [False, True])
def test_a_tree_asked_for_before_the_answer_came_makes_no_difference(
    headers: Headers, ids: bool, last_first: bool
) -> None:
    """What an attempt asked for is known only when the last one is there."""
    scene = family(headers, ids)
    names = ["m1", "s0", "s1", "m2"]
    turned = sorted(scene.calls, key=lambda call: (names.index(call.key.call_id), -call.key.attempt))
    calls = turned if last_first else sorted(scene.calls, key=lambda call: call.ended_ns)
    whole = added(scene, calls, asking=False)
    assert plain(added(scene, calls, asking=True)) == plain(whole)
    assert plain(added(scene, calls, asking=False)) == plain(whole)
    told = {(link.call.call_id, line(link)) for link in whole.links if link.cause is Cause.RETRY}
    assert told == {(name, f"{'sub' if name in ('s0', 's1') else 'main'}: retry <- {name}") for name in names}
    assert [line(link) for link in whole.links if link.call in (CallKey("s0", 1), CallKey("s1", 2))] == [
        "sub: delegation blocking <- m1"
    ] * 2


def test_an_attempt_has_its_messages_from_the_row_that_carries_them_as_from_a_parent() -> None:
    carrier = Call(CallKey("a", 1), CallKey("p"), messages_shared=2, messages=["x"], tools=("t",))
    tried, other = Call(CallKey("a")), Call(CallKey("b"), request_digest=b"else")
    first, second, third = with_requests([tried, other, carrier])
    assert (second, third) == (other, carrier)
    assert (first.parent, first.messages_shared, first.messages, first.tools) == (carrier.key, 3, [], ("t",))
    assert tried == Call(CallKey("a")), "what was given is as it was"
