"""The services of a live run: a real engine and a real proxy, and what becomes of calls when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from gyre.elastic.engines import connection, pulse
from gyre.elastic.engines.embedded import Embedded
from gyre.proxy import read_log
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.services import Services
from gyre.trainer.live.settings import EngineTable, HarnessTable, RolloutTable, RunSettings, TaskTable
from gyre.trainer.rollout.confine import Cage, ConfinementError, confined, require_confinement, why_not
from tests.elastic.models import folder
from tests.proxy.processes import wait_for

ASKED = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 12, "seed": 7, "top_p": 0.3}


def settings(**engine: Any) -> RunSettings:
    return RunSettings(
        model=str(folder(0)),
        harness=HarnessTable(command=("true",)),
        tasks=(TaskTable(folder="tasks"),),
        rollout=RolloutTable(batches=1),
        engine=EngineTable(threads=1, **engine),
    )


class Run:
    """Services at work; `told` is what a user would be told."""

    def __init__(self, root: Path) -> None:
        self.folder = LiveFolder(root)
        self.told: list[str] = []
        self.services = Services(settings(), self.folder, self.told.append)
        self.control = self.services.start(folder(0), "0")
        (engine,) = self.services.engines
        assert isinstance(engine, Embedded)
        self.engine = engine

    def chat(self, execution: str, **fields: Any) -> httpx.Response:
        url = f"{self.control.base_url(execution)}/chat/completions"
        body = {"model": self.services.model} | ASKED | fields
        return httpx.post(url, json=body, headers=self.key(execution), timeout=90)

    def key(self, execution: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.control.key(execution)}"}

    def rows(self, execution: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_log(self.folder.logs, executions=[execution]).calls.to_pylist()
        return rows

    def kill(self, pid: int | None) -> None:
        assert pid
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    made = Run(tmp_path_factory.mktemp("run"))
    with made.services:
        yield made


def versions(row: dict[str, Any]) -> list[str]:
    return [span["version"] for span in row["version_spans"]]


def test_calls_are_sampled_as_the_run_says_whatever_an_agent_asks_for(run: Run) -> None:
    assert run.services.model == "tiny-0"
    assert run.services.context
    assert run.chat("neutral").status_code == 200
    (row,) = run.rows("neutral")
    assert (row["temperature"], row["top_p"], row["top_k"], row["min_p"]) == (1, 1, 0, 0)
    assert (row["outcome"], row["capture_quality"], row["logprob_quality"]) == ("ok", "exact", "sampled")
    assert row["seed"] != ASKED["seed"]


def test_a_publication_reaches_a_call_that_is_under_way(run: Run) -> None:
    # The engine may be done with a call before the publication has reached it: then once more.
    straddles = (straddling(run, published) for published in range(1, 9))
    before, after = next(seen for seen in straddles if len(seen) == 2)
    assert int(after) == int(before) + 1
    assert run.chat("after").status_code == 200
    assert versions(run.rows("after")[0]) == [after]


def straddling(run: Run, published: int) -> list[str]:
    """The versions of a call in whose time one more is published."""
    execution = f"straddles-{published}"
    with httpx.stream(
        "POST",
        f"{run.control.base_url(execution)}/chat/completions",
        json={"model": run.services.model, **ASKED, "max_tokens": 1500, "stream": True},
        headers=run.key(execution),
        timeout=90,
    ) as answer:
        lines = answer.iter_lines()
        next(lines)
        swapped = run.services.publish(folder(published % 2), str(published))
        for _ in lines:
            pass
    (row,) = run.rows(execution)
    seen = versions(row)
    assert swapped.seconds > 0 and (swapped.held == 1 or len(seen) == 1)
    return seen


def test_the_same_version_from_another_folder_changes_nothing_now(run: Run) -> None:
    run.services.publish(folder(1), "1")
    before = run.engine.weights()
    assert run.services.publish(folder(1), "1").held == 0
    assert run.engine.weights() == before


def test_a_call_waits_while_a_dead_engine_is_started_again_with_the_newest_weights(run: Run) -> None:
    run.services.publish(folder(1), "1")
    run.kill(run.engine.child.pid)
    assert run.chat("waited").status_code == 200
    assert versions(run.rows("waited")[-1]) == ["1"]
    assert run.rows("waited")[-1]["held_s"] > 0
    assert run.services.restarts["engine-0"] == 1
    assert run.told == ["engine `engine-0` died; it is started again"]


def test_a_proxy_that_died_is_back_at_the_same_address(run: Run) -> None:
    run.services.publish(folder(0), "2")
    base = run.control.url
    run.kill(run.services.proxy_pid)
    wait_for(lambda: run.services.restarts.get("proxy"), 30)
    wait_for(lambda: run.control.ask("GET", "/gyre/v1/status", patience_s=20))
    assert run.control.url == base
    assert run.chat("anew").status_code == 200
    assert versions(run.rows("anew")[-1]) == ["2"]
    assert run.services.failed is None


LOOK = """
import os, pathlib, sys
found = [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/environ")]
found += [path.read_bytes() for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
print(len(found), any(word.encode() in text for text in found for word in sys.stdin.read().split()))
"""


def test_nobody_but_the_run_and_its_proxy_has_the_key_of_the_engine(run: Run) -> None:
    key, url = run.engine.key, run.engine.url
    assert httpx.get(f"{url}/weight_info", timeout=30).status_code == 401
    body = {"model": run.services.model, "prompt": [1, 2], "max_tokens": 1}
    headers = {"authorization": f"Bearer {run.control.key('e')}"}
    assert httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30).status_code == 401
    assert run.chat("by-the-proxy").status_code == 200

    children = psutil.Process().children(recursive=True)
    assert {run.engine.child.pid, run.services.proxy_pid} <= {child.pid for child in children}
    assert not any(key in said(child) for child in children)
    assert not any(key in value for value in os.environ.values())
    files = [path for path in run.folder.root.rglob("*") if path.is_file()]
    assert files and not any(key.encode() in path.read_bytes() for path in files)


def said(process: psutil.Process) -> str:
    """Its command line; those that have ended have none."""
    with suppress(psutil.NoSuchProcess):  # a zombie is one too
        return " ".join(process.cmdline())
    return ""


def test_a_confined_agent_does_not_find_it(run: Run, tmp_path: Path) -> None:
    """Where agents cannot be confined, none runs that might."""
    if why_not():
        with pytest.raises(ConfinementError):
            require_confinement(unsafe_local=False)
        return
    cage = Cage(workdir=tmp_path, writable=[tmp_path], temporary=tmp_path, hidden=[run.folder.root])
    argv = [sys.executable, "-c", LOOK]
    done = subprocess.run(confined(argv, cage), input=run.engine.key, capture_output=True, text=True, env={})
    assert done.stdout.split()[1:] == ["False"], done.stderr
    own = Path(f"/proc/{run.engine.child.pid}/environ").read_bytes()
    assert run.engine.key.encode() in own  # where it would have found it


@pytest.mark.slow
def test_an_engine_that_hangs_is_started_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "SILENCE_S", 1.0)
    monkeypatch.setattr(connection, "_GLANCE_S", 0.3)
    before, pid = run.services.restarts.get("engine-0", 0), run.engine.child.pid
    assert pid
    psutil.Process(pid).suspend()
    assert run.chat("hung").status_code == 200
    assert run.services.restarts["engine-0"] == before + 1
