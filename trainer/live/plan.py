"""What a live run would do and what it would take: `gyre train RUN.toml --dry-run`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gyre.trainer.live.config import run_table, run_toml
from gyre.trainer.live.dispatch import Pace
from gyre.trainer.live.evaluation import due
from gyre.trainer.live.folder import LiveFolder
from gyre.trainer.live.jobs import Jobs, load_jobs
from gyre.trainer.live.options import options_of
from gyre.trainer.live.settings import EngineKind, RunSettings, TaskTable
from gyre.trainer.live.setup import pace_of, total_updates
from gyre.trainer.pack.work import Work
from gyre.trainer.plan import device_name, empty_network
from gyre.trainer.rollout.confine import why_not
from gyre.trainer.rollout.harness import PRESETS, Setting, command
from gyre.trainer.rollout.job import Job, Options
from gyre.trainer.rollout.task import Task, find_tasks
from gyre.trainer.update.memory import Memory, Sizes, estimate, sizes
from gyre.trainer.update.network import positions

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first execution, as it would be started; what only a run knows stands there in capitals."""

    name: str
    task: Path
    argv: Sequence[str]
    installed: bool
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePlan:
    settings: RunSettings
    tasks: Sequence[tuple[str, int]]
    """How many each list has."""
    evaluation_tasks: Sequence[tuple[str, int]]
    notes: Sequence[str]
    """What may be wrong with a task."""
    pace: Pace
    updates: int
    """At most."""
    executions: int
    evaluations: int
    """At most."""
    episodes: int
    """Of all of them."""
    first: First
    unconfined: str
    """Why agents are not confined, and what follows from it; empty when they are."""
    device: str
    sizes: Sizes
    path: int
    """Tokens of the longest trajectory that memory is estimated for."""
    memory: Memory
    engine_bytes: int | None
    """Of all embedded engines: weights, keys and values."""

    @property
    def toml(self) -> str:
        return run_toml(self.settings)

    def as_json(self) -> dict[str, Any]:
        pace = self.pace
        return {
            "settings": run_table(self.settings),
            "tasks": dict(self.tasks),
            "evaluation_tasks": dict(self.evaluation_tasks),
            "notes": list(self.notes),
            "dispatch": {
                "groups_ahead": pace.depth,
                "staleness_bound": pace.bound,
                "publications": pace.bursts,
                "updates": self.updates,
                "executions": self.executions,
                "evaluations": self.evaluations,
                "episodes": self.episodes,
            },
            "first": asdict(self.first),
            "confined": not self.unconfined,
            "unconfined_because": self.unconfined or None,
            "device": self.device,
            "model": asdict(self.sizes),
            "longest_path": self.path,
            "memory_bytes": asdict(self.memory) | {"total": self.memory.total},
            "engine_bytes": self.engine_bytes,
        }


def make_live_plan(settings: RunSettings) -> LivePlan:
    """Raises what `run` raises about tasks, settings and model, as far as no weights are needed."""
    folder = LiveFolder(Path(settings.out or ""))
    unconfined = _unconfined(settings)
    name = settings.model.rpartition("/")[2]
    options = options_of(settings, folder.executions, model=name, context=None, confined=not unconfined)
    jobs = load_jobs(
        settings.tasks,
        settings.evaluation,
        options,
        size=settings.rollout.group_size,
        seed=settings.train.seed,
    )
    network = empty_network(settings.model)
    sized = sizes(network, settings.train.train, settings.train.freeze)
    path = min(
        filter(None, (settings.limits.context, positions(network))), default=settings.train.token_budget
    )
    times = _evaluations(settings)
    return LivePlan(
        settings=settings,
        tasks=_counts(settings.tasks),
        evaluation_tasks=_counts(settings.evaluation.tasks),
        notes=_notes([*jobs.tasks.values(), *jobs.evaluated]),
        pace=pace_of(settings),
        updates=total_updates(settings),
        executions=settings.rollout.batches * settings.train.groups_per_batch * settings.rollout.group_size,
        evaluations=times,
        episodes=times * len(jobs.evaluated),
        first=_first(jobs, options),
        unconfined=unconfined,
        device=device_name(settings.train),
        sizes=sized,
        path=path,
        memory=estimate(sized, settings.train, _largest(settings, path)),
        engine_bytes=_engine_bytes(settings, sized),
    )


def _largest(settings: RunSettings, path: int) -> Work:
    """An update whose trajectories are all as long as they may be, and all of them targets."""
    tokens = max(settings.train.token_budget, path)
    return Work(tokens=tokens, targets=tokens, longest_path=path)


def _unconfined(settings: RunSettings) -> str:
    why = why_not()
    then = "`unsafe_local` allows it" if settings.unsafe_local else "without `unsafe_local` nothing is run"
    return why and f"{why}; {then}"


def _counts(lists: Sequence[TaskTable]) -> list[tuple[str, int]]:
    return [(each.folder, len(find_tasks(Path(each.folder)))) for each in lists]


def _notes(tasks: Sequence[Task]) -> list[str]:
    return list(dict.fromkeys(f"task `{task.folder}`: {note}" for task in tasks for note in task.notes))


def _evaluations(settings: RunSettings) -> int:
    """Weights that did not change are not evaluated again, so there may be fewer."""
    last = pace_of(settings).bursts
    return sum(
        len(due(settings.evaluation, settings.sampling, version=version, update=0, last=version == last))
        for version in range(last + 1)
    )


def _first(jobs: Jobs, options: Options) -> First:
    task = jobs.tasks[jobs.order[0]]
    name = jobs.of_group(jobs.group(0, burst=0, version="0")).jobs[0].name
    place = options.runs / name
    setting = Setting(
        execution=name,
        base_url=f"http://127.0.0.1:PORT/x/{name}/v1",
        key="KEY",
        model=options.model,
        context=options.context,
        instruction=task.instruction,
        instruction_file=place / "instruction.md",
        workspace=place / "workspace",
        home=place / "home",
    )
    if options.harness is None:
        launch = command(setting, options.command)
    else:
        preset = PRESETS[options.harness]
        launch = preset.launch(setting, options.program or preset.program, options.command)
    found = shutil.which(launch.argv[0], path=options.env.get("PATH"))
    return First(
        name=name,
        task=task.folder,
        argv=[found or launch.argv[0], *launch.argv[1:]],
        installed=found is not None,
        timeout_s=Job(name, task).limit_s(options),
    )


def _engine_bytes(settings: RunSettings, sized: Sizes) -> int | None:
    engine = settings.engine
    if engine.kind is not EngineKind.EMBEDDED:
        return None
    weights = sized.parameters * (4 if engine.dtype == "fp32" else 2)
    return engine.count * (weights + engine.kv_memory * _MIB)
