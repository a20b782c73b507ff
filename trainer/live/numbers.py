"""What batches, publications and evaluations were like, as numbers by name. All are in docs/metrics.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import msgspec

from gyre.trainer.live.reports import BatchReport, Evaluated, Publication, Trained

PHASE = "seconds/"
TOTAL = "seconds/total"
OUTCOME = "outcome/"


def batch_numbers(report: BatchReport) -> dict[str, float]:
    """Without what is not known."""
    groups = report.groups
    found = {
        "pass_rate": report.pass_rate,
        "mean_score": report.mean_score,
        "groups": len(groups),
        "groups_varied": report.varied,
        "updates": report.updates,
        "executions": report.executions,
        "targets/sampled": sum(group.sampled for group in groups),
        "targets/kept": sum(group.kept for group in groups),
        "kept_share": report.kept_share,
        "tokens/tree": report.tokens_tree,
        "tokens/flat": report.tokens_flat,
        "tree_savings": report.tree_savings,
        TOTAL: sum(report.seconds.values()),
    }
    found |= _over_groups(groups) if groups else {}
    found |= _counted(OUTCOME, (group.outcomes for group in groups))
    found |= _counted("left_out/", (group.left_out for group in groups))
    found |= {PHASE + phase: spent for phase, spent in report.seconds.items()}
    return _known(found)


def _over_groups(groups: Iterable[Trained]) -> dict[str, float | None]:
    groups = list(groups)
    return {
        "staleness/mean": fmean(group.staleness for group in groups),
        "staleness/max": max(group.staleness for group in groups),
        "staleness/updates_mean": fmean(group.update_staleness for group in groups),
        "staleness/updates_max": max(group.update_staleness for group in groups),
        "group_seconds/mean": fmean(group.seconds for group in groups),
        "group_seconds/max": max(group.seconds for group in groups),
        "group_seconds/scoring": sum(group.seconds_scoring for group in groups),
        "group_seconds/tree": sum(group.seconds_tree for group in groups),
    }


def publication_numbers(publication: Publication) -> dict[str, float]:
    return {
        "seconds": publication.seconds,
        "checkpoint": publication.checkpoint,
        "held": publication.held,
    }


def evaluation_numbers(evaluated: Evaluated) -> dict[str, float]:
    """Without what is not known."""
    found = {
        "pass_rate": evaluated.pass_rate,
        "mean_score": evaluated.mean_score,
        "episodes": evaluated.episodes,
        "completed": evaluated.completed,
        "seconds": evaluated.seconds,
    }
    return _known(found | _counted(OUTCOME, [evaluated.outcomes]))


def phases(numbers: Mapping[str, float]) -> dict[str, float]:
    """Wall clock by phase, taken out of the numbers of a batch."""
    found = {name.removeprefix(PHASE): spent for name, spent in numbers.items() if name.startswith(PHASE)}
    found.pop(TOTAL.removeprefix(PHASE), None)
    return found


def evaluations(lines: Iterable[Mapping[str, Any]]) -> list[Evaluated]:
    """Those that lines tell of."""
    return [_evaluated(line) for line in lines if line.get("kind") == "evaluation"]


def _evaluated(line: Mapping[str, Any]) -> Evaluated:
    outcomes = {name.removeprefix(OUTCOME): line[name] for name in line if name.startswith(OUTCOME)}
    unknown = {"pass_rate": None, "mean_score": None}
    return msgspec.convert({**unknown, **line, "outcomes": outcomes}, Evaluated)


def _counted(prefix: str, counts: Iterable[Mapping[str, int]]) -> dict[str, float | None]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {prefix + name: count for name, count in sorted(total.items())}


def _known(numbers: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value is not None}
