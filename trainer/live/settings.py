"""What a run file can say: `gyre train RUN.toml`. Values only; no torch.

Paths in a run file are relative to it. An unknown key is an error that names the nearest known one
(`config.py`). The table `[train]` is the one of `gyre train --trees`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from gyre.elastic.engine.settings import Device, Dtype
from gyre.proxy.allowance import Allowed
from gyre.trainer.rollout.harness import Harness
from gyre.trainer.settings import Count, CountOrNone, NotNegative, Positive, TrainSettings
from gyre.treebuilder.options import CAP, Rule

Cores = Annotated[int, msgspec.Meta(ge=1)]


class EngineKind(StrEnum):
    """What samples."""

    EMBEDDED = "embedded"
    """`gyre engine`, a process of the run."""
    VLLM = "vllm"
    SGLANG = "sglang"


class InFlight(StrEnum):
    """What a publication does with answers that are being sampled."""

    KEEP = "keep"
    """They go on with the keys and values they have, under the new weights."""
    RECOMPUTE = "recompute"
    """Keys and values are computed anew."""


class Transfer(StrEnum):
    """How weights reach vLLM."""

    DISK = "disk"
    """It reads the run's folder."""
    NCCL = "nccl"
    """Through NCCL; vLLM must be installed here too, and be started with `--weight-transfer-config`."""
    IPC = "ipc"
    """Through CUDA's shared memory, likewise; on the trainer's own GPU."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class EngineTable(_Table, frozen=True, kw_only=True):
    """`[engine]`"""

    kind: EngineKind = EngineKind.EMBEDDED
    urls: tuple[str, ...] = ()
    """Engines that run already (vLLM, SGLang). They must see the run's folder under the same path."""
    command: tuple[str, ...] = ()
    """How to start one: `{model}`, `{host}` and `{port}` are filled in. Not with `urls`."""
    env: dict[str, str] = {}
    """For `command`."""
    count: Count = 1
    """How many are started."""
    in_flight: InFlight = InFlight.KEEP
    transfer: Transfer = Transfer.DISK
    slots: Count = 16
    """Answers that an embedded engine computes at once."""
    threads: Cores | None = None
    """Of torch, in an embedded engine."""
    kv_memory: Count = 2048
    """MiB for keys and values, in an embedded engine."""
    device: Device = Device.AUTO
    """Of an embedded engine."""
    dtype: Dtype = Dtype.FP32
    """Of an embedded engine."""
    start_timeout: str = "5m"
    publish_timeout: str = "5m"


class HarnessTable(_Table, frozen=True, kw_only=True):
    """`[harness]`: a preset, or a command of one's own."""

    preset: Harness | None = None
    program: str | None = None
    """The preset's executable, where PATH does not lead to it."""
    command: tuple[str, ...] = ()
    """A program and its arguments; `{base_url}`, `{model}`, `{instruction}` and so on are filled in as by
    `gyre run`. With a preset: more arguments for it. What begins with `./` is relative to the run file."""
    env: dict[str, str] = {}
    keep_env: tuple[str, ...] = ()
    """Names of the run's own variables that it gets too."""


class TaskTable(_Table, frozen=True, kw_only=True):
    """`[[tasks]]`, `[[evaluation.tasks]]`: a folder of Harbor task folders."""

    folder: str
    weight: Positive = 1.0
    """How often its tasks are drawn, beside those of the other lists; each list is gone through in a
    shuffled order before any of its tasks comes again."""


class RolloutTable(_Table, frozen=True, kw_only=True):
    """`[rollout]`"""

    group_size: Count = 16
    """N: executions of each task that are compared with each other."""
    batches: Count
    """How many the run trains."""
    look_ahead: NotNegative = 0.0
    """phi: batches whose executions begin before they are needed. 0 with `burst` 1: synchronous."""
    burst: Count = 1
    """mu: batches between two publications of weights."""
    concurrency: Count = 8
    """Executions at once."""
    retries: CountOrNone = 1
    """Of an execution that fails because an engine or the proxy was not there."""
    keep: CountOrNone = 2
    """Bursts whose executions keep workspace, home and large outputs after they were trained."""


class LimitTable(_Table, frozen=True, kw_only=True):
    """`[limits]`: of one execution. What it had done by then is kept and scored."""

    time: str | None = None
    """Unset: the task's, else 2 h."""
    calls: Allowed | None = None
    tokens: Allowed | None = None
    """Sampled ones."""
    context: Count | None = None
    """Of a prompt with its answer; also what the harness is told, so that it compacts in time."""
    workspace: str = "8GB"
    memory: str | None = None
    """Address space of each of its processes."""
    processes: Count | None = None


class TimeoutTable(_Table, frozen=True, kw_only=True):
    """`[timeouts]`"""

    scorer: str | None = None
    """Unset: the task's, else 10 min."""
    run: str | None = None
    """The run then ends in order, and may be gone on with."""


class SamplingTable(_Table, frozen=True, kw_only=True):
    """`[sampling]`: pinned at the proxy for every call of the run, whatever a harness asks for."""

    temperature: Positive = 1.0


class TreeTable(_Table, frozen=True, kw_only=True):
    """`[trees]`"""

    cap: Count = CAP
    select: Rule = Rule.QWENGYRE
    """`all`: no cap."""
    seed: CountOrNone = 0


class EvaluationTable(_Table, frozen=True, kw_only=True):
    """`[evaluation]`: executions on tasks that are never trained on."""

    tasks: tuple[TaskTable, ...] = ()
    episodes: Count = 64
    """Of each evaluation, one a task as far as there are tasks. Which ones is drawn once, by `seed`."""
    every: CountOrNone = 0
    """Publications between two; 0: before the first and after the last only."""
    greedy: bool = False
    """Evaluate at temperature 0 as well."""
    seed: CountOrNone = 0


class ReportTable(_Table, frozen=True, kw_only=True):
    """`[report]`: where metrics go beside `metrics.jsonl` and TensorBoard."""

    wandb: str | None = None
    """Project; needs the package `wandb`."""
    trackio: str | None = None
    """Project; needs the package `trackio`."""


class RunSettings(_Table, frozen=True, kw_only=True):
    """A run file."""

    model: str
    """What is trained: a Hugging Face folder, `smollm2`, `tiny`."""
    chat_template: str | None = None
    """Jinja file, in place of the model's own."""
    out: str | None = None
    """Folder of the run; unset: `runs/NAME` beside the run file, after its name."""
    unsafe_local: bool = False
    """Run harnesses without confinement, where bubblewrap is not installed."""
    score: str | None = None
    """Shell command that prints a score; unset: each task's `tests/test.sh`."""
    engine: EngineTable = EngineTable()
    harness: HarnessTable
    tasks: tuple[TaskTable, ...]
    rollout: RolloutTable
    limits: LimitTable = LimitTable()
    timeouts: TimeoutTable = TimeoutTable()
    sampling: SamplingTable = SamplingTable()
    trees: TreeTable = TreeTable()
    evaluation: EvaluationTable = EvaluationTable()
    report: ReportTable = ReportTable()
    train: TrainSettings = TrainSettings()
