"""gyre's own engine behind a real proxy: what it says is in the log, exactly, and becomes trees."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gyre.elastic.endpoint import Engine
from gyre.elastic.engine.server.app import serve
from gyre.elastic.engine.settings import EngineSettings
from gyre.proxy import read_log
from gyre.proxy.calls import CallRecord, VersionSpan
from gyre.proxy.diagnosis import Grade
from gyre.proxy.doctor import diagnose
from gyre.proxy.log.check import check
from gyre.proxy.log.sealing.seal import seal
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.verify import verify_trees
from tests.engine.weights.versions import versions
from tests.proxy.reading import events_of, ids_of, logprobs_of, prompt_of, response_of
from tests.proxy.running import RunningProxy

Json = dict[str, Any]
HI: list[Json] = [{"role": "user", "content": "Hello, who are you?"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}},
}
LOOK = 'I look.\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
OURS = ("metadata", "weight_versions", "kv_versions", "seed", "token_ids", "prompt_token_ids", "logprob")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """`script` of a chat request is the text that it is answered with."""
    with serve(EngineSettings(model="tiny", ctx=4096), script=lambda body: body.get("script")) as running:
        yield running


def proven(root: Path, engine: Engine) -> list[Json]:
    """The rows of a log that is whole by its own word and the engine's, with trees that are what it says."""
    seal(root)
    report = check(root, engine=engine.url)
    assert report.findings == [] and report.counts["engine_outputs"] > 0
    assert build_trees(root, root / "trees").ok
    assert verify_trees(root / "trees") == []
    return [row for row in read_log(root).calls.to_pylist() if row["wire"] != "models"]


def test_every_call_of_every_wire_is_exact_and_proven(tmp_path: Path, engine: Engine) -> None:
    with RunningProxy(tmp_path, engine.url) as proxy:
        limits: Json = {"model": "tiny", "max_tokens": 12, "seed": 17}
        for stream in (False, True):
            asked = limits | {"stream": stream}
            proxy.chat("chat", **asked, messages=HI).raise_for_status()
            proxy.chat("chat", **asked, messages=HI, temperature=0.6, top_p=0.9, top_k=40).raise_for_status()
            proxy.chat("chat", **asked, messages=HI, temperature=0).raise_for_status()
            proxy.chat("chat", **asked, messages=HI, n=3).raise_for_status()
            long = asked | {"max_tokens": 99}
            proxy.chat("chat", **long, stop=["st"], script="Not the last").raise_for_status()
            proxy.chat("chat", **long, tools=[TOOL], script=LOOK).raise_for_status()
            proxy.chat("chat", **asked, prompt_token_ids=[300, 301, 302]).raise_for_status()
            for prompt in ("Once upon", [300, 301]):
                url = proxy.base("completions") + "/completions"
                proxy.post(url, json=asked | {"prompt": prompt, "temperature": 0.7}).raise_for_status()
            url = proxy.base("messages") + "/messages"
            proxy.post(url, json=asked | {"messages": HI}).raise_for_status()
            url = proxy.base("responses") + "/responses"
            body = {"model": "tiny", "max_output_tokens": 12, "stream": stream, "input": "Hello", "seed": 17}
            proxy.post(url, json=body).raise_for_status()
    rows = proven(tmp_path, engine)
    assert len(rows) == 2 * 13
    assert {(row["outcome"], row["capture_quality"], row["http_status"]) for row in rows} == {
        ("ok", "exact", 200)
    }
    assert [row["capture_flags"] for row in rows if row["wire"] != "responses"] == [[]] * 24
    for row in rows:
        count = len(row["output_ids"])
        assert row["version_spans"] == [{"version": "0", "start": 0, "end": count}]
        assert row["kv_spans"] == [{"version": "0", "start": 0, "end": row["prompt_tokens"] + count - 1}]
        assert [each["version"] for each in row["weight_digests"]] == ["0"]
        assert row["seed"] is not None and row["spliced_tokens"] is not None
        assert row["logprob_quality"] == ("greedy" if row["temperature"] == 0 else "sampled")
        assert (row["raw_logprobs"] is None) == (
            row["temperature"] in (0, 1) and "script" not in row["request"]
        )


def test_outputs_in_later_prompts_are_the_very_ids_that_were_sampled(tmp_path: Path, engine: Engine) -> None:
    with RunningProxy(tmp_path, engine.url) as proxy:
        history = list(HI)
        for turn in range(4):
            shown = proxy.chat(messages=history, model="tiny", max_tokens=12, seed=turn)
            message = shown.json()["choices"][0]["message"]
            history += [message, {"role": "user", "content": f"go on {turn}"}]
    rows = proven(tmp_path, engine)
    assert rows[0]["spliced_tokens"] == 0 and all(row["spliced_tokens"] > 0 for row in rows[1:])
    tree = read_trees(tmp_path / "trees").tree("e1")
    assert {str(link.cause) for link in tree.links} == {"start", "continuation"}
    with serve(EngineSettings(model="tiny", ctx=4096)) as other:
        # It never sampled any of it: what it renders has the same text in other ids.
        assert check(tmp_path, engine=other.url).findings == []


def test_a_client_sees_what_the_engine_would_show_it(tmp_path: Path, engine: Engine) -> None:
    with RunningProxy(tmp_path, engine.url) as proxy:
        for more in ({}, {"logprobs": True}, {"return_token_ids": True, "logprobs": True}):
            for stream in (False, True):
                body = {"model": "tiny", "messages": HI, "max_tokens": 6, "seed": 5, "stream": stream, **more}
                direct = httpx.post(engine.url + "/v1/chat/completions", json=body)
                shown = proxy.post(proxy.base() + "/chat/completions", json=body)
                assert said(shown, stream) == said(direct, stream)
                if not more:
                    assert not [word for word in OURS if f'"{word}"' in shown.text]


def said(answer: httpx.Response, stream: bool) -> Json:
    """What is the same in two answers: texts joined, since chunks differ, and everything that is named."""
    events = events_of(answer) if stream else [answer.json()]
    choices = [choice for event in events for choice in event["choices"]]
    texts = [choice.get("delta", choice.get("message")).get("content") for choice in choices]
    ids = [token for choice in choices for token in choice.get("token_ids", ())]
    names = {name for event in events for name in event} | {name for choice in choices for name in choice}
    return {"text": "".join(text or "" for text in texts), "ids": ids, "names": names}


def test_weights_that_change_in_mid_stream_are_recorded_token_by_token(
    tmp_path: Path, engine: Engine
) -> None:
    folder = versions(1).write(tmp_path / "weights", "1")
    update = {"update_info": {"path": str(folder), "weight_version": "1"}, "in_flight": "keep"}
    with RunningProxy(tmp_path / "logs", engine.url) as proxy:
        body = {"model": "tiny", "messages": HI, "max_tokens": 600, "stream": True, "ignore_eos": True}
        with httpx.stream("POST", proxy.base() + "/chat/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            came = [next(lines) for _ in range(20)]
            published = httpx.post(engine.url + "/update_weights", json=update, timeout=60).json()
            came += list(lines)
        (row,) = proxy.rows()
    assert "weight" not in "".join(came)
    (row,) = proven(tmp_path / "logs", engine)
    first, second = row["version_spans"]
    assert (first["version"], second["version"]) == ("0", "1")
    assert 0 < first["end"] == second["start"] < second["end"] == 600
    digests = {each["version"]: each["digest"] for each in row["weight_digests"]}
    assert digests["1"] == published["weight_digest"] != digests["0"]
    assert [span["version"] for span in row["kv_spans"]] == ["0", "1"]
    (node,) = [node for node in read_trees(tmp_path / "logs" / "trees").tree("e1").nodes if node.target]
    assert [version for version, _, _ in node.version_spans] == ["0", "1"]


def test_an_answer_that_moved_goes_on_where_it_stood(tmp_path: Path, engine: Engine) -> None:
    body: Json = {"model": "tiny", "messages": HI, "max_tokens": 600, "seed": 3, "ignore_eos": True}
    whole = httpx.post(
        engine.url + "/v1/chat/completions", json=body | {"return_token_ids": True}, timeout=60
    )
    ids = whole.json()["choices"][0]["token_ids"]
    with RunningProxy(tmp_path, engine.url) as proxy:
        with pytest.raises(httpx.RemoteProtocolError):
            move(proxy, engine, body)
        (cut,) = proxy.rows()
        assert (cut.outcome, cut.finish_reason, cut.capture_quality) == ("upstream_cut", "moved", "exact")
        goes_on = body | {"output_token_ids": ids_of(cut.output)}
        proxy.chat(**goes_on, stream=True).raise_for_status()
        proxy.chat(**goes_on).raise_for_status()
        rows = proxy.rows(3)
    streamed, plain = rows[1:]
    count = len(ids_of(cut.output))
    assert 0 < count < 600 and ids_of(cut.output) == ids[:count]
    for row in (streamed, plain):
        assert prompt_of(rows, row) == [*prompt_of(rows, cut), *ids[:count]]
        assert (ids_of(row.output), row.capture_quality) == (ids[count:], "exact")
        assert row.version_spans == [VersionSpan("0", 0, 600 - count)]
        assert len(logprobs_of(row)) == 600 - count
    assert response_of(plain)["content"] == whole.json()["choices"][0]["message"]["content"]
    proven(tmp_path, engine)
    tree = read_trees(tmp_path / "trees").tree("e1")
    assert [node.token_ids.tolist() for node in tree.nodes if node.target] == [ids[:count], ids[count:]]


def move(proxy: RunningProxy, engine: Engine, body: Json) -> None:
    """Ask for a stream and export its KV when it has begun."""
    named = body | {"stream": True, "request_id": "r1"}
    with httpx.stream("POST", proxy.base() + "/chat/completions", json=named, timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(20):
            next(lines)
        exported = httpx.post(engine.url + "/kv/export", json={"request_id": "r1"}, timeout=60)
        assert exported.status_code == 200
        for _ in lines:
            pass


def test_the_doctor_finds_everything_exact(engine: Engine) -> None:
    with httpx.Client(timeout=60) as client:
        diagnosis = diagnose(client, engine.url)
        weights = client.get(engine.url + "/weight_info").json()
    found = {one.what: one for one in diagnosis.findings}
    assert diagnosis.ok
    # Random weights call no tool.
    assert {name for name, one in found.items() if one.grade != Grade.EXACT} == {"tool calls"}
    assert f"`{weights['weight_version']}`" in found["policy version"].detail
    assert weights["weight_digest"][:16] in found["policy version"].detail


def test_tokens_of_a_request_are_counted_as_they_would_be_sampled_from(
    tmp_path: Path, engine: Engine
) -> None:
    with RunningProxy(tmp_path, engine.url) as proxy:
        body = {"model": "tiny", "messages": HI, "system": "Be brief.", "max_tokens": 4}
        counted = proxy.post(proxy.base() + "/messages/count_tokens", json=body)
        proxy.post(proxy.base() + "/messages", json=body)
        rows: list[CallRecord] = proxy.rows(2)
    assert counted.json() == {"input_tokens": rows[1].prompt_tokens}
