"""`gyre doctor` on engines of every kind, well and ill."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gyre.cli.main import main
from gyre.elastic.llamacpp import LlamaCppSettings, serve
from gyre.proxy import read_log
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.diagnosis import Diagnosis, Finding, Grade
from gyre.proxy.doctor import diagnose
from gyre.proxy.errors import UpstreamError
from tests.engines.fake import FakeEngine, refused_url
from tests.engines.routes import Kind
from tests.engines.script import Answer, Request, ToolCall
from tests.proxy.running import RunningProxy

IDS = ("prompt ids", "sampled ids", "streamed ids")


def examine(engine: FakeEngine) -> Diagnosis:
    with httpx.Client(timeout=10) as client:
        return diagnose(client, engine.url)


def finding(diagnosis: Diagnosis, what: str) -> Finding:
    return next(f for f in diagnosis.findings if f.what == what)


def weather(request: Request) -> Answer:
    """An engine that uses a tool whenever it is given one."""
    if "tools" not in request.json:
        return Answer(text="one two three four five")
    return Answer(text="", tool_calls=(ToolCall("weather", '{"city": "Paris"}'),))


def broken_when(what: Callable[[Request], bool], answer: Answer) -> Callable[[Request], Answer]:
    return lambda request: answer if what(request) else weather(request)


def streams(request: Request) -> bool:
    return bool(request.json.get("stream"))


@pytest.mark.parametrize("kind", ["vllm", "gyre", "sglang", "llamacpp"])
def test_an_engine_with_ids_passes(kind: Kind) -> None:
    with FakeEngine(kind=kind, script=weather) as engine:
        diagnosis = examine(engine)
    assert diagnosis.engine == Engine(kind)
    assert [finding(diagnosis, what).grade for what in IDS] == [Grade.EXACT] * 3
    assert finding(diagnosis, "log-probabilities").grade == Grade.EXACT
    assert finding(diagnosis, "tool calls").grade == Grade.EXACT
    assert finding(diagnosis, "usage").grade == Grade.EXACT
    assert diagnosis.ok


def test_three_calls_are_made_under_a_name_of_their_own() -> None:
    with FakeEngine(script=weather) as engine:
        examine(engine)
        calls = engine.calls
    assert [(streams(c), "tools" in c.json) for c in calls] == [(False, False), (True, False), (False, True)]
    assert {call.headers["x-gyre-execution"] for call in calls} == {"doctor"}


def test_the_base_url_may_end_in_v1() -> None:
    with FakeEngine(script=weather) as engine, httpx.Client() as client:
        assert diagnose(client, f"{engine.url}/v1/").ok


def test_through_a_proxy_it_sees_the_same_and_is_recorded(tmp_path: Path) -> None:
    with FakeEngine(script=weather) as engine, RunningProxy(tmp_path, engine) as proxy:
        with httpx.Client() as client:
            through = diagnose(client, proxy.url)
        direct = examine(engine)
    assert through.ok
    assert through.findings == direct.findings
    calls = read_log(tmp_path).calls.to_pylist()
    recorded = [(call["execution_id"], call["capture_quality"]) for call in calls if call["wire"] == "chat"]
    assert recorded == [("doctor", "exact")] * 3


def test_a_hosted_api_without_ids_fails_with_a_remedy() -> None:
    with FakeEngine(kind="text", script=weather) as engine:
        diagnosis = examine(engine)
    assert diagnosis.engine == Engine.TEXT
    assert [finding(diagnosis, what).grade for what in IDS] == [Grade.MISSING] * 3
    assert "vLLM" in finding(diagnosis, "sampled ids").remedy
    assert not diagnosis.ok


def test_ids_lost_in_a_stream_are_noticed() -> None:
    lossy = Answer(text="one two three", drop_ids=(2,))
    with FakeEngine(script=broken_when(streams, lossy)) as engine:
        diagnosis = examine(engine)
    assert finding(diagnosis, "sampled ids").grade == Grade.EXACT
    streamed = finding(diagnosis, "streamed ids")
    assert streamed.grade == Grade.PARTIAL and "tokens_incomplete" in streamed.detail
    assert not diagnosis.ok


@pytest.mark.slow
def test_llama_cpp_loses_the_end_token_of_a_stream_and_the_doctor_sees_it() -> None:
    with serve(LlamaCppSettings()) as running, httpx.Client(timeout=60) as client:
        diagnosis = diagnose(client, running.url)
    assert finding(diagnosis, "prompt ids").grade == Grade.EXACT
    assert finding(diagnosis, "sampled ids").grade == Grade.EXACT
    assert finding(diagnosis, "sampling").grade == Grade.EXACT
    assert "end token" in finding(diagnosis, "streamed ids").remedy
    assert "template" in finding(diagnosis, "tool calls").detail
    assert not diagnosis.ok


def test_missing_log_probabilities_are_noticed_and_are_no_reason_to_fail() -> None:
    with FakeEngine(script=Answer(text="one two three", drop_logprobs=(1,))) as engine:
        diagnosis = examine(engine)
    assert finding(diagnosis, "log-probabilities").grade == Grade.PARTIAL
    assert diagnosis.ok


def test_an_answer_without_content_fails() -> None:
    nothing = Answer(body=b'{"choices":[{"index":0,"message":{"role":"assistant","output":"hi"}}]}')
    with FakeEngine(script=broken_when(lambda request: not streams(request), nothing)) as engine:
        diagnosis = examine(engine)
    assert "no recognisable content" in finding(diagnosis, "sampled ids").detail
    assert not diagnosis.ok


def test_an_answer_that_is_no_json_fails() -> None:
    with FakeEngine(script=Answer(body=b"<html>welcome</html>")) as engine:
        diagnosis = examine(engine)
    assert "not an answer of this API" in finding(diagnosis, "sampled ids").detail
    assert not diagnosis.ok


def test_a_refused_tool_call_is_told_and_is_no_reason_to_fail() -> None:
    refused = Answer(status=400, text="tools need a parser")
    with FakeEngine(script=broken_when(lambda request: "tools" in request.json, refused)) as engine:
        diagnosis = examine(engine)
    tools = finding(diagnosis, "tool calls")
    assert tools.grade == Grade.MISSING and "tools need a parser" in tools.detail
    assert diagnosis.ok


def test_a_refused_plain_call_fails() -> None:
    with FakeEngine(script=Answer(status=503, text="loading")) as engine:
        diagnosis = examine(engine)
    assert "503" in finding(diagnosis, "prompt ids").detail
    assert not diagnosis.ok


def test_a_sampler_that_truncates_is_told() -> None:
    with FakeEngine(kind="llamacpp", script=weather) as engine:
        sampling = finding(examine(engine), "sampling")
    assert sampling.grade == Grade.PARTIAL and "top_k" in sampling.remedy


def test_the_policy_version_is_told() -> None:
    with FakeEngine(kind="sglang", script=Answer(versions=[("step-7", 0, 3)])) as engine:
        version = finding(examine(engine), "policy version")
    assert version.grade == Grade.EXACT and "step-7" in version.detail


def test_our_own_engine_says_which_weights_it_has_and_how_it_sampled() -> None:
    answer = Answer(versions=[("7", 0, 3)], digests={"7": "0123456789abcdef" * 4})
    with FakeEngine(kind="gyre", script=answer) as engine:
        diagnosis = examine(engine)
    assert (
        finding(diagnosis, "policy version").detail == "version `7` in each answer, weights 0123456789abcdef"
    )
    assert "whatever it is" in finding(diagnosis, "sampling").detail
    assert diagnosis.ok


def test_versions_that_do_not_cover_the_answer_are_noticed() -> None:
    with FakeEngine(kind="gyre", script=Answer(versions=[("7", 0, 2)])) as engine:
        diagnosis = examine(engine)
    assert "version_unsure" in finding(diagnosis, "sampled ids").detail
    assert not diagnosis.ok


def test_a_dead_engine_is_an_error_that_names_it() -> None:
    url = refused_url()
    with httpx.Client() as client, pytest.raises(UpstreamError, match=url):
        diagnose(client, url)


def test_an_engine_that_names_no_model_needs_one() -> None:
    routes = {"/v1/models": Answer(status=404, text="Not Found")}
    with FakeEngine(routes=routes, script=weather) as engine, httpx.Client() as client:
        with pytest.raises(UpstreamError) as caught:
            diagnose(client, engine.url)
        assert "--model" in caught.value.hint
        assert diagnose(client, engine.url, model="m", engine=Engine.VLLM).ok


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["doctor", *args])
    shown = capsys.readouterr()
    return int(end.value.code or 0), shown.out, shown.err


def test_the_command_passes_a_good_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(script=weather) as engine:
        code, out, err = run(capsys, engine.url)
    assert (code, err) == (0, "")
    assert "prompt ids" in out and "all token ids can be captured" in out


def test_the_command_fails_without_ids_and_gives_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(kind="text", script=weather) as engine:
        code, out, _ = run(capsys, engine.url)
    assert code == 1
    assert "serve the model with vLLM" in out


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(script=weather) as engine:
        code, out, _ = run(capsys, engine.url, "--json")
    document = json.loads(out)
    assert code == 0
    assert (document["schema"], document["engine"], document["ok"]) == (1, "vllm", True)
    assert [call["call"] for call in document["calls"]] == ["plain", "stream", "tool"]


def test_the_key_comes_from_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with FakeEngine(script=weather) as engine:
        code, out, _ = run(capsys, engine.url, "--key-env", "MY_KEY")
        assert {request.headers.get("authorization") for request in engine.calls} == {"Bearer sk-secret"}
    assert code == 0 and "sk-secret" not in out


def test_a_missing_key_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "http://127.0.0.1:1", "--key-env", "GYRE_NO_SUCH_KEY")
    assert code == 1
    assert "`GYRE_NO_SUCH_KEY`" in err
