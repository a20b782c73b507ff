"""The folder of a live run.

RUN/run.toml                    the resolved configuration
RUN/run.json                    model and tasks with digests, versions, git revision
RUN/logs/                       the log
RUN/executions/NAME/            workspaces and outputs of executions
RUN/trees/                      what was trained, as `gyre-trees build RUN/logs -o RUN/trees` makes it
RUN/checkpoints/update-000020/  a checkpoint with each publication; `model/` is what engines serve
RUN/latest                      the newest of them
RUN/final/                      the model at the end of the run
RUN/metrics.jsonl               a line per update, batch, publication and evaluation
RUN/tensorboard/
RUN/status.json                 where it stands, for `gyre train status`
RUN/services/                   what proxy and engines said
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SETTINGS = "run.toml"
LEFT_BARE = frozenset({"logs", "services", "checkpoints", "status.json", "latest"})
"""What a run leaves beside its settings that ended before its first execution."""


@dataclass(frozen=True, slots=True)
class LiveFolder:
    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def executions(self) -> Path:
        return self.root / "executions"

    @property
    def trees(self) -> Path:
        return self.root / "trees"

    @property
    def final(self) -> Path:
        return self.root / "final"

    @property
    def status(self) -> Path:
        return self.root / "status.json"

    @property
    def services(self) -> Path:
        return self.root / "services"
