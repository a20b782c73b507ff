"""What the engine says about itself, and what the proxy makes of it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from gyre.elastic.engine.limits import EngineStats
from gyre.elastic.engine.server.traffic import Traffic, page
from gyre.proxy.capture.profiles import Engine, probe_reply
from gyre.proxy.diagnosis import Grade
from gyre.proxy.doctor import diagnose
from tests.engine.server.rig import Running, run_engine

DOCS = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
COUNTED = ("steps", "computed_tokens", "prompt_tokens", "cached_tokens", "generated_tokens")
COUNTS = dict.fromkeys((*COUNTED, "preemptions", "failures", "publications"), 1)
STATS = EngineStats(running=1, waiting=2, kv_bytes=3, kv_limit_bytes=4, kept=5, **COUNTS)


def test_the_proxy_knows_it_by_its_owner(engine: Running) -> None:
    models = engine.client.get("/v1/models")
    assert probe_reply(models.content) == Engine.GYRE
    one = models.json()["data"][0]
    assert (one["id"], one["max_model_len"]) == ("tiny", 4096)
    assert engine.client.get("/v1/models/tiny").json() == one
    assert engine.client.get("/v1/models/gpt-17").status_code == 404


def test_health_version_and_load(engine: Running) -> None:
    assert engine.client.get("/health").status_code == 200
    assert engine.client.get("/version").json()["version"]
    engine.chat()
    load = engine.client.get("/load").json()
    assert (load["server_load"], load["running"], load["waiting"]) == (0, 0, 0)
    assert 0 < load["kv_bytes"] <= load["kv_limit_bytes"]


def test_an_engine_that_ended_is_not_healthy() -> None:
    with run_engine() as engine:
        engine.engine.close()
        assert engine.client.get("/health").status_code == 503
        status, error = engine.error("/v1/completions", prompt="x")
        assert (status, error["code"]) == (503, "stopping")


def test_the_page_counts_what_happened() -> None:
    with run_engine() as engine:
        engine.chat(n=2)
        engine.complete()
        engine.error("/v1/completions", prompt="x", n=0)
        shown = {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(engine.client.get("/metrics").text)
            for sample in family.samples
        }
    assert shown["gyre_engine_answers_total", "chat", "length"] == 2
    assert shown["gyre_engine_answers_total", "completions", "length"] == 1
    assert shown["gyre_engine_refusals_total", "400"] == 1
    assert shown["gyre_engine_generated_tokens_total",] == 24
    assert shown["gyre_engine_time_to_first_token_seconds_count",] == 3
    assert shown["gyre_engine_request_duration_seconds_count",] == 3


def test_every_metric_is_documented_with_its_type_and_labels() -> None:
    traffic = Traffic()
    traffic.answers["chat", "stop"] = traffic.refusals[400] = 1
    text = page(traffic, STATS).decode()
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    assert dict(re.findall(r"^\| `(gyre_engine_\w+)` \| (\w+) \|", DOCS, re.MULTILINE)) == types
    for family in text_string_to_metric_families(text):
        for label in {label for sample in family.samples for label in sample.labels} - {"le"}:
            assert re.search(rf"`{family.name}(_total)?` \|.*`{label}`", DOCS), (family.name, label)


def test_the_doctor_finds_all_of_it_exact() -> None:
    """Its question answered as by a model that can use tools."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    with run_engine(script=lambda body: call if body.get("tools") else "Sunny 😀.") as engine:
        found = diagnose(engine.client, engine.url)
    assert found.engine == Engine.GYRE and found.ok
    grades = {finding.what: finding.grade for finding in found.findings}
    assert set(grades.values()) == {Grade.EXACT}, found.findings
