"""What goes on around one call: tries that fail, several answers, a flawed capture."""

from __future__ import annotations

from typing import NamedTuple

from tests.trees.world.row import Row

FAILED = ("429", "500", "cut", "gone", "timeout", "attempt")
"""Tries before the one that is kept; `attempt`: the proxy tried another backend by itself."""
LOST = ("marked", "resampled")
"""A complete answer, asked for again: with a retry mark, or without any."""
CONDITIONS = ("greedy", "raw", "incomplete", "late", "version_unsure", "spans", "length")
"""`cut` as well: an answer that broke off, and that the harness goes on from."""


class Plan(NamedTuple):
    tries: tuple[str, ...] = ()
    choices: int = 1
    condition: str = "ok"
    resampled_after: bool = False
    """After the kept answer the same is asked once more, and that answer is thrown away."""
    delivered_again: bool = False
    """After the kept answer the proxy sends it again from memory."""

    def without_twins(self) -> Plan:
        """For a call that nothing goes on from: of two complete answers neither would be the kept one."""
        tries = tuple(name for name in self.tries if name not in LOST)
        return self._replace(tries=tries, resampled_after=False)


PLAIN = Plan()


def spoil(row: Row, condition: str) -> None:
    """Give an answered row its versions and what is wrong with it."""
    assert row.reply is not None
    size = len(row.reply.sampled.ids)
    half = size // 2 if condition == "spans" else size
    row.spans = [span for span in (("v1", 0, half), ("v2", half, size)) if span[1] < span[2]]
    if condition in ("greedy", "raw"):
        row.logprob_quality = condition
    if condition in ("late", "version_unsure"):
        row.flags = (condition,)
    if condition == "incomplete":
        row.capture_quality, row.flags = "incomplete", ("tokens_incomplete",)
    if condition == "length":
        row.finish = "length"
    if condition == "cut":
        row.outcome, row.finish, row.continued = "upstream_cut", None, True
