"""Run with Harbor's Python: what its models make of task folders and of a job folder, as a line of JSON.

reads.py TASKS JOB
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from harbor.models.job.result import JobResult
from harbor.models.task.task import Task
from harbor.models.trial.result import TrialResult


def task(folder: Path) -> dict[str, Any]:
    read = Task(folder)
    return {
        "valid": Task.is_valid_dir(folder),
        "name": read.name,
        "instruction": read.instruction,
        "timeout_s": read.config.agent.timeout_sec,
        "verifier_timeout_s": read.config.verifier.timeout_sec,
        "metadata": read.config.metadata,
    }


def trial(path: Path) -> dict[str, Any]:
    read = TrialResult.model_validate_json(path.read_text())
    return {
        "task": read.task_name,
        "reward_valid": read.reward_valid,
        "exceptions": [found.exception_type for found in read.recorded_exceptions()],
    }


tasks, job = map(Path, sys.argv[1:])
result = JobResult.model_validate_json((job / "result.json").read_text())
found = {
    "tasks": {path.name: task(path) for path in sorted(tasks.iterdir()) if path.is_dir()},
    "trials": {path.parent.name: trial(path) for path in sorted(job.glob("*/result.json"))},
    "retries": result.stats.n_retries,
}
print(json.dumps(found))
