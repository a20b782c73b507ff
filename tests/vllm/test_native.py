"""vLLM's own Messages and Responses, passed through and only read: the log has what the client was told."""

from __future__ import annotations

import json

import pytest

from gyre.proxy.calls import Wire
from tests.vllm.cases import ROUTES, Case
from tests.vllm.clients import said_in
from tests.vllm.messages_cases import MESSAGES
from tests.vllm.recorded import Recorded
from tests.vllm.responses_cases import RESPONSES
from tests.vllm.server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
NAMES = ("plain", "stream", "forced call", "one named call", "effort", "stop string")
CASES = [case for case in (*MESSAGES, *RESPONSES) if case.name in NAMES]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.wire}: {case.name}")


@pytest.fixture(scope="module")
def recorded(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("native"), vllm.url, CASES, "--profile", "text")


@each_case
def test_the_answer_is_recorded_as_the_client_was_told_it(recorded: Recorded, case: Case) -> None:
    (row,), (said,) = recorded.rows(case), recorded.said(case)
    assert (row["outcome"], row["capture_quality"], row["output_ids"]) == ("ok", "none", None)
    assert row["upstream_wire"] == row["wire"] == case.wire
    (read,) = said_in(case.wire, json.loads(row["response"]) | json.loads(row["response_meta"]))
    assert read == said
    assert said.text or said.reasoning or said.calls


@each_case
def test_usage_counts_the_prompt_that_vllm_renders(vllm: VllmServer, recorded: Recorded, case: Case) -> None:
    (row,) = recorded.rows(case)
    prompt = vllm.render(ROUTES[case.wire], case.body)
    assert row["usage_prompt_tokens"] == len(prompt)
    if case.wire == Wire.MESSAGES:
        assert recorded.counted[case.name] == len(prompt)
