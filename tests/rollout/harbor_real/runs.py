"""Run with Harbor's Python: a job on task folders, with an agent that asks its model once and then works.

runs.py TASKS JOBS_DIR BASE_URL
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any, override

import own_url
from harbor.agents.agent_auth_resolution import ModelConnectionSpec
from harbor.agents.base import BaseAgent
from harbor.agents.capabilities import AgentCapabilities
from harbor.environments.base import BaseEnvironment
from harbor.job import Job
from harbor.models.agent.context import AgentContext
from harbor.models.job.config import DatasetConfig, JobConfig
from harbor.models.trial.config import AgentConfig, EnvironmentConfig


class Worker(own_url.OwnUrl, BaseAgent):
    """Does one task, leaves one, breaks on one and takes too long for one."""

    capabilities = AgentCapabilities(base_url=True)
    MODEL_CONNECTION = ModelConnectionSpec()

    @staticmethod
    @override
    def name() -> str:
        return "worker"

    @override
    def version(self) -> str:
        return "1"

    @override
    async def setup(self, environment: BaseEnvironment) -> None:
        pass

    @override
    async def run(self, instruction: str, environment: BaseEnvironment, context: AgentContext) -> None:
        await asyncio.to_thread(self._ask, instruction)
        match environment.environment_name:
            case "reverse-lines":
                await environment.exec("sed '1!G;h;$!d' poem.txt > reversed.txt")
            case "fix-the-sum":
                raise RuntimeError("the agent broke")
            case "rename-files":
                await asyncio.sleep(60)

    def _ask(self, instruction: str) -> None:
        body = {"model": "fake", "messages": [{"role": "user", "content": instruction}]}
        request = urllib.request.Request(
            f"{self._base_url}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": "Bearer dummy"},
        )
        urllib.request.urlopen(request).read()


async def run(tasks: Path, jobs: Path, base_url: str) -> Path:
    config = JobConfig(
        job_name="real",
        jobs_dir=jobs,
        n_concurrent_trials=2,
        quiet=True,
        datasets=[DatasetConfig(path=tasks)],
        agents=[AgentConfig(import_path="runs:Worker", base_url=base_url, override_timeout_sec=3)],
        environment=EnvironmentConfig(import_path="folder:Folder"),
    )
    job = await Job.create(config)
    result: Any = await job.run()
    return jobs / "real" if result.n_total_trials else jobs


if __name__ == "__main__":
    # Harbor imports the agent by this module's name.
    sys.modules["runs"] = sys.modules["__main__"]
    tasks, jobs, base_url = sys.argv[1:]
    shutil.rmtree(Path(jobs) / "real", ignore_errors=True)
    print(asyncio.run(run(Path(tasks), Path(jobs), base_url)))
