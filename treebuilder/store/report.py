"""What a whole build came to, as `report.json`. Pure; the same trees and findings give the same text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from gyre.proxy.log.findings import Finding
from gyre.treebuilder.score import left_out, reward
from gyre.treebuilder.store.folder import Manifest
from gyre.treebuilder.store.schema import SCHEMA_VERSION
from gyre.treebuilder.summary import ExecutionSummary

_SUMS = (
    *("calls", "contexts", "trajectories", "prompt_tokens", "tree_tokens"),
    *("sampled_tokens", "targets", "kept_targets", "quarantined"),
)
CALL_REASONS = (
    "outcome_",
    "capture_",
    "late",
    "version_unsure",
    "greedy",
    "evaluation",
    "delivery",
    "not_exact",
    "reply_lost",
    "logprobs_not_finite",
)
"""Reasons that make a whole call untrainable; what else is no target was lost by us."""


def report_of(
    manifest: Manifest, summaries: Iterable[ExecutionSummary], findings: Iterable[Finding]
) -> dict[str, Any]:
    sums: Counter[str] = Counter(dict.fromkeys(_SUMS, 0))
    counts: Counter[str] = Counter({"total": 0, "exact": 0, "skipped": 0, "trained": 0})
    reasons: dict[str, Counter[str]] = {"left_out": Counter(), "untrained": Counter(), "causes": Counter()}
    told: dict[str, list[dict[str, Any]]] = {"skipped": [], "disagreements": [], "problems": [], "kept": []}
    for one in summaries:
        sums.update({name: getattr(one, name) for name in _SUMS})
        counts.update(_kinds(one))
        for name, counter in reasons.items():
            counter.update(getattr(one, name))
        _tell(one, told)
    return {
        "schema": SCHEMA_VERSION,
        "log": manifest.log,
        "options": {
            "cap": manifest.options.cap,
            "seed": manifest.options.seed,
            "rule": manifest.options.rule,
        },
        "executions": dict(counts),
        **dict(sums),
        "kept_share": _share(sums["kept_targets"], sums["targets"]),
        "delivered_share": _share(sums["targets"], sums["targets"] + _lost(reasons["untrained"])),
        **{name: dict(counter) for name, counter in reasons.items()},
        "skipped": told["skipped"],
        "disagreements": told["disagreements"],
        "problems": told["problems"],
        "kept": told["kept"],
        "log_findings": sorted((each.as_dict() for each in findings), key=lambda each: sorted(each.items())),
    }


def _kinds(one: ExecutionSummary) -> dict[str, int]:
    """Of which kinds an execution is."""
    kinds = {
        "total": True,
        "exact": one.exact and one.calls > 0 and one.skipped is None,
        "skipped": one.skipped is not None,
        "text_only": not one.exact,
        "without_calls": one.calls == 0,
        "superseded": one.superseded,
        "evaluation": one.evaluation,
        "scored": reward(one) is not None,
        "trained": left_out(one) is None,
    }
    return {name: int(holds) for name, holds in kinds.items()}


def _tell(one: ExecutionSummary, told: dict[str, list[dict[str, Any]]]) -> None:
    who = {"execution_id": one.execution_id, "execution_attempt": one.execution_attempt}
    if one.skipped is not None:
        told["skipped"].append(who | {"reason": one.skipped})
        return
    told["disagreements"] += [who | {"text": text} for text in one.disagreements]
    told["problems"] += [who | {"text": text} for text in one.problems]
    kept = {"targets": one.targets, "kept_targets": one.kept_targets, "kept_share": round(one.kept_share, 6)}
    told["kept"].append(who | kept)


def _lost(untrained: Counter[str]) -> int:
    """Sampled tokens of trainable calls that are no targets."""
    return sum(count for reason, count in untrained.items() if not reason.startswith(CALL_REASONS))


def _share(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 1.0
