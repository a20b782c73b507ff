"""Chat, Messages and Responses at a real vLLM: the recorded ids are those that vLLM itself renders.

What vLLM's own Messages and Responses do otherwise with a history is said case by case.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gyre.proxy.calls import Wire
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.prepared import dialect_of
from gyre.proxy.rendering import tokenize_body
from gyre.proxy.wires import known
from tests.vllm.cases import ROUTES, Case, Json
from tests.vllm.chat_cases import CHAT
from tests.vllm.messages_cases import MESSAGES
from tests.vllm.recorded import Recorded
from tests.vllm.responses_cases import RESPONSES
from tests.vllm.server import VllmServer

# The first of them makes the environment and the model.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
CASES = [*CHAT, *MESSAGES, *RESPONSES]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.wire}: {case.name}")
each_other = pytest.mark.parametrize(
    "case", [*MESSAGES, *RESPONSES], ids=lambda case: f"{case.wire}: {case.name}"
)


@pytest.fixture(scope="module")
def recorded(vllm: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("proxy"), vllm.url, CASES)


def asked(case: Case) -> Json:
    """The request as vLLM gets it."""
    if case.wire == Wire.CHAT:
        return case.body
    return known.translate(case.wire, case.body, dialect_of("c", Engine.VLLM, lambda ident: ())).chat


@each_case
def test_every_row_is_exact(recorded: Recorded, case: Case) -> None:
    call = recorded[case]
    assert len(call.rows) == len(call.said) == case.body.get("n", 1)
    for row in call.rows:
        assert (row["outcome"], row["capture_quality"], row["engine"]) == ("ok", "exact", "vllm")
        assert (row["wire"], row["upstream_wire"]) == (case.wire, "chat")
        assert row["stream"] == bool(case.body.get("stream"))
        # A small model may well answer nothing.
        assert tuple(flag for flag in row["capture_flags"] if flag != "no_content") == case.flags
        assert len(row["output_logprobs"]) == len(row["output_ids"])
    usage = json.loads(call.rows[0]["usage"])
    assert usage["prompt_tokens"] == len(call.prompt)
    assert usage["completion_tokens"] == sum(len(ids) for ids in call.outputs)


@each_case
def test_the_prompt_is_what_vllm_makes_of_the_translated_request(
    vllm: VllmServer, recorded: Recorded, case: Case
) -> None:
    prompt = recorded[case].prompt
    assert prompt == vllm.render(ROUTES[Wire.CHAT], asked(case))
    assert prompt == vllm.tokenize(**tokenize_body(asked(case)))


@each_other
def test_vllm_makes_the_same_of_the_clients_own_request(
    vllm: VllmServer, recorded: Recorded, case: Case
) -> None:
    prompt = recorded[case].prompt
    theirs = vllm.render(ROUTES[case.wire], case.body)
    if not case.why:
        assert vllm.text(theirs) == vllm.text(prompt)
        assert theirs == prompt
        return
    assert theirs != prompt, f"no longer so: {case.why}"
    if case.instead:
        body = {name: value for name, value in (case.body | case.instead).items() if value is not None}
        assert vllm.text(vllm.render(ROUTES[case.wire], body)) == vllm.text(prompt)


@each_case
def test_the_sampled_ids_say_what_the_client_was_told(
    vllm: VllmServer, recorded: Recorded, case: Case
) -> None:
    call = recorded[case]
    for said, row, ids in zip(call.said, call.rows, call.outputs, strict=True):
        sampled, place = vllm.text(ids), 0
        for part in (said.reasoning, said.text, *(name for name, _ in said.calls)):
            place = sampled.index(part.strip(), place) + len(part.strip())
        message = json.loads(row["response"])
        assert (said.reasoning, said.text) == (message.get("reasoning") or "", message.get("content") or "")
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        assert said.calls == [(one["name"], json.loads(one["arguments"])) for one in functions]


@pytest.mark.parametrize("case", MESSAGES, ids=lambda case: case.name)
def test_count_tokens_counts_the_prompt_that_was_sampled_from(recorded: Recorded, case: Case) -> None:
    assert recorded.counted[case.name] == len(recorded[case].prompt)


def test_the_log_is_what_vllm_says_it_is(vllm: VllmServer, recorded: Recorded) -> None:
    command = [sys.executable, "-m", "gyre.cli.main", "log", "check", str(recorded.logs)]
    done = subprocess.run([*command, "--engine", vllm.url, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = sum(case.body.get("n", 1) for case in CASES)
    counts = json.loads(done.stdout)["counts"]
    assert (counts["engine_prompts"], counts["engine_outputs"]) == (rows, rows)
