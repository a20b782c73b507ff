"""What `gyre train RUN.toml --dry-run` prints."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

from gyre.cli import output

if TYPE_CHECKING:
    from gyre.trainer.live.plan import LivePlan
    from gyre.trainer.live.settings import RunSettings

SCHEMA = 1
_COLUMNS = ("", "")
_LONG = 100
"""Letters of a word of the command that are shown."""
Rows = list[tuple[str, object]]


def print_plan(settings: RunSettings, *, json: bool) -> None:
    """Starts nothing and writes nothing."""
    from gyre.trainer.live.plan import make_live_plan

    plan = make_live_plan(settings)
    if json:
        output.print_json({"schema": SCHEMA, **plan.as_json()})
        return
    print(plan.toml)
    for note in plan.notes:
        output.say(f"note: {note}")
    for title, rows in tables(plan).items():
        output.print_table(title, _COLUMNS, rows)
        print()


def tables(plan: LivePlan) -> dict[str, Rows]:
    return {
        "tasks": _tasks(plan),
        "what is dispatched": _dispatch(plan),
        "an execution": _execution(plan),
        "engine": _engine(plan),
        "memory, an estimate": _memory(plan),
    }


def _tasks(plan: LivePlan) -> Rows:
    settings = plan.settings
    weights = {each.folder: each.weight for each in settings.tasks}
    rows: Rows = [
        (folder, f"{output.counted(count, 'task')}, weight {weights[folder]:g}")
        for folder, count in plan.tasks
    ]
    evaluated = [
        (folder, f"{output.counted(count, 'task')}, evaluated") for folder, count in plan.evaluation_tasks
    ]
    return [*rows, *evaluated]


def _dispatch(plan: LivePlan) -> Rows:
    settings, pace = plan.settings, plan.pace
    size, groups = settings.rollout.group_size, pace.groups_per_batch
    every = "a batch" if pace.burst == 1 else f"every {pace.burst:,} batches"
    episodes = output.counted(plan.episodes, "episode")
    return [
        ("batches", f"{pace.batches:,}, of {output.counted(groups, 'group')} of {size:,} executions"),
        ("executions", plan.executions),
        ("at once", settings.rollout.concurrency),
        ("groups dispatched ahead, at most", pace.depth),
        ("publications", f"{pace.bursts:,}, one {every}"),
        ("staleness, at most", output.counted(pace.bound, "publication")),
        ("updates, at most", plan.updates),
        ("evaluations, at most", f"{plan.evaluations:,}, {episodes} in all" if plan.evaluations else "none"),
    ]


def _execution(plan: LivePlan) -> Rows:
    first = plan.first
    words = [word if len(word) <= _LONG else f"{word[:_LONG]}..." for word in first.argv]
    return [
        ("first task", first.task),
        ("command", shlex.join(" ".join(word.split("\n")) for word in words)),
        *([] if first.installed else [("", f"`{first.argv[0]}` is not installed")]),
        ("time", f"{first.timeout_s:,.0f} s"),
        ("confinement", f"none: {plan.unconfined}" if plan.unconfined else "bubblewrap"),
    ]


def _engine(plan: LivePlan) -> Rows:
    engine = plan.settings.engine
    if engine.urls:
        return [(str(engine.kind), url) for url in engine.urls]
    rows: Rows = [("kind", str(engine.kind)), ("started", engine.count)]
    if engine.command:
        return [*rows, ("command", shlex.join(engine.command))]
    device, slots = f"{engine.device}, {engine.dtype}", f"{engine.slots:,} answers at once"
    return [*rows, ("computes on", device), ("slots", slots)]


def _memory(plan: LivePlan) -> Rows:
    total = plan.memory.total
    rows: Rows = [
        ("parameters", plan.sizes.parameters),
        ("of them trained", plan.sizes.trained),
        ("training on", plan.device),
        ("trajectories, at most", output.counted(plan.path, "token")),
        *((f"training: {name}", _mib(value)) for name, value in asdict(plan.memory).items() if value),
        ("training in all", _mib(total)),
    ]
    return rows if plan.engine_bytes is None else [*rows, ("engines", _mib(plan.engine_bytes))]


def _mib(value: int) -> str:
    return f"{round(value / 2**20):,} MiB"
