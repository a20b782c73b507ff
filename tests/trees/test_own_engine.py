"""Trees of what gyre's own engine was recorded with: tempered sampling, two versions, moved answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import ExecutionTree, Node
from gyre.treebuilder.verify import verify_trees
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request
from tests.engines.tokens import logprobs_for, tokenize
from tests.proxy.running import RunningProxy, until_cut

HI = [{"role": "user", "content": "hi"}]
STREAMED = pytest.mark.parametrize("stream", [False, True])


def built(root: Path) -> ExecutionTree:
    report = build_trees(root / "logs", root / "trees")
    assert report.ok and verify_trees(root / "trees") == []
    return read_trees(root / "trees").tree("e1")


def targets(tree: ExecutionTree) -> list[Node]:
    return [node for node in tree.nodes if node.target]


def recorded(root: Path, script: Any, calls: Callable[[RunningProxy], None]) -> ExecutionTree:
    with FakeEngine(kind="gyre", script=script) as engine, RunningProxy(root / "logs", engine) as proxy:
        calls(proxy)
    return built(root)


def said(*texts: str) -> list[dict[str, Any]]:
    """The conversation after these answers."""
    roles = ("assistant", "user")
    return [*HI, *({"role": roles[i % 2], "content": text} for i, text in enumerate(texts))]


@STREAMED
def test_tempered_answers_are_targets_with_what_they_were_sampled_from(tmp_path: Path, stream: bool) -> None:
    answer = Answer(text="abcdef", versions=[("3", 0, 4), ("4", 4, 7)])
    tree = recorded(
        tmp_path, answer, lambda proxy: proxy.chat(stream=stream, temperature=0.5, top_p=0.9) and None
    )
    (node,) = targets(tree)
    assert (node.token_ids.tolist(), tree.untrained) == (answer.output_ids, {})
    assert node.logprobs is not None
    assert node.logprobs.tolist() == [value / 2 for value in logprobs_for(answer.output_ids)]
    assert node.version_spans == [("3", 0, 4), ("4", 4, 7)]
    assert tree.links[0].temperature == 0.5


def test_greedy_answers_are_context(tmp_path: Path) -> None:
    tree = recorded(tmp_path, Answer(text="abcdef"), lambda proxy: proxy.chat(temperature=0) and None)
    assert (targets(tree), tree.untrained) == ([], {"greedy": 7})


def moving(request: Request) -> Answer:
    """The first engine exports the conversation after three tokens; the second one goes on."""
    if "output_token_ids" in request.json:
        return Answer(text="abcdef", versions=[("3", 0, 3), ("4", 3, 7)])
    if len(request.json["messages"]) > 1:
        return Answer(text="end")
    # `length` samples no end token, as a moved answer has none.
    return Answer(text="abc", finish_reason="length", choice_extra={"finish_reason": "moved"})


@STREAMED
def test_a_moved_answer_that_was_gone_on_from_is_trained_with_what_followed(
    tmp_path: Path, stream: bool
) -> None:
    def calls(proxy: RunningProxy) -> None:
        if stream:
            assert until_cut(proxy)[1]
        else:
            assert proxy.chat().status_code == 502
        assert proxy.chat(stream=stream, output_token_ids=tokenize("abc")).status_code == 200
        proxy.chat(messages=said("abcdef", "go on"))

    tree = recorded(tmp_path, moving, calls)
    assert [node.token_ids.tolist() for node in targets(tree)] == [
        tokenize("abc"),
        tokenize("def<|im_end|>"),
        tokenize("end<|im_end|>"),
    ]
    assert [node.version_spans for node in targets(tree)] == [[("0", 0, 3)], [("4", 0, 4)], [("0", 0, 4)]]
    assert [str(link.cause) for link in tree.links] == ["start", "continuation", "continuation"]
    assert tree.untrained == {}


def test_an_aborted_answer_that_was_asked_for_again_is_context(tmp_path: Path) -> None:
    def calls(proxy: RunningProxy) -> None:
        with pytest.raises(httpx.RemoteProtocolError):
            proxy.chat(stream=True)
        proxy.chat(stream=True)
        proxy.chat(messages=said("other", "go on"))

    script = [
        Answer(text="abc", finish_reason="length", choice_extra={"finish_reason": "abort"}),
        Answer(text="other"),
        Answer(text="end"),
    ]
    tree = recorded(tmp_path, script, calls)
    assert [node.token_ids.tolist() for node in targets(tree)] == [
        tokenize("other<|im_end|>"),
        tokenize("end<|im_end|>"),
    ]
    assert [str(link.cause) for link in tree.links] == ["retry", "start", "continuation"]
    assert tree.untrained == {"outcome_upstream_cut": 3}
