"""What can this engine tell us about tokens? Three calls, each read as the proxy would read it.

Talks HTTP through the client it is given and decides nothing about the screen; `gyre doctor` shows
the `Diagnosis`. Works the same on an engine and on a gyre proxy in front of one.
"""

from __future__ import annotations

import httpx
import msgspec
import numpy as np

from gyre.proxy.calls import Sampling, Wire
from gyre.proxy.capture.captured import Captured, judge, logprob_quality
from gyre.proxy.capture.plain import Unreadable, capture_plain
from gyre.proxy.capture.profiles import Engine, fields_to_set, hidden, probe_reply, read_ask
from gyre.proxy.capture.reply import Ids
from gyre.proxy.capture.splice import parse_object, set_fields
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.capture.usage import read_usage
from gyre.proxy.diagnosis import Diagnosis, Kind, Probe, findings
from gyre.proxy.errors import UpstreamError
from gyre.proxy.sse import EventSplitter

EXECUTION = "doctor"
"""The execution under which a gyre proxy records these calls."""
HEADERS = {
    "content-type": "application/json",
    "x-gyre-execution": EXECUTION,
    # llama.cpp closes a connection after a stream without saying so; the next request would fail.
    "connection": "close",
}
MAX_TOKENS = 256
"""Enough for answers to end by themselves: some engines lose the end token, and only then it shows."""
EVENT_LIMIT = 64 << 20
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "What is the weather in Paris? Answer in a few words."}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def diagnose(
    client: httpx.Client, url: str, *, model: str | None = None, engine: Engine | None = None
) -> Diagnosis:
    """Ask `url` (with or without `/v1`) three calls.

    Raises:
        UpstreamError: it cannot be reached, or names no model and none was given.
    """
    base = url.rstrip("/").removesuffix("/v1")
    try:
        models = client.get(f"{base}/v1/models")
        engine = engine or probe_reply(models.content)
        model = model or _first_model(models.content)
        if model is None:
            raise UpstreamError(f"`{base}/v1/models` names no model", "pass `--model NAME`")
        probes = [_ask(client, base, engine, model, kind) for kind in Kind]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UpstreamError(f"`{base}`: {error}", "is the engine running there?") from error
    return Diagnosis(url=base, engine=engine, model=model, probes=probes, findings=findings(engine, probes))


def _first_model(models: bytes) -> str | None:
    try:
        name = msgspec.json.decode(models)["data"][0]["id"]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _ask(client: httpx.Client, base: str, engine: Engine, model: str, kind: Kind) -> Probe:
    """One call, with the fields set that the proxy would set."""
    body = msgspec.json.encode(
        {"model": model, "messages": MESSAGES, "max_tokens": MAX_TOKENS, "seed": 7}
        | ({"stream": True} if kind == Kind.STREAM else {})
        | ({"tools": [TOOL]} if kind == Kind.TOOL else {})
    )
    top = parse_object(body)
    ask = read_ask(Wire.CHAT, top)
    fields = fields_to_set(engine, ask)
    answer = client.post(base + CHAT, content=set_fields(body, top, fields), headers=HEADERS)
    if answer.status_code != 200:
        return Probe(kind=kind, status=answer.status_code, problem=answer.text.strip()[:200])
    masked = hidden(engine, frozenset(fields))
    try:
        if ask.stream:
            captured = _read_stream(StreamCapture(engine, masked, chat=True), answer.content)
        else:
            captured, _ = capture_plain(engine, masked, answer.content)
    except Unreadable as error:
        return Probe(kind=kind, status=200, problem=f"not an answer of this API: {error}")
    if captured.prompt_ids is None and captured.prompt_text is not None:
        captured.prompt_ids = _tokenize(client, base, captured.prompt_text)
    sampling = captured.sampling or ask.sampling
    return _probe(kind, captured, sampling)


def _read_stream(capture: StreamCapture, content: bytes) -> Captured:
    splitter = EventSplitter(EVENT_LIMIT)
    for event in [*splitter.feed(content), splitter.rest()]:
        capture.forward(event)
    if capture.failed is not None:
        raise Unreadable(f"an error in the stream: {capture.failed.decode(errors='replace')[:200]}")
    captured = capture.finish(capture.done or capture.finished)
    if not captured.choices:
        raise Unreadable("no event with `choices` in the stream")
    return captured


def _tokenize(client: httpx.Client, base: str, prompt: str) -> Ids | None:
    """llama.cpp gives the rendered prompt as text and its ids on a second request."""
    ask = {"content": prompt, "add_special": True, "parse_special": True}
    answer = client.post(f"{base}/tokenize", json=ask)
    try:
        return np.array(msgspec.json.decode(answer.content, type=_Tokens).tokens, np.int32)
    except msgspec.DecodeError:
        return None


class _Tokens(msgspec.Struct):
    tokens: list[int]


def _probe(kind: Kind, captured: Captured, sampling: Sampling) -> Probe:
    if not captured.choices:
        return Probe(kind=kind, status=200, problem="an answer without a choice")
    usage = read_usage(captured.usage)
    first = captured.choices[0]
    quality, flags = judge(captured, first, usage, sampled=True)
    prompt = captured.prompt_ids
    return Probe(
        kind=kind,
        status=200,
        quality=quality,
        logprobs=logprob_quality(first, sampling),
        both_logprobs=first.sampling_logprobs is not None,
        prompt_ids=None if prompt is None else tuple(prompt.tolist()),
        sampled=len(first.ids or ()),
        usage=usage,
        versions=tuple(span.version for span in first.spans),
        digests=captured.weight_digests,
        message=first.message or b"",
        flags=tuple(flags),
    )
