"""The fake engine itself: its shapes, and its misbehaviour seen through a real client."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import pytest

from tests.engines.fake import FakeEngine, black_hole, refused_url
from tests.engines.routes import Kind
from tests.engines.script import Answer, Request, ToolCall
from tests.engines.tokens import detokenize, logprobs_for, render, tokenize

HELLO = [{"role": "user", "content": "say hé"}]
IDS = {"return_token_ids": True, "logprobs": True}


def chat(engine: FakeEngine, **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": HELLO, **fields}
    return httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=5)


def events(text: str) -> list[dict[str, Any]]:
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def choices(text: str) -> Iterator[dict[str, Any]]:
    return (event["choices"][0] for event in events(text) if event["choices"])


def test_rendering_the_answer_into_the_next_prompt_extends_the_tokens() -> None:
    call = ToolCall("grep", '{"q": "é"}')
    answer = Answer(text="look", reasoning="hm", tool_calls=(call,))
    with FakeEngine(script=answer) as engine:
        message = chat(engine).json()["choices"][0]["message"]
    first = tokenize(render(HELLO))
    again = tokenize(render([*HELLO, message, {"role": "tool", "content": "42"}]))
    assert again[: len(first) + len(answer.output_ids)] == first + answer.output_ids
    assert detokenize(again).endswith("tool\n42<|im_end|>\n<|im_start|>assistant\n")


def test_vllm_gives_exact_ids_plain_and_streamed() -> None:
    answer = Answer(text="grüße", reasoning="so", tool_calls=(ToolCall("a", '{"x":1}'), ToolCall("b", "{}")))
    with FakeEngine(kind="vllm", script=answer) as engine:
        plain = chat(engine, **IDS).json()
        streamed = chat(engine, stream=True, stream_options={"include_usage": True}, **IDS).text
        bare = chat(engine).json()
    parts = events(streamed)
    assert "prompt_token_ids" not in bare and "token_ids" not in bare["choices"][0]
    assert plain["prompt_token_ids"] == parts[0]["prompt_token_ids"] == tokenize(render(HELLO))
    assert plain["choices"][0]["token_ids"] == answer.output_ids
    assert [t for choice in choices(streamed) for t in choice.get("token_ids", [])] == answer.output_ids
    entries = [e for c in choices(streamed) if c["logprobs"] for e in c["logprobs"]["content"]]
    assert entries == plain["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in entries] == logprobs_for(answer.output_ids)
    assert parts[-1]["usage"] == plain["usage"] and parts[-1]["choices"] == []
    assert all("prompt_token_ids" not in part for part in parts[1:])


def test_completions_put_the_prompt_ids_into_the_choice() -> None:
    with FakeEngine(script=Answer(text="abc")) as engine:
        body = {"prompt": [101, 102], "logprobs": 1, "return_token_ids": True}
        plain = httpx.post(engine.url + "/v1/completions", json=body).json()["choices"][0]
        streamed = httpx.post(engine.url + "/v1/completions", json=body | {"stream": True}).text
    assert plain["prompt_token_ids"] == next(choices(streamed))["prompt_token_ids"] == [101, 102]
    assert plain["token_ids"] == tokenize("abc<|im_end|>")
    assert plain["logprobs"]["token_logprobs"] == logprobs_for(plain["token_ids"])


def test_sglang_refuses_ids_in_streams_and_has_sglext_instead() -> None:
    answer = Answer(text="abc", versions=[("v1", 0, 2), ("v2", 2, 4)])
    with FakeEngine(kind="sglang", script=answer) as engine:
        asked = {**IDS, "return_prompt_token_ids": True, "return_meta_info": True}
        plain = chat(engine, **asked).json()
        refused = chat(engine, stream=True, return_token_ids=True)
        wanted = {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True}
        streamed = events(chat(engine, stream=True, **wanted).text)
    choice = plain["choices"][0]
    assert choice["response_token_ids"] == answer.output_ids
    assert choice["prompt_token_ids"] == tokenize(render(HELLO))
    assert choice["meta_info"]["output_token_logprobs"][1] == [-2 / 16, answer.output_ids[1], None]
    assert plain["metadata"]["weight_versions"][1] == {"version": "v2", "start": 2, "end": 4}
    assert refused.status_code == 400
    assert streamed[-1]["choices"] == []
    ids = {"input_ids": tokenize(render(HELLO)), "output_ids": [answer.output_ids]}
    assert streamed[-1]["sglext"] == ids


def test_llamacpp_gives_sampled_ids_with_the_logprobs_and_the_prompt_by_its_own_routes() -> None:
    with FakeEngine(kind="llamacpp", script=Answer(text="abc")) as engine:
        plain = chat(engine, logprobs=True, verbose=True, temperature=1).json()
        streamed = events(chat(engine, stream=True, logprobs=True, verbose=True).text)
        prompt = httpx.post(engine.url + "/apply-template", json={"messages": HELLO}).json()["prompt"]
        asked = {"content": prompt, "add_special": True, "parse_special": True}
        ids = httpx.post(engine.url + "/tokenize", json=asked).json()["tokens"]
        props = httpx.get(engine.url + "/props").json()
    entries = plain["choices"][0]["logprobs"]["content"]
    assert [entry["id"] for entry in entries] == plain["__verbose"]["tokens"] == tokenize("abc<|im_end|>")
    assert plain["__verbose"]["prompt"] == prompt and len(ids) == plain["usage"]["prompt_tokens"]
    assert plain["__verbose"]["generation_settings"]["temperature"] == 1
    assert streamed[-1]["__verbose"]["tokens"] == [] and "__verbose" not in streamed[0]
    assert props["default_generation_settings"]["params"]["top_k"] == 40


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp", "text"])
def test_every_kind_says_whose_models_these_are(kind: Kind) -> None:
    with FakeEngine(kind=kind) as engine:
        owner = httpx.get(engine.url + "/v1/models").json()["data"][0]["owned_by"]
        assert owner == ("openai" if kind == "text" else kind)
        assert httpx.post(engine.url + "/v1/nothing", json={}).status_code == 404


def test_lost_ids_and_logprobs_leave_the_usage_true() -> None:
    answer = Answer(text="x" * 19, drop_ids=range(4, 12), drop_logprobs=[7])
    with FakeEngine(script=answer) as engine:
        plain = chat(engine, **IDS).json()
        streamed = chat(engine, stream=True, **IDS).text
    assert len(plain["choices"][0]["token_ids"]) == 12
    assert len(plain["choices"][0]["logprobs"]["content"]) == 19
    assert sum(len(choice.get("token_ids", [])) for choice in choices(streamed)) == 12
    assert plain["usage"]["completion_tokens"] == 20


def test_scripts_are_an_answer_a_list_or_a_function() -> None:
    with FakeEngine(script=[Answer(text="a"), Answer(status=429, headers={"retry-after": "1"})]) as engine:
        assert chat(engine).json()["choices"][0]["message"]["content"] == "a"
        assert [chat(engine).headers["retry-after"] for _ in range(2)] == ["1", "1"]
        engine.script = lambda request: Answer(text=request.json["messages"][0]["content"])
        answered = chat(engine, n=2).json()["choices"]
    assert [choice["message"]["content"] for choice in answered] == ["say hé", "say hé"]
    assert len(engine.calls) == 4 and engine.requests[0].headers["content-type"] == "application/json"


def test_a_bug_in_a_script_fails_the_test() -> None:
    def broken(request: Request) -> Answer:
        raise KeyError("oops")

    engine = FakeEngine(script=broken).start()
    with pytest.raises(httpx.RemoteProtocolError):
        chat(engine)
    with pytest.raises(KeyError, match="oops"):
        engine.stop()


def read_raw(url: str) -> bytes:
    """The bytes of a streamed answer up to its cut, whatever they are."""

    async def read() -> bytes:
        got = b""
        async with aiohttp.ClientSession() as session:
            body = {"messages": HELLO, "stream": True}
            async with session.post(url + "/v1/chat/completions", json=body) as response:
                with pytest.raises(aiohttp.ClientPayloadError):
                    async for part in response.content.iter_any():
                        got += part
        return got

    return asyncio.run(read())


def test_cuts_come_before_the_first_byte_between_events_and_inside_a_line() -> None:
    script = [Answer(cut_after=0), Answer(text="abcdefgh", cut_after=2), Answer(cut_bytes=9)]
    with FakeEngine(script=script) as engine:
        with pytest.raises(httpx.RemoteProtocolError):
            chat(engine)
        two = read_raw(engine.url)
        assert two.count(b"\n\n") == 2 and two.endswith(b"\n\n")
        assert read_raw(engine.url) == b'data: {"i'
        engine.script = Answer(cut_after=1)
        with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
            chat(engine)
        assert engine.disconnects == []


def test_hangs_last_until_the_client_goes_and_are_noticed() -> None:
    with FakeEngine(script=Answer(hang_after=1)) as engine:
        started = time.monotonic()
        with httpx.stream(
            "POST", engine.url + "/v1/chat/completions", json={"stream": True}, timeout=1
        ) as got:
            parts = got.iter_raw()
            assert next(parts).startswith(b"data: {")
            assert engine.open_streams == 1
        engine.wait_until(lambda e: e.open_streams == 0)
        assert started < engine.disconnects[0] < time.monotonic()
        assert engine.requests[0].parts_sent == 1


def test_bodies_can_be_anything() -> None:
    three_mb = b"data: " + b"x" * 3_000_000 + b"\n\n"
    script = [
        Answer(raw=b"SSH-2.0-OpenSSH_9.2\r\n"),
        Answer(body=b"<html>", headers={"content-type": "text/html"}),
        Answer(body=(three_mb for _ in range(2))),
        Answer(text="abc", comment=b": ping\n\n", split=3, done=False),
    ]
    with FakeEngine(script=script) as engine:
        with pytest.raises(httpx.RemoteProtocolError):
            chat(engine)
        assert chat(engine).headers["content-type"] == "text/html"
        assert len(chat(engine).content) == 2 * len(three_mb)
        pinged = chat(engine, stream=True).text
    assert pinged.startswith(": ping\n\ndata: {") and "[DONE]" not in pinged
    assert len(events(pinged)) == 3


def test_gzip_is_whole_or_truncated() -> None:
    script = [Answer(gzip="whole"), Answer(gzip="truncated")]
    with FakeEngine(script=script) as engine:
        assert chat(engine).json()["choices"]
        body = {"messages": HELLO}
        with httpx.stream("POST", engine.url + "/v1/chat/completions", json=body) as response:
            cut = b"".join(response.iter_raw())
        with pytest.raises(EOFError):
            gzip.decompress(cut)


def test_idle_connections_can_be_closed_behind_the_clients_back() -> None:
    with FakeEngine() as engine, httpx.Client(base_url=engine.url) as client:
        assert client.get("/health").status_code == client.get("/health").status_code == 200
        assert engine.connects == 1 and engine.requests[1].reused
        engine.drop_idle()
        engine.wait_until(lambda e: not e.connections)
        client.get("/health")
        assert engine.connects == 2 and not engine.requests[2].reused


def test_it_serves_in_the_running_loop_too() -> None:
    async def scenario() -> int:
        async with FakeEngine(script=Answer(delay=0.01)) as engine, httpx.AsyncClient() as client:
            url = engine.url + "/v1/chat/completions"
            await asyncio.gather(*(client.post(url, json={"messages": HELLO}) for _ in range(8)))
            return engine.peak_open

    before = threading.active_count()
    assert asyncio.run(scenario()) == 8
    assert threading.active_count() == before


def test_chunked_request_bodies_are_read() -> None:
    with FakeEngine() as engine:
        parts = iter([b'{"messages":', b" []}"])
        answered = httpx.post(engine.url + "/v1/chat/completions", content=parts)
    assert answered.status_code == 200 and engine.requests[0].body == b'{"messages": []}'


def test_refused_and_hanging_connects() -> None:
    with pytest.raises(httpx.ConnectError):
        httpx.get(refused_url())
    with black_hole() as url, pytest.raises(httpx.ConnectTimeout):
        httpx.get(url, timeout=0.2)


def test_gyre_says_more_than_vllm_to_those_who_ask_for_ids() -> None:
    answer = Answer(text="abcdef", versions=[("3", 0, 4), ("4", 4, 7)], spliced=2)
    with FakeEngine(kind="gyre", script=answer) as engine:
        plain = chat(engine, temperature=0.5, **IDS).json()
        streamed = chat(engine, stream=True, temperature=0.5, **IDS).text
        bare = chat(engine).json()
    (choice,) = plain["choices"]
    assert choice["weight_versions"] == [
        {"version": "3", "start": 0, "end": 4},
        {"version": "4", "start": 4, "end": 7},
    ]
    assert plain["metadata"]["weight_digests"] == {"3": "digest-of-3", "4": "digest-of-4"}
    assert (plain["metadata"]["sampling"]["seed"], plain["metadata"]["spliced_tokens"]) == (choice["seed"], 2)
    entries = choice["logprobs"]["content"]
    assert [2 * entry["sampling_logprob"] for entry in entries] == [entry["logprob"] for entry in entries]
    spans = [span for one in choices(streamed) for span in one.get("weight_versions", [])]
    assert [span["end"] - span["start"] for span in spans] == [4, 2, 1]
    told = [part["metadata"] for part in events(streamed) if "metadata" in part]
    assert told[0]["weight_digests"] == {"3": "digest-of-3"}
    assert told[1:] == [{"weight_digests": {"4": "digest-of-4"}}]
    assert bare.keys().isdisjoint(("metadata",)) and "seed" not in bare["choices"][0]


def test_gyre_goes_on_after_ids_that_it_is_given() -> None:
    with FakeEngine(kind="gyre", script=Answer(text="abcdef")) as engine:
        given = {"output_token_ids": tokenize("abc"), **IDS}
        plain = chat(engine, **given).json()["choices"][0]
        streamed = chat(engine, stream=True, **given).text
    assert plain["token_ids"] == tokenize("abcdef<|im_end|>")
    assert [t for one in choices(streamed) for t in one.get("token_ids", [])] == tokenize("def<|im_end|>")
    assert [one["delta"].get("content") for one in choices(streamed)] == ["", "def", None]
