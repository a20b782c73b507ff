"""The benchmark measures what it says: bodies that grow, prompts that extend, a run that ends well."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark's modules by name; they are no part of the installed project."""
    monkeypatch.syspath_prepend(str(ROOT))
    names = ("bodies", "cells", "material", "passthrough", "processes", "upstream")
    modules = {name: import_module(f"benchmarks.{name}") for name in names}
    return modules | {"content": rendered(modules["upstream"].Material)}


@cache
def rendered(material: Any) -> Any:
    return material()


@pytest.mark.parametrize("cell", ["SMALL", "LARGE", "STREAM"])
def test_each_prompt_extends_the_last_prompt_and_its_answer(parts: Any, cell: str) -> None:
    load = getattr(parts["cells"], cell)
    material = parts["content"]
    execution = parts["bodies"].grow(load, "e", 7, material.text)
    known: list[int] = []
    messages: list[Any] = []
    for call in range(load.calls_each):
        body = b"".join(execution.body(call))
        assert len(body) == execution.size(call)
        asked = json.loads(parts["passthrough"].asking(body))
        wanted = parts["upstream"].Wanted(parts["passthrough"].asking(body), call)
        wanted.stream = False
        answer = json.loads(parts["upstream"].plain_answer(material, wanted).partition(b"\r\n\r\n")[2])
        assert asked["messages"][: len(messages)] == messages
        assert answer["prompt_token_ids"][: len(known)] == known
        choice = answer["choices"][0]
        assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == load.output
        known = answer["prompt_token_ids"] + choice["token_ids"]
        messages = [*asked["messages"], choice["message"]]
    assert execution.new_ids == len(known)


def test_a_streamed_answer_says_what_the_plain_one_says(parts: Any) -> None:
    upstream, material = parts["upstream"], parts["content"]
    execution = parts["bodies"].grow(parts["cells"].STREAM, "e", 1, material.text)
    wanted = upstream.Wanted(parts["passthrough"].asking(b"".join(execution.body(0))), 1)
    raw = b"".join(upstream.event(material, wanted, index) for index in range(wanted.output + 2))
    events = [json.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]
    plain = json.loads(upstream.plain_answer(material, wanted).partition(b"\r\n\r\n")[2])
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert events[0]["prompt_token_ids"] == plain["prompt_token_ids"]
    ids = [token for choice in choices for token in choice.get("token_ids", [])]
    assert ids == plain["choices"][0]["token_ids"]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == plain["choices"][0]["message"]["content"]
    assert events[-1]["usage"] == plain["usage"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules so")
def test_what_is_timed_goes_before_other_work_and_is_let_go_again(parts: Any) -> None:
    waiting = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline()
        allowed = os.SCHED_RR if parts["processes"].may_be_ahead() else os.SCHED_OTHER
        with parts["processes"].ahead_of_others(child.pid):
            assert os.sched_getscheduler(child.pid) == allowed
        assert os.sched_getscheduler(child.pid) == os.SCHED_OTHER
        child.communicate()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


@pytest.mark.slow
def test_a_quick_run_reports_its_figures_as_json() -> None:
    command = [sys.executable, "-m", "benchmarks", "--quick", "--bare", "--json", "--only", "2 KB x 1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=100)
    report = json.loads(done.stdout)
    assert {row["system"] for row in report["figures"]} == {"direct", "pass-through"}
    assert not [remark for remark in report["remarks"] if remark.startswith("FAILED")]
