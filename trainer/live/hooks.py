"""Metrics to W&B or trackio as well, for who asks. Neither is a dependency, and neither can end a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from gyre.proxy.errors import ConfigError
from gyre.trainer.errors import TrainError
from gyre.trainer.live.settings import ReportTable


@dataclass(frozen=True, slots=True)
class About:
    """The run that is tracked."""

    name: str
    identity: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """May raise whatever it likes."""

    @property
    def name(self) -> str: ...

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """More than once for an update: its own numbers, those of its batch, of an evaluation after it."""
        ...

    def close(self) -> None: ...


class Wandb:
    name = "wandb"

    def __init__(self, project: str, about: About) -> None:
        self._run: Any = import_module("wandb").init(
            project=project, name=about.name, id=about.identity, resume="allow", config=dict(about.config)
        )
        # Steps of its own only ever grow; those of a run that goes on do not.
        self._run.define_metric("update")
        self._run.define_metric("*", step_metric="update")

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self._run.log({**numbers, "update": update})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    name = "trackio"

    def __init__(self, project: str, about: About) -> None:
        # It knows runs by their names alone. Its own `finish` also forgets the run, which it would otherwise
        # finish once more, and say so on stdout, when the process ends.
        self._module: Any = import_module("trackio")
        self._run: Any = self._module.init(
            project=project,
            name=f"{about.name}-{about.identity}",
            resume="allow",
            config=dict(about.config),
            embed=False,
        )

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self._run.log(dict(numbers), step=update)

    def close(self) -> None:
        self._module.finish()


def require_trackers(report: ReportTable) -> None:
    """Raises ConfigError for one that is asked for and not installed."""
    for name, project in (("wandb", report.wandb), ("trackio", report.trackio)):
        if project is not None and find_spec(name) is None:
            text = f"`[report] {name}` needs the package `{name}`, which is not installed"
            raise ConfigError(text, f"run `pip install {name}`, or leave the key out")


@dataclass(slots=True)
class Hooks:
    """Trackers; one that fails is told of once, and left out from then on."""

    trackers: Sequence[Tracker] = ()
    warn: Callable[[str], None] = lambda _: None

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self._each(lambda tracker: tracker.log(numbers, update))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for tracker in self.trackers:
            try:
                with redirect_stdout(sys.stderr):  # stdout is for data
                    do(tracker)
            except Exception as problem:  # of code that is not ours; metrics are in metrics.jsonl as well
                self.trackers = [other for other in self.trackers if other is not tracker]
                self.warn(f"no more metrics to {tracker.name}: {_said(problem)}")


@contextmanager
def hooks(
    report: ReportTable, *, name: str, identity: str, config: Mapping[str, Any], warn: Callable[[str], None]
) -> Iterator[Hooks]:
    """The trackers that the run file asks for, of the run of this name.

    `identity`: the same when the run goes on, another one for every other run.

    Raises:
        ConfigError: one is not installed.
        TrainError: one does not start.
    """
    require_trackers(report)
    made, about = Hooks([], warn), About(name, identity, config)
    try:
        for kind, project in ((Wandb, report.wandb), (Trackio, report.trackio)):
            if project is not None:
                made.trackers = [*made.trackers, _started(kind, project, about)]
        yield made
    finally:
        made.close()


def _started(kind: type[Wandb] | type[Trackio], project: str, about: About) -> Tracker:
    try:
        with redirect_stdout(sys.stderr):
            return kind(project, about)
    except Exception as problem:  # of code that is not ours
        hint = f"see to it, or leave `[report] {kind.name}` out"
        raise TrainError(f"{kind.name} does not start: {_said(problem)}", hint) from problem


def _said(problem: Exception) -> str:
    """In one line."""
    return " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
