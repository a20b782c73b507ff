"""Which sampled tokens may be trained, by where they came from. Pure.

A token is a target when the policy sampled it in this execution, its capture is whole, and its answer
became part of the run. Tokens that two calls sampled at one place belong to one of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from gyre.treebuilder.call import Call
from gyre.treebuilder.lineage.turn import Context, Try, Turn
from gyre.treebuilder.tokens.prefix import PrefixTree, Run


@dataclass(slots=True)
class Targets:
    owners: dict[int, int] = field(default_factory=dict)
    """Index of the try that owns a sampled run, by the run's identity."""
    trained: set[int] = field(default_factory=set)
    """Identities of the runs whose tokens are targets."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Why a try's output is context, by its index."""
    untrained: Counter[str] = field(default_factory=Counter)
    """Unique sampled tokens that are no targets, by reason."""
    sampled: int = 0


def find_targets(
    tries: list[Try], contexts: list[Context], open_tries: set[int], tree: PrefixTree, exact: bool
) -> Targets:
    """`open_tries` are those whose link is quarantined: they own a run only if no other try does."""
    found = Targets()
    for one in tries:
        reason = _reason(one, one.index in open_tries) if exact else "not_exact"
        if reason is not None:
            found.reasons[one.index] = reason
    ranked = sorted(
        (one for one in tries if one.has_output and one.output_end is not None),
        key=lambda one: (one.index in found.reasons, one.index in open_tries, one.index),
    )
    runs: dict[int, Run] = {}
    for one in ranked:
        for run in output_runs(one, tree):
            found.owners.setdefault(id(run), one.index)
            runs[id(run)] = run
    continued = _continued(contexts, tree, found.reasons)
    for key, run in runs.items():
        reason = found.reasons.get(found.owners[key])
        found.sampled += run.size
        if reason is None or key in continued:
            found.trained.add(key)
        else:
            found.untrained[reason] += run.size
    return found


def output_runs(one: Try, tree: PrefixTree) -> list[Run]:
    """The runs of a try's output."""
    if one.output_end is None or one.prompt_end is None:
        return []
    run: Run | None = tree.settle(one.output_end).run
    found = []
    while run is not None and run.depth >= one.prompt_end.depth and run.size:
        found.append(run)
        run = run.parent
    return found


def _reason(one: Try, is_open: bool) -> str | None:
    """Why the whole output of a try is context; None if it may be trained."""
    call = one.call
    if call.delivery_of is not None:
        return "delivery"
    if call.evaluation:
        return "evaluation"
    if "late" in call.flags:
        return "late"
    if call.outcome != "ok":
        return f"outcome_{call.outcome}"
    return _flaw(call) or (None if is_open or _is_used(one) else "reply_lost")


def _flaw(call: Call) -> str | None:
    """What is wrong with the capture."""
    if call.capture_quality != "exact":
        return f"capture_{call.capture_quality}"
    if "version_unsure" in call.flags:
        return "version_unsure"
    if call.logprobs is not None and not np.isfinite(call.logprobs).all():
        return "logprobs_not_finite"
    return "greedy" if call.logprob_quality == "greedy" else None


def _is_used(one: Try) -> bool:
    """Whether the answer is the one that counts, another choice of that call, or was gone on from."""
    turn = one.turn
    if turn is None or turn.kept.call.key[:2] == one.call.key[:2]:
        return True
    return any(later.origin is one for later in turn.next)


def _continued(contexts: list[Context], tree: PrefixTree, reasons: dict[int, str]) -> set[int]:
    """Runs of cut answers that a later prompt of the context goes on from: the agent did use them."""
    runs: set[int] = set()
    for turn in (turn for context in contexts for turn in context.turns):
        one = turn.answered
        if one is not None and reasons.get(one.index, "").startswith("outcome_") and _flaw(one.call) is None:
            runs |= _used_runs(one, [later for later in turn.next if later.origin is one], tree)
    return runs


def _used_runs(one: Try, later: list[Turn], tree: PrefixTree) -> set[int]:
    own = {id(run) for run in output_runs(one, tree)}
    if any(turn.whole for turn in later):
        return own
    used: set[int] = set()
    for turn in later:
        for following in turn.tries:
            if following.prompt_end is not None:
                used |= own & {id(run) for run in tree.path(following.prompt_end)}
    return used
