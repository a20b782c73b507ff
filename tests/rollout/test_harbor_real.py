"""The real Harbor: reads our tasks and our fixtures, points its agents where the README says, runs a job.

It needs Python 3.12 or newer, pip and a package index: half a gigabyte and a minute when it is first made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gyre.trainer.rollout.harbor_import import import_job
from gyre.trainer.rollout.harbor_job import read_job
from gyre.trainer.rollout.task import find_tasks, load_task
from tests.engines.fake import FakeEngine
from tests.proxy.running import RunningProxy
from tests.rollout.harbor_jobs import TIMES, JobBuilder, exception
from tests.trees.export.venvs import CACHE

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples" / "tasks"
SCRIPTS = Path(__file__).parent / "harbor_real"
PIN = "harbor==0.26.0"

# The first of them makes the environment.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@cache
def new_python() -> str | None:
    """An interpreter that Harbor can be installed for."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = [str(path) for path in sorted(versions.glob("3.1[2-9]*/bin/python"))]
    named = [found for minor in range(12, 15) if (found := shutil.which(f"python3.{minor}"))]
    # A name on the path may be a stand-in that runs nothing.
    return next((python for python in [sys.executable, *named, *installed] if is_new(python)), None)


def is_new(python: str) -> bool:
    program = "import sys, venv; sys.exit(sys.version_info < (3, 12))"
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def harbor() -> Path:
    """The Python of an environment with Harbor, made once and kept."""
    python = new_python()
    if python is None:
        pytest.skip("Harbor needs Python 3.12 or newer, and there is none")
    version = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
    place = CACHE / f"harbor-{hashlib.sha256((PIN + version).encode()).hexdigest()[:12]}"
    if not (place / "installed").exists():
        shutil.rmtree(place, ignore_errors=True)
        install = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install", PIN]
        for command in ([python, "-m", "venv", str(place)], [str(place / "bin" / "python"), *install]):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        (place / "installed").touch()
    return place / "bin" / "python"


def run(harbor: Path, home: Path, script: str, *arguments: object) -> str:
    """The last line of what it prints."""
    home.mkdir(exist_ok=True)
    env = os.environ | {
        "HOME": str(home),
        "PYTHONPATH": f"{SCRIPTS}{os.pathsep}{ROOT / 'examples' / 'harbor'}",
        "HARBOR_TELEMETRY": "0",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(harbor), str(SCRIPTS / script), *map(str, arguments)]
    done = subprocess.run(command, env=env, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()[-1]


def various(folder: Path) -> JobBuilder:
    """Every shape of trial that the other tests use."""
    job = JobBuilder(folder, retries=2)
    job.trial("done__1", rewards={"reward": 1, "lines": 3})
    job.trial("late__1", rewards={"reward": 0.5}, error=exception("AgentTimeoutError"))
    job.trial("api__1", rewards={"reward": 0}, error=exception("ApiOverloadedError"))
    job.trial("unscored__1", error=exception("VerifierTimeoutError"))
    job.trial("cancelled__1", graded=False, error=exception("CancelledError", ""))
    job.trial("never__1", ran=False, graded=False, error=exception("EnvironmentStartTimeoutError"))
    steps = [
        {"step_name": "a", "agent_execution": TIMES, "verifier": TIMES},
        {"step_name": "b", "exception_info": exception("AgentTimeoutError"), "verifier": TIMES},
    ]
    job.trial("steps__1", ran=False, graded=False, rewards={"reward": 0.5}, step_results=steps)
    source = {"source_trial": {"action": "regrade", "type": "local", "path": "/jobs/old/done__1"}}
    job.trial("again__1", rewards={"reward": 1}, config=source)
    return job


def test_it_reads_our_tasks_as_we_do_and_our_fixtures_at_all(harbor: Path, tmp_path: Path) -> None:
    job = various(tmp_path / "jobs" / "various")
    told: dict[str, Any] = json.loads(run(harbor, tmp_path / "home", "reads.py", TASKS, job.folder))
    ours = {}
    for folder in find_tasks(TASKS):
        task = load_task(folder)
        ours[folder.name] = {
            "valid": True,
            "name": task.name,
            "instruction": task.instruction,
            "timeout_s": task.timeout_s,
            "verifier_timeout_s": task.verifier_timeout_s,
            "metadata": dict(task.metadata),
        }
    assert told["tasks"] == ours
    read = read_job(job.folder)
    assert sorted(told["trials"]) == [trial.folder.name for trial in read.trials]
    assert told["retries"] == read.retries == 2
    assert told["trials"]["steps__1"]["exceptions"] == ["AgentTimeoutError"]
    counted = {name for name, trial in told["trials"].items() if trial["reward_valid"]}
    assert counted == {"done__1", "late__1", "steps__1", "again__1"}


def test_its_agents_are_pointed_where_the_readme_says(harbor: Path, tmp_path: Path) -> None:
    told: dict[str, Any] = json.loads(run(harbor, tmp_path / "home", "points.py"))
    url = "http://host:8400/x/reverse-lines__AbC1234"
    others = ("Codex", "MiniSweAgent", "OpenCode", "QwenCode")
    assert told["urls"] == {"ClaudeCode": url} | dict.fromkeys(others, f"{url}/v1")
    assert "extra_headers.X-Session-ID=reverse-lines__AbC1234__agent" in told["mini"]
    assert told["terminus"] == ["x-gyre-execution"]


def test_a_job_that_it_ran_is_imported(harbor: Path, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with FakeEngine() as engine, RunningProxy(logs, engine) as proxy:
        folder = Path(run(harbor, tmp_path / "home", "runs.py", TASKS, tmp_path / "jobs", proxy.url))
        proxy.rows(4)
    done = import_job(logs, folder)
    assert (done.ok, done.left, len(done.written)) == (True, [], 4)
    said = {
        one.scored.task: (one.by, one.scored.outcome, one.scored.score)
        for one in done.trials
        if one.scored is not None
    }
    assert said == {
        "count-words": ("name", "completed", 0.0),
        "fix-the-sum": ("name", "failed", 0.0),
        "rename-files": ("name", "timed_out", 0.0),
        "reverse-lines": ("name", "completed", 1.0),
    }
    assert import_job(logs, folder).written == []
