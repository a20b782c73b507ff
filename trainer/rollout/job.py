"""What is to be run, and how: values that the command line fills in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gyre.proxy.allowance import Allowance
from gyre.proxy.settings import Pin
from gyre.trainer.rollout.harness import REWRITES, Harness
from gyre.trainer.rollout.task import Task

TIMEOUT_S = 7200.0
SCORE_TIMEOUT_S = 600.0
WORKSPACE_LIMIT = 8 << 30


@dataclass(frozen=True, kw_only=True)
class Options:
    """How executions are run; the same for all of a run."""

    runs: Path
    """A folder; each execution has one of its name in it."""
    harness: Harness | None = None
    program: str | None = None
    """The harness's executable, where PATH does not lead to it."""
    command: Sequence[str] = ()
    """A program of the user's own, or arguments for the harness."""
    model: str = ""
    context: int | None = None
    instruction: str = ""
    workspace: Path | None = None
    """What the workspace starts with, where no task says it."""
    timeout_s: float | None = None
    """None: what the task says, else two hours."""
    score: str | None = None
    """A shell command in place of the task's tests."""
    score_timeout_s: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """For the harness."""
    scorer_env: Mapping[str, str] = field(default_factory=dict)
    """For the scorer, beside those of its task."""
    workspace_limit: int = WORKSPACE_LIMIT
    evaluation: bool | None = None
    pin: Pin | None = None
    """Sampling of its calls, whatever the harness asks for; None: as the proxy has it."""
    allowance: Allowance | None = None
    """How much it may ask for; what it did until then is scored."""
    memory: int | None = None
    """Bytes of address space that each of its processes may have."""
    processes: int | None = None
    """How many it may have at once."""
    confined: bool = False
    """Under bubblewrap; see confine.py."""
    hidden: Sequence[Path] = ()
    """Folders that one that is confined does not see, beside those of runs and log."""

    @property
    def restores(self) -> bool:
        """Whether the proxy shall put arguments of tool calls back as they were sampled."""
        return self.harness in REWRITES

    @property
    def called(self) -> str:
        """How the harness is called in the log."""
        return self.harness or Path(self.command[0]).name


@dataclass(frozen=True)
class Job:
    """One execution to be run."""

    name: str
    task: Task | None = None
    group: str | None = None
    only_new: bool = False
    """Whether its name may not have ended in the log before, but in an earlier run of this one."""

    def limit_s(self, options: Options) -> float:
        """Seconds that the harness may take."""
        if options.timeout_s is not None:
            return options.timeout_s
        return self.task.timeout_s if self.task and self.task.timeout_s is not None else TIMEOUT_S

    def score_limit_s(self, options: Options) -> float:
        """Seconds that each try of the scorer may take."""
        if options.score_timeout_s is not None:
            return options.score_timeout_s
        return self.task.verifier_timeout_s if self.task else SCORE_TIMEOUT_S
