"""Pausing, publishing and aborting over HTTP, with vLLM's names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gyre.elastic.engine.request import FinishReason, SamplingParams, Span
from gyre.elastic.engine.weights.staged import digest_of
from tests.engine.weights.models import qwen3, qwen3_moe
from tests.engine.weights.rig import Control, Heard, ask, controlled, update_of

PROMPT = tuple(range(40))


@pytest.fixture
def control() -> Iterator[Control]:
    with controlled(qwen3()) as control:
        yield control


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    qwen3(1).save_pretrained(tmp_path / "v1")
    return tmp_path / "v1"


# -- pause -----------------------------------------------------------------------------------------


def test_a_pause_that_keeps_freezes_and_goes_on(control: Control) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(3)
    assert control.get("/is_paused") == {"is_paused": False}
    assert control.post("/pause", mode="keep") == {"status": "paused"}
    steps = control.steps()
    (later,) = control.submit(ask())
    assert (control.steps(), control.get("/is_paused")) == (steps, {"is_paused": True})
    assert (heard.finish, later.tokens) == (None, [])
    seen = len(heard.tokens)
    assert control.post("/resume") == {"status": "resumed"}
    heard.wait_for_tokens(seen + 3)
    later.wait_for_tokens(1)
    assert control.get("/is_paused") == {"is_paused": False}


def test_a_pause_ends_all_by_default(control: Control) -> None:
    all_ = control.submit(*(ask() for _ in range(20)))
    assert control.post("/pause") == {"status": "paused"}
    assert {heard.reason for heard in all_} == {FinishReason.ABORT}
    (later,) = control.submit(ask(max_tokens=2))
    assert not later.tokens
    control.post("/resume")
    assert later.reason == FinishReason.LENGTH


def test_a_pause_that_waits_lets_them_end(control: Control) -> None:
    (first,) = control.submit(ask(max_tokens=200))
    first.wait_for_tokens(1)
    with ThreadPoolExecutor() as pool:
        pause = pool.submit(control.post, "/pause", mode="wait")
        while not control.get("/is_paused")["is_paused"]:
            pass
        (later,) = control.submit(ask(max_tokens=2))
        assert pause.result() == {"status": "paused"}
    assert (first.reason, len(first.tokens)) == (FinishReason.LENGTH, 200)
    assert not later.tokens
    control.post("/resume")
    assert later.reason == FinishReason.LENGTH


def test_a_pause_that_waits_hears_of_a_resume(control: Control) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(1)
    with ThreadPoolExecutor() as pool:
        pause = pool.submit(control.refused, "/pause", mode="wait")
        while not control.get("/is_paused")["is_paused"]:
            pass
        control.post("/resume")
        status, message = pause.result()
    assert status == 409 and "resumed" in message


def test_an_unknown_mode_is_refused(control: Control) -> None:
    status, message = control.refused("/pause", mode="gently")
    assert status == 400 and "`gently` is none of abort, wait, keep" in message
    assert control.get("/is_paused") == {"is_paused": False}


# -- versions --------------------------------------------------------------------------------------


def test_the_version_and_its_digest_are_told(control: Control) -> None:
    info = {"weight_version": "0", "weight_digest": digest_of(control.model)}
    assert control.get("/weight_info") == info


def test_a_folder_becomes_a_version(control: Control, folder: Path) -> None:
    told = control.publish(folder, 7)
    digest = digest_of(qwen3(1))
    assert told == {"message": "Weights updated", "weight_version": "7", "weight_digest": digest}
    assert control.get("/weight_info") == {"weight_version": "7", "weight_digest": digest}
    (heard,) = control.submit(ask(max_tokens=1))
    assert heard.wait() and heard.tokens[0].version == "7"
    assert heard.start is not None and (heard.start.version, heard.start.digest) == ("7", digest)


def test_running_requests_live_through_it(control: Control, folder: Path) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(3)
    control.publish(folder, "1")
    heard.wait_for_tokens(len(heard.tokens) + 3)
    control.post("/abort_requests", {})
    finish = heard.wait()
    versions = [token.version for token in heard.tokens]
    changed = versions.index("1")
    assert versions == ["0"] * changed + ["1"] * (len(versions) - changed)
    # The last token of the old version was computed by the new one.
    borders = Span("0", 0, 3 + changed - 1), Span("1", 3 + changed - 1, 3 + len(versions) - 1)
    assert finish.kv_spans == borders


def test_recompute_leaves_nothing_of_the_old(control: Control, folder: Path) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(3)
    control.publish(folder, "1", "recompute")
    heard.wait_for_tokens(len(heard.tokens) + 3)
    control.post("/abort_requests", {})
    assert [span.version for span in heard.wait().kv_spans] == ["1"]


def test_abort_ends_what_runs(control: Control, folder: Path) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(3)
    control.publish(folder, "1", "abort")
    assert heard.reason == FinishReason.ABORT
    assert {token.version for token in heard.tokens} == {"0"}


def test_a_paused_engine_takes_weights(control: Control, folder: Path) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(3)
    control.post("/pause", mode="keep")
    seen = len(heard.tokens)
    control.publish(folder, "1")
    assert control.get("/is_paused") == {"is_paused": True}
    control.post("/resume")
    heard.wait_for_tokens(seen + 2)
    assert [token.version for token in heard.tokens[:seen]] == ["0"] * seen
    assert heard.tokens[seen].version == "1"


def test_a_version_may_be_published_again(control: Control, folder: Path) -> None:
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(1)
    assert control.publish(folder, "1") == control.publish(folder, "1", "abort")
    heard.wait_for_tokens(len(heard.tokens) + 1)
    assert control.engine.stats.publications == 1


def test_a_version_is_one_set_of_weights_for_good(control: Control, folder: Path, tmp_path: Path) -> None:
    control.publish(folder, "1")
    status, message = control.refused("/update_weights", update_of(folder, "0"))
    assert status == 409 and "version `0` is of other weights" in message
    status, _ = control.refused("/update_weight_version", {"new_version": "0"})
    assert status == 409
    qwen3().save_pretrained(tmp_path / "v0")
    assert control.publish(tmp_path / "v0", "0")["weight_digest"] == digest_of(qwen3())
    assert control.get("/weight_info")["weight_version"] == "0"


def test_the_weights_get_another_name(control: Control) -> None:
    answer = control.post("/update_weight_version", {"new_version": "step-1"})
    assert answer == {"success": True, "new_version": "step-1"}
    assert control.get("/weight_info") == {
        "weight_version": "step-1",
        "weight_digest": digest_of(control.model),
    }
    assert control.post("/update_weight_version", {"new_version": "step-1"})["success"]


@pytest.mark.parametrize("version", ["", None, 1.5, True, -1, [], "x" * 300])
def test_a_version_has_a_name(control: Control, folder: Path, version: Any) -> None:
    for path, body in (
        ("/update_weight_version", {"new_version": version}),
        ("/update_weights", update_of(folder, version)),
    ):
        assert control.refused(path, body)[0] == 400
    assert control.get("/weight_info")["weight_version"] == "0"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "update_info"),
        ({"update_info": {"weight_version": "1"}}, "path"),
        ({"update_info": {"path": "/v1"}}, "weight_version"),
        ({"update_info": {"path": "v1", "weight_version": "1"}}, "v1 is not absolute"),
        ({"update_info": {"path": "/v\0", "weight_version": "1"}}, "cannot be opened"),
        ({"update_info": {"path": "/missing", "weight_version": "1"}}, "/missing cannot be opened"),
        (update_of(Path("/v1"), "1", "drop"), "in_flight"),
        ([], "the body"),
    ],
)
def test_a_publication_that_cannot_be_is_refused(control: Control, body: Any, problem: str) -> None:
    status, message = control.refused("/update_weights", body)
    assert status == 400 and problem in message
    assert control.get("/weight_info")["weight_digest"] == digest_of(qwen3())


def test_weights_of_another_shape_leave_all_as_it_was(control: Control, tmp_path: Path) -> None:
    qwen3(1, intermediate_size=64).save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    (heard,) = control.submit(ask())
    heard.wait_for_tokens(1)
    status, message = control.refused("/update_weights", update_of(tmp_path, "1", "abort"))
    assert status == 409 and "in the model it is [32, 48]" in message
    heard.wait_for_tokens(len(heard.tokens) + 1)
    assert control.get("/weight_info")["weight_version"] == "0"
    assert digest_of(control.model) == digest_of(qwen3())


def test_requests_go_on_while_weights_are_read_and_a_second_update_is_refused(
    control: Control, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on, readv = threading.Event(), threading.Event(), os.readv

    def slow(descriptor: int, buffers: list[memoryview]) -> int:
        reading.set()
        assert go_on.wait(60)
        return readv(descriptor, buffers)

    monkeypatch.setattr(os, "readv", slow)
    (heard,) = control.submit(ask())
    with ThreadPoolExecutor() as pool:
        update = pool.submit(control.publish, folder, "1")
        assert reading.wait(60)
        heard.wait_for_tokens(len(heard.tokens) + 5)
        status, message = control.refused("/update_weights", update_of(folder, "2"))
        go_on.set()
        assert update.result()["weight_version"] == "1"
    assert status == 409 and "version 1 is being read" in message
    assert {token.version for token in heard.tokens[:5]} == {"0"}
    assert control.publish(folder, "2")["weight_version"] == "2"


def test_experts_are_published_beside_running_requests(tmp_path: Path) -> None:
    """transformers loads them into a second model meanwhile: the one that is served must not notice."""
    qwen3_moe().save_pretrained(tmp_path)
    asked = {"max_tokens": 150, "sampling": SamplingParams(seed=5)}
    with controlled(qwen3_moe()) as control:
        (undisturbed,) = control.submit(ask(**asked))
        undisturbed.wait()
        (heard,) = control.submit(ask(**asked))
        for version in range(1, 4):
            control.publish(tmp_path, version)  # the same weights
        heard.wait()
        assert heard.ids == undisturbed.ids
        assert control.get("/weight_info")["weight_digest"] == digest_of(qwen3_moe())


# -- prefixes and aborts ---------------------------------------------------------------------------


def cached(control: Control) -> int:
    (heard,) = control.submit(ask(PROMPT, max_tokens=1))
    heard.wait()
    assert heard.start is not None
    return heard.start.cached_tokens


def test_the_prefix_cache_is_reset(control: Control) -> None:
    assert cached(control) == 0
    assert cached(control) == len(PROMPT) - 1
    assert control.post("/reset_prefix_cache") == {"success": True}
    assert cached(control) == 0


def test_a_pause_leaves_prefixes_and_a_publication_does_not(control: Control, folder: Path) -> None:
    cached(control)
    control.post("/pause")
    control.post("/resume")
    assert cached(control) == len(PROMPT) - 1
    control.publish(folder, "1")
    assert cached(control) == 0


def test_requests_are_aborted_by_name(control: Control) -> None:
    kept, gone = control.submit(ask(request_id="a"), ask(request_id="b"))
    told = control.post("/abort_requests", {"request_ids": ["b", "unknown"]})
    assert told == {"status": "aborted", "aborted": 1}
    assert gone.reason == FinishReason.ABORT
    assert kept.finish is None


@pytest.mark.parametrize("body", [None, {}, {"request_ids": []}])
def test_all_are_aborted_when_none_is_named(control: Control, body: Any) -> None:
    all_ = control.submit(*(ask() for _ in range(20)))
    assert control.post("/abort_requests", body) == {"status": "aborted", "aborted": 20}
    assert {heard.reason for heard in all_} == {FinishReason.ABORT}


def test_a_call_s_choices_end_by_its_name_and_none_that_is_only_named_like_it(control: Control) -> None:
    both = [Heard(), Heard()]
    choices = [(ask(request_id=f"{index}", call_id="call"), heard) for index, heard in enumerate(both)]
    control.engine.submit(choices).result(60)
    others = control.submit(*(ask(request_id=name, call_id=name) for name in ("call-1", "call#1", "call1")))
    assert control.post("/abort_requests", {"request_ids": ["call", "cal", ""]})["aborted"] == 2
    assert {heard.reason for heard in both} == {FinishReason.ABORT}
    assert [heard.finish for heard in others] == [None] * 3


def test_one_choice_of_a_call_ends_by_its_own_name(control: Control) -> None:
    both = [Heard(), Heard()]
    choices = [(ask(request_id=f"call#{index}", call_id="call"), heard) for index, heard in enumerate(both)]
    control.engine.submit(choices).result(60)
    assert control.post("/abort_requests", {"request_ids": ["call#1"]})["aborted"] == 1
    assert both[1].reason == FinishReason.ABORT
    assert both[0].finish is None
