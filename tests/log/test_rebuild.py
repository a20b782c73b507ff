"""Wholes from deltas: exact for any tree of parents, linear for any depth, honest when broken."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.reading.rebuild import Part, Rebuilder

Key = tuple[str, int, int]


def key(i: int) -> Key:
    return f"c{i}", 0, 0


@st.composite
def trees(draw: st.DrawFn) -> tuple[dict[Key, Part], dict[Key, bytes]]:
    """Rows that each share any beginning of any earlier row, and what they stand for."""
    parts: dict[Key, Part] = {}
    wholes: dict[Key, bytes] = {}
    for i in range(draw(st.integers(1, 12))):
        suffix, tail = draw(st.binary(max_size=6)), draw(st.binary(max_size=4))
        parent = key(draw(st.integers(0, i - 1))) if i and draw(st.booleans()) else None
        source = wholes[parent] + bytes(parts[parent].tail) if parent else b""
        shared = draw(st.integers(0, len(source)))
        parts[key(i)] = Part(parent, shared, suffix, tail)
        wholes[key(i)] = source[:shared] + suffix
    return parts, wholes


@given(trees(), st.integers(0, 40), st.randoms())
def test_every_whole_is_rebuilt_in_any_order_with_any_cache(
    tree: tuple[dict[Key, Part], dict[Key, bytes]], cache: int, random: object
) -> None:
    parts, wholes = tree
    rebuilder = Rebuilder(parts.get, cache)
    keys = list(wholes)
    random.shuffle(keys)  # type: ignore[attr-defined]
    assert {k: rebuilder.whole(k) for k in keys} == wholes


def chain(length: int) -> dict[Key, Part]:
    parts = {key(0): Part(None, 0, b"start", b"out")}
    for i in range(1, length):
        parts[key(i)] = Part(key(i - 1), parts[key(i - 1)].length + 3, b"new", b"out")
    return parts


def test_a_chain_of_5000_calls_is_walked_by_looking_at_each_part_a_few_times() -> None:
    parts = chain(5_000)
    looks = 0

    def part(k: Key) -> Part | None:
        nonlocal looks
        looks += 1
        return parts.get(k)

    rebuilder = Rebuilder(part)
    assert sum(len(rebuilder.whole(k)) for k in parts) == sum(p.length for p in parts.values())
    assert looks <= 4 * len(parts)


def test_the_end_of_a_chain_of_10000_calls_is_rebuilt_without_recursion() -> None:
    parts = chain(10_000)
    start = time.monotonic()
    assert len(Rebuilder(parts.get).whole(key(9_999))) == parts[key(9_999)].length
    assert time.monotonic() - start < 2


def test_a_missing_parent_is_named() -> None:
    with pytest.raises(CorruptLogError, match="`b` cannot be rebuilt: `a` is missing"):
        Rebuilder({("b", 0, 0): Part(("a", 0, 0), 3, b"x")}.get).whole(("b", 0, 0))


def test_a_parent_that_is_too_short_is_named() -> None:
    parts = {("a", 0, 0): Part(None, 0, b"12", b"3"), ("b", 0, 0): Part(("a", 0, 0), 4, b"x")}
    with pytest.raises(CorruptLogError, match="`a` is too short"):
        Rebuilder(parts.get).whole(("b", 0, 0))


def test_parents_in_a_circle_are_an_error() -> None:
    parts = {("a", 0, 0): Part(("b", 0, 0), 2, b"xx"), ("b", 0, 0): Part(("a", 0, 0), 2, b"yy")}
    with pytest.raises(CorruptLogError, match="form no chain"):
        Rebuilder(parts.get).whole(("a", 0, 0))


def test_the_cache_is_bounded_but_keeps_the_newest_few() -> None:
    rebuilder = Rebuilder(chain(50).get, cache_bytes=100)
    for i in range(50):
        rebuilder.whole(key(i))
    assert list(rebuilder._cache) == [key(i) for i in range(46, 50)]
    assert rebuilder._cached == sum(len(whole) for whole in rebuilder._cache.values())
