"""Stop strings in streamed text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.elastic.engine.text.stops import StopStrings
from gyre.proxy.errors import RequestError

AB = st.text(alphabet="ab", max_size=20)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3)


def cut(stops: list[str], chunks: list[str], *, include: bool = False) -> tuple[str, str | None]:
    finder = StopStrings(stops, include=include)
    text = "".join(finder.add(chunk) for chunk in chunks)
    return text + finder.flush(), finder.matched


def by_character(stops: list[str], text: str) -> tuple[str, str | None]:
    """What must come out: grow the text until it ends with a stop string."""
    for end in range(1, len(text) + 1):
        matched = [stop for stop in stops if text[:end].endswith(stop)]
        if matched:
            longest = max(matched, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(stops=STOPS, chunks=st.lists(AB, max_size=6))
def test_any_chunks_are_cut_as_single_characters_are(stops: list[str], chunks: list[str]) -> None:
    assert cut(stops, chunks) == by_character(stops, "".join(chunks))


@given(stops=STOPS, chunks=st.lists(AB, max_size=6))
def test_the_stop_string_itself_can_be_kept(stops: list[str], chunks: list[str]) -> None:
    text, matched = by_character(stops, "".join(chunks))
    assert cut(stops, chunks, include=True) == (text + (matched or ""), matched)


@given(stops=STOPS, chunks=st.lists(AB, max_size=6))
def test_no_more_is_held_back_than_may_begin_a_stop_string(stops: list[str], chunks: list[str]) -> None:
    finder = StopStrings(stops)
    told = ""
    for i, chunk in enumerate(chunks):
        told += finder.add(chunk)
        if finder.matched is None:
            held = "".join(chunks[: i + 1])[len(told) :]
            assert held == "" or any(stop.startswith(held) for stop in stops)


def test_of_two_that_end_together_the_longer_one_is_cut_off() -> None:
    assert cut(["a", "ba"], ["xb", "a"]) == ("x", "ba")


def test_what_follows_is_dropped() -> None:
    finder = StopStrings(["END"])
    pieces = [finder.add("one E"), finder.add("ND two"), finder.add("three"), finder.flush()]
    assert pieces == ["one ", "", "", ""]
    assert finder.matched == "END"


@pytest.mark.parametrize("stops", [[""], ["x"] * 65, ["x" * 5000]])
def test_impossible_stop_strings_are_refused(stops: list[str]) -> None:
    with pytest.raises(RequestError, match="stop"):
        StopStrings(stops)
