"""Prompts given as text grow with every call; only what is new of them is stored."""

from __future__ import annotations

from pathlib import Path

import httpx
from hypothesis import given
from hypothesis import strategies as st

from gyre.proxy import read_log
from gyre.proxy.log.record.delta import DeltaIndex
from tests.engines.fake import FakeEngine
from tests.proxy.running import RunningProxy


def test_a_growing_text_prompt_is_stored_once(tmp_path: Path) -> None:
    parts = [f"step {number}: " + "look around. " * 400 for number in range(8)]
    prompts = ["".join(parts[: count + 1]) for count in range(8)]
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        for prompt in prompts:
            httpx.post(proxy.base() + "/completions", json={"model": "fake", "prompt": prompt})
        log = read_log(tmp_path)
    assert sum(map(len, log.messages["body"].to_pylist())) < 1.01 * len(prompts[-1])
    bodies = [httpx.Request("POST", "http://x", json={"model": "fake", "prompt": p}).content for p in prompts]
    assert [log.request_body(*key) for key in log.row_keys()] == bodies


@given(st.lists(st.binary(max_size=8), max_size=12), st.binary(max_size=30))
def test_pieces_are_the_text_and_begin_with_those_of_an_earlier_one(grown: list[bytes], other: bytes) -> None:
    index, text, before = DeltaIndex(), b'"', list[bytes]()
    for more in grown:
        text += more
        pieces = index.split_text("e", text + b'"')
        assert b"".join(pieces) == text + b'"'
        assert pieces[: len(before)] == before
        index.add_text("e", pieces)
        before = pieces[:-1]
    assert b"".join(index.split_text("e", b'"' + other + b'"')) == b'"' + other + b'"'
