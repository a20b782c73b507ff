"""Job folders as Harbor leaves them, field by field. Its own models parse them: test_harbor_real.py."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

BEGUN = "2026-01-31T12:00:00Z"
ENDED = "2026-01-31T12:05:00Z"
TIMES = {"started_at": BEGUN, "finished_at": ENDED}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def exception(kind: str, message: str = "it went wrong") -> dict[str, Any]:
    return {
        "exception_type": kind,
        "exception_message": message,
        "exception_traceback": "Traceback ...",
        "occurred_at": ENDED,
    }


@dataclass
class JobBuilder:
    folder: Path
    retries: int = 0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        config = {"job_name": self.folder.name, "jobs_dir": str(self.folder.parent)}
        self._write(self.folder / "config.json", config)
        self.finish()

    def finish(self) -> None:
        stats = {"n_completed_trials": 0, "n_retries": self.retries, "evals": {}}
        result = {"id": str(uuid.uuid4()), **TIMES, "n_total_trials": 0, "stats": stats}
        self._write(self.folder / "result.json", result)

    def trial(
        self,
        name: str,
        task: str = "reverse-lines",
        rewards: dict[str, Any] | None = None,
        error: dict[str, Any] | None = None,
        ran: bool = True,
        graded: bool = True,
        folder: str = "",
        **fields: Any,
    ) -> Path:
        """A trial that ended. `ran`: its agent was started; `graded`: its verifier was."""
        place = self.folder / (folder or name)
        (place / "agent").mkdir(parents=True, exist_ok=True)
        config: dict[str, Any] = {"task": {"path": f"tasks/{task}"}, "trial_name": name}
        config |= fields.pop("config", {})
        result = {
            "id": str(uuid.uuid4()),
            "task_name": task,
            "trial_name": name,
            "trial_uri": place.as_uri(),
            "task_id": {"path": f"tasks/{task}"},
            "task_checksum": "0" * 64,
            "config": config,
            "agent_info": {
                "name": "codex",
                "version": "1",
                "model_info": {"name": "m", "provider": "openai"},
            },
            "agent_result": {"n_input_tokens": 7} if ran else None,
            "verifier_result": None if rewards is None else {"rewards": rewards},
            "exception_info": error,
            **TIMES,
            "agent_execution": TIMES if ran else None,
            "verifier": TIMES if graded else None,
            **fields,
        }
        self._write(place / "config.json", config)
        self._write(place / "result.json", result)
        return place

    def _write(self, path: Path, document: dict[str, Any]) -> None:
        path.write_text(json.dumps(document, indent=4))
