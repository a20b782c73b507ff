"""Services around engines that are not gyre's own: of the run's command, or somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gyre.elastic.engines import connection, pulse
from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.logprobs import Expected
from gyre.proxy.errors import EngineError, GyreError
from gyre.trainer.live.deaths import LIMIT, WINDOW_S, Deaths
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.services import Services
from gyre.trainer.live.settings import (
    EngineKind,
    EngineTable,
    HarnessTable,
    InFlight,
    RolloutTable,
    RunSettings,
    TaskTable,
)
from gyre.trainer.update.computing import Stopped
from tests.elastic.program import MODELS
from tests.elastic.server import SglangControl, VllmControl
from tests.proxy.processes import wait_for

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "tests.elastic.program", "{model}", "{port}")


def settings(engine: EngineTable, **more: Any) -> RunSettings:
    return RunSettings(
        model="model",
        harness=HarnessTable(command=("true",)),
        tasks=(TaskTable(folder="tasks"),),
        rollout=RolloutTable(batches=1),
        engine=engine,
        **more,
    )


def commanded(**more: Any) -> RunSettings:
    env = {"PYTHONPATH": str(ROOT)}
    return settings(EngineTable(kind=EngineKind.VLLM, command=COMMAND, env=env, **more))


def of_others(*urls: str, kind: EngineKind = EngineKind.VLLM, **more: Any) -> RunSettings:
    return settings(EngineTable(kind=kind, urls=urls, **more))


def folders(root: Path) -> list[Path]:
    made = [root / f"weights-{number}" for number in range(3)]
    for place in made:
        place.mkdir()
    return made


def about(services: Services) -> dict[str, Any]:
    """What the engine says of its process, and of the folder that it was started with."""
    return Connection("e", services.engines[0].url).ask("GET", "/about")


def real(services: Services) -> Path:
    return Path(about(services)["real"])


def test_the_proxy_knows_the_version_before_anything_is_sampled_with_it(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    seen: list[tuple[str, ...]] = []
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), print) as services:
            control = services.start(first, "0")
            assert (services.model, services.context) == ("policy", 512)

            def resumed(_: Any) -> tuple[int, Any]:
                told = control.ask("GET", "/gyre/v1/backends")
                assert told
                seen.append(tuple(backend["version"] for backend in told["backends"]))
                return 200, {"status": "resumed"}

            server.routes["POST /resume"] = resumed
            services.publish(second, "1")
    assert seen == [("1",)]
    assert (server.folder, server.version) == (str(second), "1")


@pytest.mark.parametrize("in_flight", InFlight)
def test_a_run_may_have_open_answers_computed_anew(tmp_path: Path, in_flight: InFlight) -> None:
    first, second, _ = folders(tmp_path)
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        table = of_others(server.url, in_flight=in_flight)
        with Services(table, LiveFolder(tmp_path / "run"), print) as services:
            services.start(first, "0")
            services.publish(second, "1")
    again = str(in_flight is InFlight.RECOMPUTE).lower()
    resets = [route for route, _ in server.asked if route.startswith("POST /reset_prefix_cache")]
    assert resets == 2 * [f"POST /reset_prefix_cache?reset_running_requests={again}"]


def test_sglang_is_asked_for_all_tokens_in_its_own_way(tmp_path: Path) -> None:
    with SglangControl() as server:
        models = {"data": [{"id": "policy", "owned_by": "sglang"}]}
        server.routes["GET /v1/models"] = (200, models)
        server.routes["POST /v1/chat/completions"] = (200, {"choices": []})
        kind = EngineKind.SGLANG
        with Services(of_others(server.url, kind=kind), LiveFolder(tmp_path / "run"), print) as services:
            control = services.start(folders(tmp_path)[0], "0")
            body = {"model": "policy", "messages": [], "seed": 3, "top_k": 5}
            key = {"authorization": f"Bearer {control.key('e')}"}
            url = f"{control.base_url('e')}/chat/completions"
            said = httpx.post(url, json=body, headers=key, timeout=30)
            assert said.status_code == 200, said.text
    (asked,) = [body for route, body in server.asked if route == "POST /v1/chat/completions"]
    assert (asked["temperature"], asked["top_p"], asked["top_k"], asked["min_p"]) == (1, 1, -1, 0)
    assert asked["seed"] is None


def test_an_engine_that_takes_up_nothing_is_started_again_with_the_new_weights(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    told: list[str] = []
    with Services(commanded(), LiveFolder(tmp_path / "run"), told.append) as services:
        services.start(first, "0")
        assert real(services) == first
        (tmp_path / "run" / "services" / "deaf").touch()
        services.publish(second, "1")
        assert real(services) == second
        assert services.engines[0].weights().version == "1"
        assert services.restarts == {"engine-0": 1}
    assert len(told) == 2 and "out of memory; it is started again with the new weights" in told[1]


def test_one_that_cannot_be_started_again_ends_the_run(tmp_path: Path) -> None:
    with Services(commanded(), LiveFolder(tmp_path / "run"), lambda _: None) as services:
        services.start(folders(tmp_path)[0], "0")
        assert services.failed is None
        (tmp_path / "run" / "services" / "dead").touch()
        os.kill(about(services)["pid"], signal.SIGKILL)
        wait_for(lambda: services.failed, 30)
        problem = services.failed
        assert problem and "`engine-0` ended before it answered: no GPU is left" in problem.message
        with pytest.raises(GyreError, match="no GPU is left"):
            services.publish(tmp_path, "1")


def test_one_that_does_not_come_up_at_all_is_told_with_its_words(tmp_path: Path) -> None:
    place = tmp_path / "run" / "services"
    place.mkdir(parents=True)
    (place / "dead").touch()
    with (
        Services(commanded(), LiveFolder(tmp_path / "run"), print) as services,
        pytest.raises(EngineError, match="ended before it answered: no GPU is left"),
    ):
        services.start(folders(tmp_path)[0], "0")


FIRST_FAILS = """
import os, sys, time
try:
    os.open(sys.argv[1] + ".first", os.O_CREAT | os.O_EXCL)
except FileExistsError:
    time.sleep(600)
sys.exit("no GPU is left")
"""


@pytest.mark.timeout(90)
def test_when_one_of_several_does_not_come_up_the_others_are_not_waited_for(tmp_path: Path) -> None:
    command = (sys.executable, "-c", FIRST_FAILS, "{model}", "{port}")
    table = EngineTable(kind=EngineKind.VLLM, command=command, count=2)
    with Services(settings(table), LiveFolder(tmp_path / "run"), print) as services:
        with pytest.raises(EngineError, match="ended before it answered: no GPU is left"):
            services.start(folders(tmp_path)[0], "0")
        assert not any(engine.alive() for engine in services.engines)


@pytest.mark.timeout(90)
def test_who_does_not_want_to_wait_for_a_start_is_heard(tmp_path: Path) -> None:
    place = tmp_path / "run"
    silent = (sys.executable, "-c", "import time; time.sleep(600)", "{model}", "{port}")
    table = EngineTable(kind=EngineKind.VLLM, command=silent)

    def stop() -> bool:
        """Once it has begun."""
        return (place / "services" / "engine-0.txt").exists()

    with Services(settings(table), LiveFolder(place), print, stop) as services:
        with pytest.raises(Stopped):
            services.start(folders(tmp_path)[0], "0")
        assert services.proxy_pid is None
        assert not any(engine.alive() for engine in services.engines)


def test_one_that_serves_another_version_than_it_was_given_is_told(tmp_path: Path) -> None:
    with VllmControl() as server:
        server.routes["GET /weight_info"] = (200, {"weight_version": "17"})
        with (
            Services(of_others(server.url), LiveFolder(tmp_path / "run"), print) as services,
            pytest.raises(EngineError, match="`engine-0` serves version `17`, not `0`"),
        ):
            services.start(folders(tmp_path)[0], "0")


def test_somebody_elses_engine_is_waited_for_and_given_the_newest_weights(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        port = int(server.url.rpartition(":")[2])
        services = Services(of_others(server.url), LiveFolder(tmp_path / "run"), lambda _: None)
        services.start(first, "0")
        services.publish(second, "1")
    with services:
        wait_for(lambda: services.restarts.get("engine-0"))
        with VllmControl(port) as again:
            again.routes["GET /v1/models"] = (200, MODELS)
            wait_for(lambda: (again.folder, again.version) == (str(second), "1"))


def test_whose_engine_stays_paused_after_a_failure_is_told_so(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), print) as services:
            services.start(first, "0")
            server.routes["POST /collective_rpc"] = (500, {"error": {"message": "no such folder"}})
            with pytest.raises(EngineError, match="no such folder") as caught:
                services.publish(second, "1")
    assert f"`{server.url}` stays paused" in caught.value.hint


def test_while_an_engine_is_waited_for_the_proxy_and_others_are_looked_after(tmp_path: Path) -> None:
    first, _, _ = folders(tmp_path)
    with VllmControl() as lasting, VllmControl() as server:
        for each in (lasting, server):
            each.routes["GET /v1/models"] = (200, MODELS)
        services = Services(of_others(server.url, lasting.url), LiveFolder(tmp_path / "run"), print)
        services.start(first, "0")
        port = int(lasting.url.rpartition(":")[2])
    with services:
        wait_for(lambda: services.restarts.get("engine-0"))
        assert services.proxy_pid
        os.kill(services.proxy_pid, signal.SIGKILL)
        wait_for(lambda: services.restarts.get("proxy"))
        assert services.control.ask("GET", "/gyre/v1/status", patience_s=30)
        with VllmControl(port) as again:
            again.routes["GET /v1/models"] = (200, MODELS)
            wait_for(lambda: again.version == "0")
        assert services.failed is None


def test_who_does_not_want_to_wait_for_somebody_elses_engine_is_heard(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    stop = threading.Event()
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        services = Services(of_others(server.url), LiveFolder(tmp_path / "run"), lambda _: None, stop.is_set)
        services.start(first, "0")
    threading.Timer(1.0, stop.set).start()
    with services, pytest.raises(Stopped):
        services.publish(second, "1")
    assert services.failed is None


EXPECTED = Expected([5, 6, 7], [-1.0, -2.0])


def computing(logprobs: Sequence[float]) -> tuple[int, Any]:
    """How vLLM tells what it makes of the prompt."""
    pairs = zip(EXPECTED.prompt[1:], logprobs, strict=True)
    told = [None, *({str(token): {"logprob": logprob}} for token, logprob in pairs)]
    return 200, {"choices": [{"prompt_logprobs": told}]}


def test_one_that_computes_with_other_weights_than_it_names_is_told(tmp_path: Path) -> None:
    first, second, _ = folders(tmp_path)
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        server.routes["POST /v1/completions"] = computing([-1.1, -1.9])
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), print) as services:
            assert services.opaque
            services.start(first, "0", EXPECTED)
            services.publish(second, "1", EXPECTED)
            server.routes["POST /v1/completions"] = computing([-1.0, -8.0])
            with pytest.raises(
                EngineError, match=r"`engine-0` serves other weights than it claims: .* 3\.00"
            ):
                services.publish(first, "2", EXPECTED)
        with (
            Services(of_others(server.url), LiveFolder(tmp_path / "again"), print) as services,
            pytest.raises(EngineError, match="serves other weights than it claims"),
        ):
            services.start(first, "0", EXPECTED)


def test_where_nothing_can_be_compared_that_is_told(tmp_path: Path) -> None:
    first = folders(tmp_path)[0]
    told: list[str] = []
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), told.append) as services:
            services.start(first, "0")
    assert told == [f"`{first}` has no tokenizer that can be read: engines are not compared with it"]


def test_one_that_came_back_is_compared_too(tmp_path: Path) -> None:
    first = folders(tmp_path)[0]
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        server.routes["POST /v1/completions"] = computing([-1.0, -2.0])
        port = int(server.url.rpartition(":")[2])
        services = Services(of_others(server.url), LiveFolder(tmp_path / "run"), lambda _: None)
        services.start(first, "0", EXPECTED)
    with services:
        wait_for(lambda: services.restarts.get("engine-0"))
        with VllmControl(port) as again:
            again.routes["GET /v1/models"] = (200, MODELS)
            again.routes["POST /v1/completions"] = computing([-9.0, -2.0])
            wait_for(lambda: services.failed, 30)
            assert services.failed and "serves other weights" in services.failed.message


def test_one_that_hangs_is_dead_until_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "SILENCE_S", 0.5)
    monkeypatch.setattr(connection, "_GLANCE_S", 0.1)
    first, second, _ = folders(tmp_path)
    goes_on, told = threading.Event(), list[str]()
    goes_on.set()
    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        server.routes["GET /health"] = lambda _: (200, "") if goes_on.wait(30) else (500, "")
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), told.append) as services:
            services.start(first, "0")
            told.clear()
            goes_on.clear()
            wait_for(lambda: told and services.restarts == {"engine-0": 1})
            goes_on.set()
            wait_for(lambda: server.asked.count(("POST /resume", None)) == 2)  # it was given weights anew
            assert services.failed is None
            assert services.publish(second, "1").seconds >= 0


def test_a_watch_that_ends_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise ValueError("that is no JSON")

    with VllmControl() as server:
        server.routes["GET /v1/models"] = (200, MODELS)
        with Services(of_others(server.url), LiveFolder(tmp_path / "run"), print) as services:
            services.start(folders(tmp_path)[0], "0")
            monkeypatch.setattr(services.engines[0], "alive", broken)
            wait_for(lambda: services.failed)
            with pytest.raises(GyreError, match=r"not watched any more: ValueError.*that is no JSON"):
                services.publish(tmp_path, "1")


PARENT = """
import sys, time
from pathlib import Path
from tests.trainer.live.test_services_outside import commanded
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.services import Services
services = Services(commanded(), LiveFolder(Path(sys.argv[1])), lambda _: None)
services.start(Path(sys.argv[1]), "0")
print("started", flush=True)
time.sleep(600)
"""


def test_nothing_outlives_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout and parent.stdout.readline() == "started\n"
        children = psutil.Process(parent.pid).children(recursive=True)
        assert len(children) >= 4  # engine and proxy, and a supervisor of each
        parent.kill()
        assert psutil.wait_procs(children, 30)[1] == []


def test_deaths_are_too_many_only_within_a_short_time() -> None:
    now = 0.0
    deaths = Deaths(lambda: now)
    for number in range(LIMIT - 1):
        deaths.note("engine-0")
        assert not deaths.too_many("engine-0") and not deaths.too_many("proxy")
        assert (deaths.pause_s("engine-0") == 0) == (number == 0)
    now = WINDOW_S + 1
    deaths.note("engine-0")
    assert not deaths.too_many("engine-0")
    for _ in range(LIMIT - 1):
        deaths.note("engine-0")
    assert deaths.too_many("engine-0")
    assert deaths.counts["engine-0"] == 2 * LIMIT - 1
