"""Whatever a client or an engine says, it becomes a row that can be written, read and sealed."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gyre.proxy.calls import CallRecord, Identity, Outcome, Phase, Sampling, Wire
from gyre.proxy.capture.captured import Captured
from gyre.proxy.capture.plain import Unreadable, capture_plain
from gyre.proxy.capture.profiles import Engine, fields_to_set, hidden, read_ask
from gyre.proxy.capture.splice import parse_object, set_fields
from gyre.proxy.capture.stream import StreamCapture
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.record.attempt import Attempt, Call
from gyre.proxy.log.record.delta import DeltaIndex
from gyre.proxy.log.record.journal import Segment
from gyre.proxy.log.record.parts import KnownMessages
from gyre.proxy.log.record.rows import rows_of
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.sse import event_of
from tests.proxy.json_text import TEXT
from tests.proxy.reading import body_of

NUMBERS = st.sampled_from(
    [0, 1, -1, 7, 2**31 - 1, 2**31, 2**63, 2**64, -(2**65), 10**400, 0.5, -9999.0, 1e300]
)
JUNK = st.one_of(
    st.none(), st.booleans(), NUMBERS, TEXT, st.lists(NUMBERS, max_size=2), st.just({}), st.just([{}])
)
IDS = st.one_of(st.lists(st.integers(0, 200_000), max_size=4), JUNK)


def shaped(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """An object with some of these fields, or something else."""
    return st.one_of(st.fixed_dictionaries({}, optional=fields), JUNK)


def many(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.lists(items, max_size=3), JUNK)


ENTRY = shaped(token=TEXT, logprob=NUMBERS, id=NUMBERS)
LOGPROBS = shaped(content=many(ENTRY), token_logprobs=many(NUMBERS), tokens=JUNK)
FUNCTION = shaped(name=TEXT, arguments=TEXT)
CALL = shaped(index=NUMBERS, id=TEXT, function=FUNCTION)
MESSAGE = shaped(
    role=TEXT, content=st.one_of(TEXT, JUNK), tool_calls=many(CALL), function_call=FUNCTION, x=JUNK
)
META = shaped(output_token_logprobs=many(st.one_of(st.tuples(NUMBERS, NUMBERS, JUNK), JUNK)))
CHOICE = shaped(
    index=st.one_of(st.integers(0, 2), NUMBERS),
    message=MESSAGE,
    delta=MESSAGE,
    text=TEXT,
    finish_reason=st.one_of(st.sampled_from(["stop", "length"]), JUNK),
    logprobs=LOGPROBS,
    token_ids=IDS,
    response_token_ids=IDS,
    prompt_token_ids=IDS,
    meta_info=META,
)
SPAN = shaped(version=st.one_of(TEXT, NUMBERS), start=NUMBERS, end=NUMBERS)
USAGE = shaped(prompt_tokens=NUMBERS, completion_tokens=NUMBERS)
SETTINGS = shaped(seed=NUMBERS, temperature=NUMBERS, top_k=NUMBERS, min_p=NUMBERS)
REPLY = st.fixed_dictionaries(
    {},
    optional={
        "id": JUNK,
        "model": JUNK,
        "choices": many(CHOICE),
        "usage": USAGE,
        "prompt_token_ids": IDS,
        "sglext": shaped(input_ids=IDS, output_ids=many(IDS)),
        "__verbose": shaped(prompt=TEXT, tokens=IDS, generation_settings=SETTINGS),
        "metadata": shaped(weight_version=st.one_of(TEXT, NUMBERS), weight_versions=many(SPAN)),
        "error": JUNK,
    },
)
REQUEST = st.fixed_dictionaries(
    {},
    optional={
        "model": st.one_of(TEXT, JUNK),
        "messages": many(MESSAGE),
        "prompt": st.one_of(TEXT, IDS),
        "tools": many(JUNK),
        "stream": JUNK,
        "stream_options": shaped(include_usage=JUNK, x=JUNK),
        "n": NUMBERS,
        "temperature": NUMBERS,
        "top_k": NUMBERS,
        "seed": NUMBERS,
        "logprobs": JUNK,
        "return_token_ids": JUNK,
        "user": JUNK,
    },
)
ENGINES = st.sampled_from(list(Engine))
WIRES = st.sampled_from([Wire.CHAT, Wire.COMPLETIONS])


def text_of(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def asked(body: bytes, wire: Wire, engine: Engine) -> tuple[Call, bytes]:
    """A call with this body, and the body that the engine would get."""
    top = parse_object(body)
    ask = read_ask(wire, top)
    call = Call("c", Identity("e1", "url"), 0, wire, "POST", "/v1/x", body, len(body), b"d" * 16, top, ask)
    return call, set_fields(body, top, fields_to_set(engine, ask))


def written(root: Path, call: Call, captured: Captured | None) -> list[CallRecord]:
    """The rows of a finished attempt as the journal gives them back."""
    attempt = Attempt(call, outcome=Outcome.OK, phase=Phase.DONE, captured=captured, defaults=Sampling(1.0))
    numbers = count(1)
    rows = rows_of(attempt, DeltaIndex(), KnownMessages(), lambda: next(numbers), "w0")
    path = create_folder(root).segment(1, "w0")
    path.unlink(missing_ok=True)
    segment = Segment(path)
    segment.append(rows.records)
    segment.close()
    damage = Damage()
    read = [record for record in scan(path, damage) if isinstance(record, CallRecord)]
    assert damage == Damage() and read == rows.records
    return read


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(REQUEST, WIRES, ENGINES)
def test_any_request_becomes_a_row_that_gives_it_back(
    root: Path, request_: dict[str, Any], wire: Wire, engine: Engine
) -> None:
    body = text_of(request_)
    call, sent = asked(body, wire, engine)
    rows = written(root, call, None)
    assert body_of(rows, rows[0]) == body
    kept = {key: value for key, value in request_.items() if key in json.loads(sent)}
    assert kept.keys() == request_.keys()


@example({"__verbose": None, "choices": []}, Wire.CHAT, Engine.LLAMACPP)
@example({"choices": [{"meta_info": None}]}, Wire.CHAT, Engine.SGLANG)
@given(REPLY, WIRES, ENGINES)
def test_any_plain_answer_becomes_a_row(
    root: Path, reply: dict[str, Any], wire: Wire, engine: Engine
) -> None:
    call, _ = asked(b'{"messages":[]}', wire, engine)
    assert call.ask
    hide = hidden(engine, frozenset(fields_to_set(engine, call.ask)))
    try:
        captured, shown = capture_plain(engine, hide, text_of(reply))
    except Unreadable:
        return
    assert json.loads(shown).keys() == reply.keys() - hide.top
    assert written(root, call, captured)


HUGE_SEED = {"__verbose": {"prompt": "", "generation_settings": {"seed": 2**64}}}
HUGE_SPAN = {"choices": [{}], "metadata": {"weight_versions": [{"version": 1, "start": 0, "end": 2**70}]}}


@example([HUGE_SEED], Wire.CHAT, Engine.LLAMACPP)
@example([HUGE_SPAN], Wire.CHAT, Engine.SGLANG)
@given(st.lists(REPLY, max_size=4), WIRES, ENGINES)
def test_any_stream_becomes_a_row(
    root: Path, replies: list[dict[str, Any]], wire: Wire, engine: Engine
) -> None:
    call, _ = asked(b'{"messages":[],"stream":true}', wire, engine)
    assert call.ask
    hide = hidden(engine, frozenset(fields_to_set(engine, call.ask)))
    capture = StreamCapture(engine, hide, wire == Wire.CHAT)
    for reply in replies:
        shown = capture.forward(event_of(text_of(reply)))
        assert not shown or json.loads(shown.removeprefix(b"data: ")).keys() <= reply.keys()
    assert written(root, call, capture.finish(complete=True))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(REQUEST, REPLY, WIRES, ENGINES), min_size=1, max_size=5))
def test_any_rows_can_be_sealed_and_read(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[dict[str, Any], dict[str, Any], Wire, Engine]]
) -> None:
    for body, reply, wire, engine in calls:
        folder = create_folder(tmp_path_factory.mktemp("seal"))
        call, _ = asked(text_of(body), wire, engine)
        assert call.ask
        capture = StreamCapture(engine, hidden(engine, frozenset()), wire == Wire.CHAT)
        capture.forward(event_of(text_of(reply)))
        rows = written(folder.root, call, capture.finish(complete=True))
        seal(folder.root)
        assert read_log(folder.root).calls.num_rows == len(rows)
