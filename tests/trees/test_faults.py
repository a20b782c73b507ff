"""Faults that users of other tree builders met, each a small execution."""

from __future__ import annotations

import numpy as np
import pytest

from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.trees import CallKey, Cause, Confidence, Link
from tests.trees.world.labels import Headers
from tests.trees.world.messages import Message, assistant, result, system, tool_call, user
from tests.trees.world.scene import Scene

FIRST = [system("You are a careful programmer."), user("make the tests pass")]
SUMMARY = "We repaired the number parser in src/number.c; the date parser is still to be done, see its tests."


def use(ident: str, reasoning: str = "") -> Message:
    return assistant(f"now {ident}", [tool_call(ident, "read", {"path": ident})], reasoning)


def rounds(*idents: str) -> list[Message]:
    return [message for i in idents for message in (use(i), result(i, f"output of {i}"))]


def links_of(scene: Scene) -> dict[str, Link]:
    return {link.call.call_id: link for link in scene.tree().links}


def test_the_same_request_twice_is_two_samples() -> None:
    """A compaction that writes its notes anew: nothing says that the first answer was lost."""
    scene = Scene()
    scene.call("a", FIRST, assistant("one way"))
    scene.call("b", FIRST, assistant("another way"))
    scene.call("c", [*FIRST, assistant("another way"), user("go on")], assistant("done"))
    links = links_of(scene)
    assert links["a"].confidence is Confidence.QUARANTINED
    assert links["a"].reason
    assert links["a"].targets == links["a"].output_tokens
    assert links["a"].context_id != links["b"].context_id
    assert scene.tree().targets == scene.tree().sampled_tokens


def test_the_same_request_with_a_retry_mark_is_one_sample() -> None:
    scene = Scene(Headers.OPENCODE)
    scene.call("a", FIRST, assistant("one way"))
    scene.call("b", FIRST, assistant("another way"), retry_count=1)
    scene.call("c", [*FIRST, assistant("another way"), user("go on")], assistant("done"))
    links = links_of(scene)
    assert scene.story() == {"a": "main: retry <- b", "b": "main: start", "c": "main: continuation <- b"}
    assert (links["a"].targets, links["a"].untrained) == (0, "reply_lost")
    assert links["a"].context_id == links["b"].context_id
    assert scene.tree().untrained == {"reply_lost": links["a"].output_tokens}


def test_a_stored_answer_that_is_sent_again_is_no_second_generation() -> None:
    scene = Scene(Headers.OPENCODE)
    scene.call("a", FIRST, assistant("one way"))
    scene.call("b", FIRST, assistant("one way"), retry_count=1, delivery_of="a", suffix=None, output=None)
    scene.call("c", [*FIRST, assistant("one way"), user("go on")], assistant("done"))
    tree, links = scene.tree(), links_of(scene)
    assert scene.story() == {"a": "main: start", "b": "main: retry <- a", "c": "main: continuation <- a"}
    assert links["a"].targets == links["a"].output_tokens
    assert (links["b"].targets, links["b"].prompt_node) == (0, None)
    assert tree.targets == tree.sampled_tokens


@pytest.mark.parametrize("outcome", ["client_gone", "timeout", "upstream_cut"])
def test_of_two_tries_of_the_last_call_the_one_that_arrived_counts(outcome: str) -> None:
    scene = Scene()
    scene.call("a", FIRST, use("k1"))
    scene.call("b", [*FIRST, *rounds("k1")], assistant("all done"), outcome=outcome)
    scene.call("c", [*FIRST, *rounds("k1")], assistant("well done"))
    links = links_of(scene)
    assert scene.story() == {"a": "main: start", "b": "main: retry <- c", "c": "main: continuation <- a"}
    assert (links["b"].targets, links["b"].untrained) == (0, f"outcome_{outcome}")


def test_of_two_whole_tries_of_the_last_call_it_is_said_that_nobody_knows() -> None:
    scene = Scene()
    scene.call("a", FIRST, use("k1"))
    scene.call("b", [*FIRST, *rounds("k1")], assistant("all done"))
    scene.call("c", [*FIRST, *rounds("k1")], assistant("well done"))
    links = links_of(scene)
    open_ = [name for name, link in links.items() if link.confidence is Confidence.QUARANTINED]
    assert len(open_) == 1 and open_[0] in ("b", "c")
    assert links[open_[0]].role == "unknown"
    assert "second sample" in (links[open_[0]].reason or "")


def test_a_compaction_that_takes_back_177_calls_is_a_compaction() -> None:
    scene = Scene()
    names = [f"k{i}" for i in range(178)]
    history = list(FIRST)
    for name in names:
        scene.call(name, history, use(name))
        history = [*history, *rounds(name)]
    scene.call("s", [*history, user("Summarise.")], assistant(SUMMARY))
    scene.call("r", [FIRST[0], user(f"So far: {SUMMARY}")], assistant("done"))
    tree, story = scene.tree(), scene.story()
    assert story["s"] == "main_summary: compaction summary <- k177"
    assert story["r"] == "main: compaction restart <- s"
    assert len(scene.contexts()) == 3
    assert tree.targets == tree.kept_targets == sum(link.output_tokens for link in tree.links)


@pytest.mark.parametrize("turns", [8, 20])
def test_a_template_that_strips_reasoning_leaves_stubs_and_all_are_kept(turns: int) -> None:
    scene = Scene()
    history = list(FIRST)
    for i in range(turns):
        answer = use(f"k{i}", f"I think of {i} and then of {i + 1}")
        scene.call(f"m{i}", history, answer, stripped=True)
        history = [*history, answer, result(f"k{i}", f"output {i}")]
    tree = scene.tree()
    causes = [link.cause for link in tree.links]
    assert causes == [Cause.START, *[Cause.REASONING_STRIPPED] * (turns - 1)]
    assert len(scene.contexts()) == 1
    assert tree.targets == tree.kept_targets == sum(link.output_tokens for link in tree.links)
    assert len({path.slot for path in tree.trajectories}) == 1
    assert sum(path.stub for path in tree.trajectories) == turns - 1


def test_reasoning_that_is_echoed_in_some_turns_only_does_not_part_messages() -> None:
    scene = Scene()
    first = use("k1", "first look around")
    last = assistant("all done", (), "that was easy")
    bare = {key: value for key, value in last.items() if key != "reasoning_content"}
    history = [*FIRST, first, result("k1", "ok")]
    scene.call("a", FIRST, first)
    scene.call("b", history, last)
    scene.call("c", [*history, bare, user("thanks")], assistant("you are welcome"))
    assert scene.story() == {
        "a": "main: start",
        "b": "main: continuation <- a",
        "c": "main: reasoning_stripped <- b",
    }
    assert len(scene.contexts()) == 1


@pytest.mark.parametrize(
    ("sampled", "rendered"),
    [
        (["set", "flag", "false", "now"], ["set", "flag", "False", "now"]),
        (["<parameter>", "</parameter>", "now"], ["<parameter>", "", "</parameter>", "now"]),
        (["parse", "json", "p", "now"], ["parse", "jsonp", "now"]),
    ],
)
def test_another_rendering_is_a_typed_break_at_its_token(sampled: list[str], rendered: list[str]) -> None:
    """`false` to `False`, an empty parameter, `json` + `p`: the messages are equal, the ids are not."""
    scene = Scene()
    answer = assistant("what the client made of it")
    scene.call("a", FIRST, answer)
    prompt = scene.calls[0].suffix
    assert prompt is not None
    output = scene.numbered([*sampled, "<end>"])
    scene.calls[0].output, scene.calls[0].logprobs = output, np.full(len(output), -0.5, np.float32)
    later = np.concatenate([prompt, scene.numbered([*rendered, "<end>", "<user>", "more", "<end>"])])
    scene.call("b", [*FIRST, answer, user("more")], assistant("done"))
    scene.calls[1].suffix, scene.calls[1].prompt_digest = later, None
    link = links_of(scene)["b"]
    same = next(i for i, (one, other) in enumerate(zip(sampled, rendered, strict=False)) if one != other)
    assert (link.cause, link.origin) == (Cause.RETOKENIZED, CallKey("a"))
    assert link.break_offset == len(prompt) + same
    assert link.break_before is not None and link.break_after is not None
    assert link.break_before.tolist() == output[same : same + 8].tolist()
    assert link.break_after.tolist() == later[len(prompt) + same :][:8].tolist()
    assert scene.tree().targets == scene.tree().sampled_tokens


@pytest.mark.parametrize("engine_strips", [True, False])
def test_a_billing_line_that_changes_with_every_call_is_no_new_agent(engine_strips: bool) -> None:
    def prompt(count: int) -> list[Message]:
        billing = f"x-anthropic-billing-header: cc_version=2.1; cch={count}ab;"
        blocks = [{"type": "text", "text": billing}, {"type": "text", "text": "You are a programmer."}]
        return [{"role": "system", "content": blocks}, FIRST[1]]

    scene = Scene()
    scene.call("a", prompt(1), use("k1"))
    scene.call("b", [*prompt(2), *rounds("k1")], use("k2"))
    scene.call("c", [*prompt(3), *rounds("k1", "k2")], assistant("done"))
    if engine_strips:
        for call in scene.calls:
            assert call.suffix is not None
            words = {number: word for word, number in scene.words.items()}
            keep = [i for i in call.suffix.tolist() if not words[i].startswith(("x-anthropic", "cc"))]
            call.suffix, call.prompt_digest = np.array(keep, np.int32), None
    causes = {name: link.cause for name, link in links_of(scene).items()}
    later = Cause.CONTINUATION if engine_strips else Cause.RETOKENIZED
    assert causes == {"a": Cause.START, "b": later, "c": later}
    assert len(scene.contexts()) == 1


def test_a_title_in_the_main_session_that_is_answered_first_is_not_the_main_agent() -> None:
    scene = Scene()
    scene.call(
        "t", [system("Name this."), user("make the tests pass")], assistant("Tests"), (), times=(0, 50)
    )
    scene.call("a", FIRST, use("k1"), times=(10, 200))
    scene.call("b", [*FIRST, *rounds("k1")], assistant("done"))
    assert scene.story() == {"t": "side: side", "a": "main: start", "b": "main: continuation <- a"}
    assert not any(path.role == "side" for path in scene.tree().trajectories)


def test_two_agents_that_take_turns_under_one_session_are_two_chains() -> None:
    scene = Scene(Headers.NONE)
    calls = [tool_call(name, "task", {"prompt": f"check module {name} carefully"}) for name in ("x", "y")]
    give = assistant("", calls)
    scene.call("m", FIRST, give)
    history = {name: [FIRST[0], user(f"check module {name} carefully")] for name in ("x", "y")}
    for turn in range(3):
        for name in ("x", "y"):
            ident = f"{name}{turn}"
            scene.call(ident, history[name], use(ident), session_id="s1")
            history[name] = [*history[name], *rounds(ident)]
    assert scene.contexts() == [["m"], ["x0", "x1", "x2"], ["y0", "y1", "y2"]]
    tree = scene.tree()
    assert tree.targets == tree.kept_targets == tree.sampled_tokens


def test_a_further_attempt_of_the_proxy_is_linked_to_the_one_that_answered() -> None:
    scene = Scene()
    scene.call("a", FIRST, use("k1"))
    for attempt, outcome in ((0, "timeout"), (1, "ok")):
        scene.call("b", [*FIRST, *rounds("k1")], assistant(f"done {attempt}"), outcome=outcome)
        scene.calls[-1].key = CallKey("b", attempt)
    first, second = scene.tree().links[1:]
    assert (first.cause, first.origin, first.confidence) == (Cause.RETRY, second.call, Confidence.PROVEN)
    assert (second.cause, second.origin) == (Cause.CONTINUATION, CallKey("a"))
    assert first.context_id == second.context_id


def test_the_same_row_twice_is_one_and_with_other_content_an_error() -> None:
    """Two workers wrote one execution: the order is that of the rows, names are not used twice."""
    scene = Scene()
    scene.call("a", FIRST, use("k1"))
    scene.call("a", FIRST, assistant("something else"))
    same, other = scene.calls
    builder = Builder("e1", bodies=scene.bodies)
    builder.add(same)
    builder.add(same)
    assert len(builder.tree().links) == 1
    with pytest.raises(ExecutionError, match="`a` is recorded twice"):
        builder.add(other)
    assert len(builder.tree().links) == 1


def test_a_missing_parent_and_ids_that_contradict_their_digest_are_named() -> None:
    scene = Scene()
    scene.call("a", FIRST, use("k1"))
    scene.call("b", [*FIRST, *rounds("k1")], assistant("done"))
    first, second = scene.calls
    lost = Call(CallKey("x"), CallKey("gone"), 3, second.suffix, second.prompt_digest, second.output)
    builder = Builder("e1", bodies=scene.bodies)
    builder.add(first)
    with pytest.raises(ExecutionError, match="`x`"):
        builder.add(lost)
    second.prompt_digest = first.prompt_digest
    with pytest.raises(ExecutionError, match="`b`"):
        builder.add(second)


def test_closing_markup_that_is_replayed_counts_once() -> None:
    """The history closes a call that was sampled open; what is trained is what was sampled."""
    scene = Scene()
    scene.call("a", FIRST, use("k1"), finish_reason="length")
    scene.call("b", [*FIRST, *rounds("k1")], use("k2"))
    scene.call("c", [*FIRST, *rounds("k1", "k2")], assistant("done"))
    tree = scene.tree()
    sampled = sum(len(call.output) for call in scene.calls if call.output is not None)
    assert tree.targets == tree.sampled_tokens == sampled
    trained = sum(len(node.token_ids) for node in tree.nodes if node.target)
    assert trained == sampled


def test_an_answer_cut_at_its_limit_has_no_made_up_close_in_what_is_trained() -> None:
    scene = Scene()
    half = assistant("let me", [tool_call("k1", "read", {"path": "a"})])
    scene.call("a", FIRST, half, finish_reason="length")
    scene.calls[0].output = scene.numbered(["let", "me", "read"])
    scene.calls[0].logprobs = np.full(3, -0.5, np.float32)
    scene.call("b", [*FIRST, half, user("go on")], assistant("done"))
    tree, link = scene.tree(), links_of(scene)["a"]
    assert link.targets == 3
    end = scene.words["<end>"]
    own = [node for node in tree.nodes if node.target and node.call == CallKey("a")]
    assert end not in [i for node in own for i in node.token_ids.tolist()]
