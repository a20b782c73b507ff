"""The builder through its own interface: what a call may be, what may be trained, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gyre.treebuilder.builder import Builder
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.options import Options, Rule
from gyre.treebuilder.trees import CallKey, Cause, Confidence, ExecutionTree, Ids, Role

SECOND = 1_000_000_000


def ids(values: list[int]) -> Ids:
    return np.array(values, np.int32)


def call(name: str, prompt: list[int], output: list[int], **fields: Any) -> Call:
    """A call that came whole, with what a complete capture has."""
    made = Call(CallKey(name), suffix=ids(prompt), output=ids(output))
    made.logprobs = np.linspace(-1, -0.5, len(output), dtype=np.float32)
    made.prompt_digest = xxhash.xxh3_128_digest(ids(prompt).tobytes())
    made.messages = [f"{name}-message"]
    made.response = orjson.dumps({"role": "assistant", "content": f"answer of {name}"})
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def built(*calls: Call, options: Options | None = None) -> ExecutionTree:
    builder = Builder("e1")
    for n, one in enumerate(calls):
        one.started_ns = one.started_ns or n * 2 * SECOND
        one.ended_ns = one.ended_ns or one.started_ns + SECOND
        builder.add(one)
    return builder.tree(options)


def test_a_prompt_that_begins_with_all_that_was_there_goes_on() -> None:
    tree = built(call("a", [1, 2], [3]), call("b", [1, 2, 3, 4], [5, 6]))
    assert [link.cause for link in tree.links] == [Cause.START, Cause.CONTINUATION]
    assert tree.links[1].confidence is Confidence.PROVEN
    assert tree.links[1].shared_tokens == 3
    assert [node.token_ids.tolist() for node in tree.nodes] == [[1, 2], [3], [4], [5, 6]]
    assert [node.target for node in tree.nodes] == [False, True, False, True]
    assert tree.targets == tree.kept_targets == 3


def test_a_delta_gives_the_tree_that_whole_prompts_give() -> None:
    delta = call("b", [1, 2, 3, 4], [5, 6], parent=CallKey("a"), shared=3, suffix=ids([4]))
    again = call("c", [1, 2, 9], [7], parent=CallKey("b"), shared=2, suffix=ids([9]))
    parts = built(call("a", [1, 2], [3]), delta, again)
    whole = built(call("a", [1, 2], [3]), call("b", [1, 2, 3, 4], [5, 6]), call("c", [1, 2, 9], [7]))
    assert [(n.parent_id, n.depth, n.token_ids.tolist(), n.target) for n in parts.nodes] == [
        (n.parent_id, n.depth, n.token_ids.tolist(), n.target) for n in whole.nodes
    ]
    assert [link.cause for link in parts.links] == [link.cause for link in whole.links]


def test_more_calls_may_come_after_a_tree_was_asked_for() -> None:
    first, second = call("a", [1, 2], [3]), call("b", [1, 2, 3, 4], [5])
    builder = Builder("e1")
    builder.add(first)
    assert builder.tree().targets == 1
    builder.add(second)
    assert builder.tree().targets == built(first, second).targets == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"capture_quality": "incomplete"}, "capture_incomplete"),
        ({"capture_quality": "ids_only"}, "capture_ids_only"),
        ({"logprob_quality": "greedy"}, "greedy"),
        ({"logprobs": np.array([np.nan, -1], np.float32)}, "logprobs_not_finite"),
        ({"flags": ("late",)}, "late"),
        ({"flags": ("version_unsure",)}, "version_unsure"),
        ({"outcome": "client_gone"}, "outcome_client_gone"),
        ({"evaluation": True}, "evaluation"),
    ],
)
def test_what_may_not_be_trained_stays_as_context_and_says_why(fields: dict[str, Any], reason: str) -> None:
    tree = built(call("a", [1, 2], [3, 4], **fields))
    assert (tree.targets, tree.sampled_tokens, tree.untrained) == (0, 2, {reason: 2})
    assert tree.links[0].untrained == reason
    assert tree.trajectories == []


@pytest.mark.parametrize("quality", ["sampled", "raw", "unknown"])
def test_how_well_log_probabilities_fit_is_for_the_trainer_to_weigh(quality: str) -> None:
    assert built(call("a", [1], [2], logprob_quality=quality)).targets == 1


def test_a_cut_answer_that_was_gone_on_from_is_trained() -> None:
    tree = built(call("a", [1, 2], [3], outcome="upstream_cut"), call("b", [1, 2, 3, 4], [5]))
    assert tree.targets == 2
    assert tree.links[0].untrained is None


def test_tokens_sampled_twice_at_one_place_are_one_target_of_the_first() -> None:
    tree = built(call("a", [1, 2], [3, 4]), call("b", [1, 2], [3, 5], retry_count=None))
    assert tree.sampled_tokens == tree.targets == 3
    owners = {tuple(node.token_ids.tolist()): node.call.call_id for node in tree.nodes if node.target}
    assert owners[3,] == "b", "of two tries that are alike the one that is kept"
    tree = built(call("a", [1, 2], [3, 4]), call("a", [1, 2], [3, 5], key=CallKey("a", 0, 1)))
    owners = {tuple(node.token_ids.tolist()): str(node.call.choice) for node in tree.nodes if node.target}
    assert owners == {(3,): "0", (4,): "0", (5,): "1"}


def test_what_a_failed_try_began_is_trained_where_a_complete_one_sampled_it_too() -> None:
    tree = built(call("a", [1, 2], [3], outcome="client_gone"), call("b", [1, 2], [3, 4]))
    assert [node.token_ids.tolist() for node in tree.nodes if node.target] == [[3], [4]]
    assert {node.call.call_id for node in tree.nodes if node.target} == {"b"}


def test_log_probabilities_and_versions_stay_with_their_tokens() -> None:
    spans = [("7", 0, 2), ("8", 2, 4)]
    one = call("a", [1], [2, 3, 4, 5], version_spans=spans)
    tree = built(one, call("b", [1, 2, 3, 9], [6]))
    runs = [node for node in tree.nodes if node.call.call_id == "a" and node.sampled]
    assert [node.token_ids.tolist() for node in runs] == [[2, 3], [4, 5]]
    assert [node.version_spans for node in runs] == [[("7", 0, 2)], [("8", 0, 2)]]
    logprobs = [node.logprobs for node in runs if node.logprobs is not None]
    assert one.logprobs is not None and np.concatenate(logprobs).tolist() == one.logprobs.tolist()


def test_each_link_says_how_its_call_was_sampled() -> None:
    first, retried = call("a", [1, 2], [3], temperature=0.7), call("b", [1, 2], [4], retry_count=1)
    first.sampling, retried.sampling = "neutral", "changed"
    retried.temperature, retried.logprob_quality = 0.0, "greedy"
    sent = call("c", [], [], delivery_of="a", temperature=0.7, sampling="neutral")
    tree = built(first, retried, call("d", [1, 2, 3, 4], [5]), sent)
    assert [link.temperature for link in tree.links] == [0.7, 0.0, None, None]
    assert [link.logprob_quality for link in tree.links] == ["sampled", "greedy", "sampled", None]
    assert [link.sampling for link in tree.links] == ["neutral", "changed", None, None]


def test_two_answers_to_one_request_are_quarantined_and_chosen_last() -> None:
    tree = built(call("a", [1, 2], [3]), call("b", [1, 2], [4]), call("c", [1, 2, 4, 5], [6]))
    first = tree.links[0]
    assert (first.cause, first.confidence, first.role) == (Cause.RETRY, Confidence.QUARANTINED, Role.UNKNOWN)
    assert first.reason and first.origin == CallKey("b")
    assert tree.targets == 3, "a quarantined link leaves tokens targets"
    assert [t.role for t in tree.trajectories] == [Role.MAIN, Role.UNKNOWN]


def test_a_retry_mark_says_that_the_answer_was_lost() -> None:
    tree = built(call("a", [1, 2], [3]), call("b", [1, 2], [4], retry_count=1))
    assert (tree.links[0].cause, tree.links[0].confidence) == (Cause.RETRY, Confidence.STATED)
    assert tree.untrained == {"reply_lost": 1}


def test_a_stored_answer_sent_again_is_no_generation() -> None:
    tree = built(call("a", [1, 2], [3]), call("b", [1, 2], [3], delivery_of="a"))
    assert (tree.links[1].cause, tree.links[1].untrained) == (Cause.RETRY, "delivery")
    assert (tree.sampled_tokens, tree.targets) == (1, 1)


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (call("b", [1, 2, 3, 4], [5], parent=CallKey("x"), shared=3, suffix=ids([4])), "missing"),
        (call("b", [1, 2, 3, 4], [5], parent=CallKey("a"), shared=9, suffix=ids([4])), "too short"),
        (call("b", [1, 2, 3, 4], [5], prompt_digest=b"x" * 16), "not those that were captured"),
        (call("a", [1, 2], [9]), "recorded twice"),
    ],
)
def test_a_call_that_contradicts_earlier_ones_is_named(second: Call, words: str) -> None:
    builder = Builder("e1")
    builder.add(call("a", [1, 2], [3]))
    with pytest.raises(ExecutionError, match=words) as caught:
        builder.add(second)
    assert f"`{second.key.call_id}`" in str(caught.value)
    assert builder.tree().targets == 1, "what was added before is whole"


def test_the_same_row_read_twice_is_one_call() -> None:
    tree = built(call("a", [1, 2], [3]), call("a", [1, 2], [3]))
    assert len(tree.links) == 1


def test_parents_in_a_circle_are_reported_and_not_followed() -> None:
    one = call("a", [1], [2], session_id="s", agent_id="x", parent_agent_id="y")
    other = call("b", [3], [4], session_id="s", agent_id="y", parent_agent_id="x")
    tree = built(one, other)
    assert any("cycle" in problem for problem in tree.problems)
    assert tree.targets == 2


def test_headers_that_contradict_ids_are_reported() -> None:
    first = call("a", [1, 2], [3], session_id="s", agent_id="s")
    stray = call("b", [1, 2, 3, 4], [5], session_id="s", agent_id="z", parent_agent_id="q")
    tree = built(first, stray)
    assert [one.call.call_id for one in tree.disagreements] == ["b"]
    assert tree.links[1].agrees is False


def test_a_call_without_any_tokens_is_a_link_without_a_node() -> None:
    refused = Call(CallKey("a"), outcome="upstream_error", messages=["m"], request_digest=b"r")
    answered = call("b", [1, 2], [3], messages=["m"], request_digest=b"r")
    tree = built(refused, answered)
    assert (tree.links[0].cause, tree.links[0].origin) == (Cause.RETRY, CallKey("b"))
    assert tree.links[0].prompt_node is None
    assert tree.exact


def test_an_execution_without_calls_is_an_empty_tree() -> None:
    tree = built()
    assert (tree.nodes, tree.links, tree.trajectories, tree.targets) == ([], [], [], 0)


def stripped_run(turns: int) -> list[Call]:
    """Each answer is rendered without its first id in the next prompt, as where reasoning is stripped."""
    prompt, calls = [1], []
    for n in range(turns):
        messages = [text for m in range(n) for text in (f"q{m}", f"a{m}")] + [f"q{n}"]
        calls.append(call(f"c{n}", prompt, [100 + n, 200 + n], messages=messages, response=answer(n)))
        prompt = [*prompt, 200 + n, 300 + n]
    return calls


def answer(n: int) -> bytes:
    return orjson.dumps({"role": "assistant", "content": f"answer {n}", "reasoning_content": "hm"})


def bodies_of(turns: int) -> dict[str, bytes]:
    asked = {f"q{n}": orjson.dumps({"role": "user", "content": f"question {n}"}) for n in range(turns)}
    return asked | {f"a{n}": answer(n) for n in range(turns)}


@pytest.mark.parametrize(
    ("rule", "slots", "kept"),
    [(Rule.QWENGYRE, 1, 8), (Rule.PAPER, 2, 4), (Rule.COVERAGE, 1, 8), (Rule.ALL, 1, 8)],
)
def test_the_literal_rule_counts_every_stub_and_the_others_let_them_ride(
    rule: Rule, slots: int, kept: int
) -> None:
    builder = Builder("e1", bodies=bodies_of(4))
    for n, one in enumerate(stripped_run(4)):
        one.started_ns, one.ended_ns = n * 2 * SECOND, (n * 2 + 1) * SECOND
        builder.add(one)
    tree = builder.tree(Options(cap=2, rule=rule))
    assert [link.cause for link in tree.links] == [Cause.START, *[Cause.REASONING_STRIPPED] * 3]
    assert tree.targets == 8, "none is lost by the breaks"
    assert len({trajectory.slot for trajectory in tree.trajectories}) == slots
    assert tree.kept_targets == kept


def test_a_prompt_that_leaves_its_parent_in_the_answer_is_proven_too() -> None:
    first = call("a", [1, 2], [3, 4, 5])
    second = call("b", [1, 2, 3, 9], [6], parent=CallKey("a"), shared=3, suffix=ids([9]))
    tree = built(first, second)
    assert [n.token_ids.tolist() for n in tree.path(tree.links[1].output_node or 0)] == [
        [1, 2],
        [3],
        [9],
        [6],
    ]
    second.prompt_digest = xxhash.xxh3_128_digest(ids([1, 2, 3, 8]).tobytes())
    with pytest.raises(ExecutionError, match="not those that were captured"):
        built(first, second)


def test_without_ids_the_evidence_speaks_of_blocks() -> None:
    first = Call(CallKey("a"), messages=["q0"], response=answer(0), ended_ns=1)
    second = Call(CallKey("b"), messages=["q0", "a0", "q1"], response=answer(1), started_ns=2, ended_ns=3)
    builder = Builder("e1", bodies=bodies_of(2))
    builder.add(first)
    builder.add(second)
    [evidence] = builder.tree().links[1].evidence
    assert evidence == ("messages", "begins with all 2 blocks of `a`")


def test_what_is_left_out_is_counted_by_role() -> None:
    calls = [call(f"c{n}", [n * 10 + 1, n * 10 + 2], [n * 10 + 3]) for n in range(7)]
    tree = built(*calls, options=Options(cap=3))
    assert len(tree.trajectories) == 3
    assert tree.left_out == {"cap:unknown": 4}
    assert built(*calls, options=Options(rule=Rule.ALL)).left_out == {}


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=4)),
        max_size=8,
    )
)
def test_whatever_the_ids_are_the_tree_holds_them(drawn: list[tuple[list[int], list[int]]]) -> None:
    calls = [call(f"c{n}", prompt, output) for n, (prompt, output) in enumerate(drawn)]
    tree = built(*calls)
    for one, link in zip(calls, tree.links, strict=True):
        path = [] if link.output_node is None else tree.path(link.output_node)
        spelled = [int(i) for node in path for i in node.token_ids]
        assert one.suffix is not None and one.output is not None
        assert spelled == [*one.suffix.tolist(), *one.output.tolist()]
    assert tree.targets + sum(tree.untrained.values()) == tree.sampled_tokens
    assert tree.kept_targets + sum(tree.left_out.values()) == tree.targets
    assert sum(link.targets for link in tree.links) == tree.targets
