"""Names of calls and of their choices: clients give the first, the engine the second."""

from __future__ import annotations

import threading
import time

import pytest

from tests.engine.server.rig import USER, Json, Running, run_engine

LONG = {"max_tokens": 3000, "ignore_eos": True}


def held(engine: Running) -> set[str]:
    return engine.engine.call(lambda core: {one.request.request_id for one in core.roster}).result(20)


def wait_until_held(engine: Running, names: set[str]) -> None:
    deadline = time.monotonic() + 20
    while held(engine) != names:
        assert time.monotonic() < deadline, held(engine)
        time.sleep(0.005)


def test_a_call_s_name_ends_its_choices_and_no_call_of_a_like_name() -> None:
    with run_engine() as engine:
        answers: dict[str, Json] = {}

        def chat(name: str, n: int) -> None:
            answers[name] = engine.chat(**LONG, request_id=name, n=n)

        threads = [threading.Thread(target=chat, args=call) for call in (("a", 2), ("a-1", 1))]
        for thread in threads:
            thread.start()
        wait_until_held(engine, {"a#0", "a#1", "a-1"})
        assert engine.post("/abort_requests", {"request_ids": ["a"]}).json()["aborted"] == 2
        wait_until_held(engine, {"a-1"})
        engine.post("/abort_requests", {"request_ids": ["a-1"]})
        for thread in threads:
            thread.join()
        ends = {name: [one["finish_reason"] for one in it["choices"]] for name, it in answers.items()}
        assert ends == {"a": ["abort", "abort"], "a-1": ["abort"]}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_no_call_has_the_name_of_a_choice(path: str) -> None:
    with run_engine() as engine:
        body = {"messages": USER, "prompt": "Once", "max_tokens": 1}
        status, error = engine.error(path, {**body, "request_id": "a#1"})
        assert (status, error["param"]) == (400, "request_id")
        for name in ("a#", "#1a", "a-1", "a#1\n"):
            assert engine.post(path, {**body, "request_id": name}).status_code == 200
