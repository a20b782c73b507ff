"""Programs against the demo's real engine: SmolLM2 in llama.cpp, whose template knows no tools.

Requests of a few kilobytes fit its window of 8,192 tokens: Claude Code's with `--bare`, mini-swe-agent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gyre.proxy.calls import CallRecord
from gyre.proxy.log.check import check
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import Cause, ExecutionTree, Role
from gyre.treebuilder.verify import verify_trees
from tests.harnesses.agents import claude_code, mini_swe_agent, opencode
from tests.proxy.running import RunningProxy
from tests.test_engine import engine_process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STORY = "Say in one sentence what a lighthouse keeper does."
TRIES = 3
"""A word of an odd script, of which llama.cpp gives no log-probabilities, is rare, and no fault of ours."""


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with engine_process() as (url, _):
        yield url


def run_until_exact(
    folder: Path, engine: str, run: Callable[[Path, str], None]
) -> tuple[list[CallRecord], ExecutionTree]:
    """An execution all of whose calls are exact. Those of earlier tries say why they are not."""
    for number in range(TRIES):
        name = f"e{number}"
        with RunningProxy(folder / "logs", engine) as proxy:
            run(folder / name, f"{proxy.url}/x/{name}")
            rows = [row for row in proxy.rows() if row.identity.execution_id == name]
        if all(row.capture_quality == "exact" for row in rows):
            return rows, proven(folder, engine, name)
        odd = [row for row in rows if row.capture_quality != "exact"]
        assert all("logprobs_incomplete" in row.capture_flags for row in odd)
        assert not any((row.response or b"").isascii() for row in odd)
    raise AssertionError(f"no run of {TRIES} was exact")


def proven(folder: Path, engine: str, name: str) -> ExecutionTree:
    """The log is what was captured and what the engine makes of it; the trees are what the log says."""
    assert check(folder / "logs", engine=engine).ok
    assert build_trees(folder / "logs", folder / "trees", strict=True).ok
    assert verify_trees(folder / "trees") == []
    return read_trees(folder / "trees").tree(name)


def trained(rows: list[CallRecord], tree: ExecutionTree) -> bool:
    sampled = sum(len(row.output or b"") // 4 for row in rows)
    return tree.targets == tree.kept_targets == tree.sampled_tokens == sampled


def two_turns(home: Path, url: str) -> None:
    """Of one session of Claude Code, each a process of its own."""
    for flags, task in (((), STORY), (("-c",), "And at night?")):
        agent = claude_code(home, url, "--bare", *flags, CLAUDE_CODE_MAX_OUTPUT_TOKENS="40")
        ran = agent.run(task, timeout=400)
        # It asks three times for the rest of an answer that is too long, and then says so.
        assert ran.code == 0 or "output token maximum" in ran.out, ran


@pytest.mark.harness
def test_claude_code_with_a_real_model_is_exact_through_the_translated_wire(
    tmp_path: Path, engine: str
) -> None:
    rows, tree = run_until_exact(tmp_path, engine, two_turns)
    assert len(rows) >= 2
    assert {(row.wire, row.upstream_wire, row.stream, row.outcome) for row in rows} == {
        ("messages", "chat", True, "ok")
    }
    assert {row.logprob_quality for row in rows} == {"sampled"}
    assert tree.links[0].cause is Cause.START
    assert {link.role for link in tree.links} == {Role.MAIN}
    assert trained(rows, tree)


@pytest.mark.harness
def test_an_engine_taken_for_a_hosted_api_is_asked_in_claude_codes_own_words(
    tmp_path: Path, engine: str
) -> None:
    """llama.cpp speaks Messages too: what goes past is read, and there are no ids."""
    with RunningProxy(tmp_path / "logs", backends=[{"url": engine, "profile": "text"}]) as proxy:
        two_turns(tmp_path / "home", f"{proxy.url}/x/e0")
        rows = [row for row in proxy.rows(2) if row.wire == "messages"]
    assert {(row.upstream_wire, row.stream, row.outcome) for row in rows} == {(None, True, "ok")}
    assert all(b'"content":[{"type":"text"' in (row.response or b"") for row in rows)
    tree = proven(tmp_path, engine, "e0")
    assert not tree.exact and len(tree.links) == len(rows) >= 2
    assert {link.role for link in tree.links} == {Role.MAIN}


def test_mini_swe_agent_with_a_real_model_is_exact(tmp_path: Path, engine: str) -> None:
    """The model calls no tool, so the agent gives up after some answers that it leaves out."""

    def run(home: Path, url: str) -> None:
        # Or it lets the model go on until its window is full.
        short = ("-c", "mini.yaml", "-c", "model.model_kwargs.max_tokens=60")
        ran = mini_swe_agent(home, url, *short, model="smollm2").run(STORY, timeout=300)
        assert "RepeatedFormatError" in ran.out, ran

    rows, tree = run_until_exact(tmp_path, engine, run)
    assert {(row.wire, row.stream, row.outcome) for row in rows} == {("chat", False, "ok")}
    assert tree.links[0].cause is Cause.START
    assert trained(rows, tree)


@pytest.mark.harness
def test_opencode_with_a_real_model_is_exact_where_it_has_tools(tmp_path: Path, engine: str) -> None:
    """With tools llama.cpp refuses to stream log-probabilities, so it is asked for whole answers.

    The title is asked for without tools, in a stream, of which llama.cpp loses the last id; OpenCode leaves
    it when the main answer came first.
    """
    for number in range(TRIES):
        name = f"e{number}"
        with RunningProxy(tmp_path / "logs", engine) as proxy:
            agent = opencode(tmp_path / name, f"{proxy.url}/x/{name}", window=8192, answer=40, name="smollm2")
            assert agent.run(STORY, timeout=300).code == 0
            rows = [row for row in proxy.rows() if row.identity.execution_id == name]
        with_tools = [row for row in rows if row.tools]
        assert with_tools and all("asked_whole" in row.capture_flags for row in with_tools)
        assert {(row.wire, row.stream, row.outcome) for row in with_tools} == {("chat", True, "ok")}
        assert {row.outcome for row in rows} <= {"ok", "client_gone"}
        odd = [row for row in with_tools if row.capture_quality != "exact"]
        assert all("logprobs_incomplete" in row.capture_flags for row in odd)
        lost = [row for row in rows if row.capture_quality == "incomplete"]
        assert all({"tokens_incomplete", "cut"} & set(row.capture_flags) for row in lost)
        if not odd:
            proven(tmp_path, engine, name)
            return
    pytest.fail("no run without a character of several tokens")
