"""The thread that owns the engine: any thread may ask it, nothing it is asked ends it, and nobody hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gyre.elastic.engine.core import Core
from gyre.elastic.engine.request import GenerationRequest
from gyre.elastic.engine.thread import EngineThread
from gyre.proxy.errors import RequestError
from tests.engine.core.build import (
    Heard,
    answer,
    ask,
    core_of,
    prompt_of,
    require_idle,
    seeded,
    staged,
)

PATIENCE_S = 60
FOREVER = 3000


class Heeded(Heard):
    """Can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()
        self.end = threading.Event()

    def token(self, token: Any) -> bool:
        end = super().token(token)
        self.first.set()
        return end

    def finished(self, finish: Any) -> None:
        super().finished(finish)
        self.end.set()

    def wait(self) -> str:
        assert self.end.wait(PATIENCE_S)
        return self.reason

    def wait_for_first(self) -> None:
        assert self.first.wait(PATIENCE_S)


@contextmanager
def started(core: Core, **options: Any) -> Iterator[EngineThread]:
    engine = EngineThread(core, **options)
    engine.start()
    try:
        yield engine
    finally:
        engine.close()


def submit(engine: EngineThread, *requests: GenerationRequest) -> list[Heeded]:
    heard = [Heeded() for _ in requests]
    for request, listener in zip(requests, heard, strict=True):
        engine.submit([(request, listener)]).result(PATIENCE_S)
    return heard


@contextmanager
def held(engine: EngineThread) -> Iterator[None]:
    """The engine's thread stands between two steps."""
    here, go = threading.Event(), threading.Event()

    def stand(core: Core) -> None:
        here.set()
        assert go.wait(PATIENCE_S)

    future = engine.call(stand)
    assert here.wait(PATIENCE_S)
    try:
        yield
    finally:
        go.set()
        future.result(PATIENCE_S)


def test_requests_of_many_threads_are_answered_and_counted() -> None:
    core = core_of(slots=4)
    requests = [ask(prompt_of(30, n), 10, sampling=seeded(n)) for n in range(1, 25)]
    stop = threading.Event()
    with started(core) as engine, ThreadPoolExecutor(4) as pool:

        def look() -> int:
            looks = 0
            while not stop.is_set():
                assert 0 <= engine.stats.running <= 4
                looks += 1
            return looks

        looking = pool.submit(look)
        asked = [pool.submit(submit, engine, request) for request in requests]
        heard = [one.result(PATIENCE_S)[0] for one in asked]
        assert [one.wait() for one in heard] == ["length"] * 24
        stop.set()
        assert looking.result(PATIENCE_S) > 0
        assert engine.alive
    assert [one.ids for one in heard] == [answer(core_of(), request).ids for request in requests]
    assert core.stats.generated_tokens == 240
    require_idle(core)


def test_what_is_not_sound_is_refused_in_the_askers_thread() -> None:
    with started(core_of(slots=1, queue=1)) as engine:
        with pytest.raises(RequestError, match="empty"):
            engine.submit([(ask([], 5), Heard())])
        first = ask(prompt_of(9), FOREVER)
        (heard,) = submit(engine, first)
        again = engine.submit([(first, Heard())])
        with pytest.raises(RequestError) as refused:
            again.result(PATIENCE_S)
        assert refused.value.code == "duplicate_request_id"
        submit(engine, ask(prompt_of(9), 5))
        with pytest.raises(RequestError) as refused:
            engine.submit([(ask(prompt_of(9), 5), Heard())])
        assert (refused.value.status, refused.value.code) == (503, "overloaded")
        assert not heard.ends


def test_an_abort_is_heard_within_a_step() -> None:
    core = core_of()
    with started(core) as engine:
        request = ask(prompt_of(9), FOREVER)
        heard, other = submit(engine, request, ask(prompt_of(8), 100))
        heard.wait_for_first()
        with held(engine):
            engine.abort(["unknown", request.request_id])
            count = len(heard.ids)
        assert heard.wait() == "abort"
        assert len(heard.ids) == count
        assert other.wait() == "length"


def test_work_runs_between_two_steps_and_its_errors_are_the_callers() -> None:
    with started(core_of()) as engine:
        assert engine.call(lambda core: core.version).result(PATIENCE_S) == "1"

        def wrong(core: Core) -> None:
            raise LookupError("not here")

        with pytest.raises(LookupError, match="not here"):
            engine.call(wrong).result(PATIENCE_S)
        assert submit(engine, ask(prompt_of(9), 3))[0].wait() == "length"


def test_a_caller_that_no_longer_waits_ends_nothing() -> None:
    with started(core_of()) as engine:
        heard = Heeded()
        with held(engine):
            work = engine.call(lambda core: core.version)
            asked = engine.submit([(ask(prompt_of(9), 3), heard)])
            assert work.cancel() and asked.cancel()
        with pytest.raises(CancelledError):
            work.result(PATIENCE_S)
        assert submit(engine, ask(prompt_of(9), 3))[0].wait() == "length"
        assert engine.alive
        assert not heard.starts and not heard.ends


def test_close_ends_what_is_open_and_says_so() -> None:
    core = core_of(slots=1)
    engine = EngineThread(core)
    engine.start()
    running, waiting = submit(engine, ask(prompt_of(9), FOREVER), ask(prompt_of(8), 5))
    running.wait_for_first()
    late = Heeded()
    with held(engine):
        asked = engine.submit([(ask(prompt_of(7), 5), late)])
        closing = threading.Thread(target=engine.close)
        closing.start()
        while engine.alive:
            pass
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    asked.result(PATIENCE_S)
    assert [one.reason for one in (running, waiting, late)] == ["abort"] * 3
    require_idle(core)
    engine.close()
    engine.abort(["anything"])
    with pytest.raises(RequestError, match="stopping"):
        engine.call(lambda core: None)
    with pytest.raises(RequestError) as refused:
        engine.submit([(ask([1], 1), Heard())])
    assert refused.value.status == 503


def test_a_thread_that_never_began_can_be_closed() -> None:
    engine = EngineThread(core_of())
    assert not engine.alive
    engine.close()


def test_close_does_not_wait_for_a_paused_engine_to_resume() -> None:
    with started(core_of()) as engine:
        (heard,) = submit(engine, ask(prompt_of(9), FOREVER))
        heard.wait_for_first()
        engine.call(lambda core: core.pause("keep")).result(PATIENCE_S)
        count = len(heard.ids)
    assert heard.reason == "abort"
    assert len(heard.ids) == count


def test_a_paused_engine_sleeps_and_goes_on_when_told() -> None:
    with started(core_of()) as engine:
        (heard,) = submit(engine, ask(prompt_of(9), 200))
        heard.wait_for_first()
        engine.call(lambda core: core.pause("keep")).result(PATIENCE_S)
        steps = engine.stats.steps
        (late,) = submit(engine, ask(prompt_of(9), 5))
        engine.call(lambda core: core.publish(staged(1), version="2")).result(PATIENCE_S)
        assert engine.stats.steps == steps
        engine.call(lambda core: core.resume()).result(PATIENCE_S)
        assert heard.wait() == late.wait() == "length"
        assert {token.version for token in late.tokens} == {"2"}


def test_whoever_waits_behind_one_that_takes_all_memory_is_served() -> None:
    with started(core_of(kv_tokens=128)) as engine:
        greedy, other = submit(engine, ask(prompt_of(30), 98), ask(prompt_of(100, 1), 3))
        assert greedy.wait() == "length"
        assert other.wait() == "length"


def test_the_servers_loop_is_woken_after_each_step_that_told_something() -> None:
    told = []
    heard = Heeded()
    with started(core_of(), after_step=lambda: told.append((len(heard.tokens), heard.ends))) as engine:
        engine.submit([(ask(prompt_of(9), 6), heard)]).result(PATIENCE_S)
        heard.wait()
    seen = sorted(set(told))
    assert set(seen) >= {(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 1)}


def test_a_loop_that_cannot_be_woken_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> None:
        raise RuntimeError("Event loop is closed")

    with started(core_of(), after_step=gone) as engine:
        assert submit(engine, ask(prompt_of(9), 3))[0].wait() == "length"
        assert engine.alive
    assert "Event loop is closed" in caplog.text


class Unsteady(Core):
    """Its step fails where a core's must not."""

    broken = False

    def step(self) -> bool:
        if self.broken and self.running:
            raise ArithmeticError("a fault of the engine's own")
        return super().step()


def test_a_fault_of_the_core_ends_its_requests_and_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    sound = core_of(slots=1)
    core = Unsteady(sound.model, sound.limits, version="1", digest="digest 0")
    with started(core) as engine:
        heard = submit(engine, ask(prompt_of(9), FOREVER), ask(prompt_of(9), 3))
        heard[0].wait_for_first()
        engine.call(lambda core: setattr(core, "broken", True)).result(PATIENCE_S)
        assert [one.wait() for one in heard] == ["error"] * 2
        engine.call(lambda core: setattr(core, "broken", False)).result(PATIENCE_S)
        assert submit(engine, ask(prompt_of(9), 3))[0].wait() == "length"
    require_idle(core)
    assert "a fault of the engine's own" in caplog.text
