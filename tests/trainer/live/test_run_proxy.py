"""What the proxy of a run knows of engines: what it was told last, whether it heard it or not."""

from __future__ import annotations

import os
import signal
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gyre.elastic.engines import pulse
from gyre.elastic.engines.embedded import Embedded
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.vllm import Vllm
from gyre.proxy.errors import UpstreamError
from gyre.trainer.live import proxy as module
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.proxy import RunProxy
from gyre.trainer.rollout import private
from gyre.trainer.rollout.control import Control
from tests.proxy.processes import wait_for

OPTIONS = EngineOptions(model="policy")


class Reluctant(Control):
    """A way to the proxy that fails so often before it leads there."""

    def __init__(self, real: Control, times: int) -> None:
        super().__init__(real.url, real.logs, real.token)
        self.times = times

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, patience_s: float = 0.0
    ) -> dict[str, Any] | None:
        if self.times:
            self.times -= 1
            raise UpstreamError("it answers 503")
        return super().ask(method, path, body, patience_s=patience_s)


class Made:
    """A proxy at work, and two engines that nobody started."""

    def __init__(self, root: Path) -> None:
        self.folder = LiveFolder(root)
        self.engine, self.other = (
            Vllm(f"engine-{n}", OPTIONS, f"http://127.0.0.1:{n + 1}") for n in range(2)
        )
        self.proxy = RunProxy([self.engine, self.other], self.folder, 1.0)
        self.proxy.start("0")

    def known(self) -> dict[str, tuple[str, bool]]:
        told = self.proxy.control.ask("GET", "/gyre/v1/backends", patience_s=20)
        assert told
        return {one["name"]: (one["version"], one["draining"]) for one in told["backends"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    made = Made(tmp_path_factory.mktemp("run"))
    try:
        yield made
    finally:
        made.proxy.stop()


def test_it_is_told_again_until_it_has_heard(made: Made) -> None:
    real = made.proxy.control
    made.proxy.control = Reluctant(real, 3)
    made.proxy.tell(made.engine, draining=True, version="1")
    made.proxy.tell(made.other, draining=False)
    made.proxy.control = real
    assert made.known() == {"engine-0": ("1", True), "engine-1": ("0", False)}


def test_one_that_never_hears_is_an_error(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.5)
    real = made.proxy.control
    made.proxy.control = Reluctant(real, 1000)
    with pytest.raises(UpstreamError, match="answers 503"):
        made.proxy.tell(made.engine, draining=False)
    made.proxy.control = real


def test_one_that_died_knows_it_when_it_is_back(made: Made) -> None:
    made.proxy.tell(made.engine, draining=False, version="2")
    made.proxy.tell(made.other, draining=True)
    pid = made.proxy.pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not made.proxy.alive())
    made.proxy.tell(made.engine, draining=True)
    made.proxy.tell(made.other, draining=False, version="3")
    made.proxy.start_again()
    assert made.known() == {"engine-0": ("2", True), "engine-1": ("3", False)}
    made.proxy.tell(made.engine, draining=False)
    assert made.known()["engine-0"] == ("2", False)


def test_one_that_hangs_is_as_good_as_dead(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name, value in (
        (module, "_LISTEN_S", 0.0),
        (module, "_GLANCE_S", 0.2),
        (pulse, "SILENCE_S", 0.5),
        (private, "_STOP_S", 1.0),
    ):
        monkeypatch.setattr(where, name, value)
    made.proxy.start_again()
    assert made.proxy.alive()
    assert made.proxy.pid
    os.kill(made.proxy.pid, signal.SIGSTOP)
    wait_for(lambda: not made.proxy.alive())
    made.proxy.start_again()
    assert made.proxy.alive() and made.known()


def test_keys_of_engines_stand_in_no_file(tmp_path: Path) -> None:
    engines = [Embedded(f"engine-{n}", OPTIONS, tmp_path) for n in range(2)]
    assert engines[0].key != engines[1].key
    folder = LiveFolder(tmp_path / "run")
    proxy = RunProxy(engines, folder, 1.0)
    try:
        proxy.start("0")
        said = tomllib.loads((folder.services / "proxy.toml").read_text())
        names = [backend["key_env"] for backend in said["backends"]]
        assert names == ["GYRE_ENGINE_KEY_0", "GYRE_ENGINE_KEY_1"]
        written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert all(engine.key.encode() not in written for engine in engines)
        assert not any(name in os.environ for name in names)
    finally:
        proxy.stop()
