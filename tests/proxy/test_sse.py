"""Events cut out of a byte stream, wherever its chunks break."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.sse import EventSplitter, EventTooLarge, data_of, event_of

UNLIMITED = 1 << 30
STREAMS = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b"data: x", b": ping", b"event: a", b"\xc3", b"\xa9"]),
    max_size=30,
).map(b"".join)


def chopped(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(at)]


def events_of(chunks: Iterable[bytes]) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter(UNLIMITED)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events, splitter.rest()


@given(STREAMS, st.lists(st.integers(0, 300), max_size=40))
def test_any_chunking_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    assert events_of(chopped(data, cuts)) == events_of([data])


@given(STREAMS)
def test_single_bytes_give_the_same_events(data: bytes) -> None:
    assert events_of([data[at : at + 1] for at in range(len(data))]) == events_of([data])


@given(STREAMS, st.lists(st.integers(0, 300), max_size=20))
def test_no_byte_is_lost_or_moved(data: bytes, cuts: list[int]) -> None:
    events, rest = events_of(chopped(data, cuts))
    assert b"".join([*events, rest]) == data


@given(STREAMS, st.lists(st.integers(0, 300), max_size=20), st.integers(0, 20))
def test_no_byte_is_lost_when_an_event_is_too_large(data: bytes, cuts: list[int], limit: int) -> None:
    splitter, got, chunks = EventSplitter(limit), [], iter(chopped(data, cuts))
    for chunk in chunks:
        try:
            got += splitter.feed(chunk)
        except EventTooLarge as error:
            got += [*error.events, error.pending, *chunks]
    assert b"".join([*got, splitter.rest()]) == data


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_every_line_end_that_the_standard_names_ends_an_event(end: bytes) -> None:
    events, rest = events_of([b"data: 1" + end + b"data: 2" + end + b"data: 3"])
    assert events == [b"data: 1" + end, b"data: 2" + end]
    assert rest == b"data: 3"


def test_what_is_held_back_is_counted_and_bounded() -> None:
    splitter = EventSplitter(100)
    assert splitter.feed(b"data: 1\n\ndata: " + b"x" * 60) == [b"data: 1\n\n"]
    assert splitter.size == 66
    with pytest.raises(EventTooLarge) as caught:
        splitter.feed(b"y" * 35)
    assert caught.value.pending == b"data: " + b"x" * 60 + b"y" * 35
    assert splitter.size == 0


def test_events_before_one_that_is_too_large_are_not_lost() -> None:
    with pytest.raises(EventTooLarge) as caught:
        EventSplitter(10).feed(b"data: 1\n\ndata: " + b"x" * 60)
    assert caught.value.events == [b"data: 1\n\n"]
    assert caught.value.pending == b"data: " + b"x" * 60


def test_a_large_event_in_small_reads_takes_linear_time() -> None:
    splitter = EventSplitter(UNLIMITED)
    line = b"data: " + b"1," * 1_500_000
    started = time.process_time()
    for at in range(0, len(line), 512):
        assert splitter.feed(line[at : at + 512]) == []
    assert splitter.feed(b"\n\n") == [line + b"\n\n"]
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\n\n", b"{}"),
        (b"data: {}\r\n\r\n", b"{}"),
        (b"event: error\ndata: {}\nid: 7\n\n", b"{}"),
        (b"data: {\ndata: }\n\n", b"{\n}"),
        (b": ping\n\n", None),
        (b"event: ping\n\n", None),
        (b"\n\n", None),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes | None) -> None:
    assert data_of(event) == data


def test_an_event_made_of_data_reads_as_that_data() -> None:
    assert data_of(event_of(b'{"a":1}')) == b'{"a":1}'
