"""Whether who samples is the policy that learns: log-probabilities of the two are compared before a step.

Trees on the disk are compared once, before the first step of all, roughly: nobody knows whether the model is
the very one. In a live run it is, whenever engines have just taken its weights up. Then all executions that
were sampled under that version alone are compared: exactly the first time that a process does so, where it is
told how exact engines are; later roughly, since nothing is gained from ending a run for a rounding.
One that straddled a publication is not: its later tokens may have keys and values of older weights.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gyre.trainer.data.checks import Compared, check_gap, check_served
from gyre.trainer.pack.piece import Bools, Floats32, Targets


class Guard:
    def __init__(self, max_gap: float | None) -> None:
        """`max_gap`: of a single log-probability at the first comparison, in nats; None: engines compute too
        differently to say."""
        self._max_gap = max_gap
        self._version: str | None = None
        self._due = True
        self.compared: Compared | None = None
        """The last comparison with a version."""

    def dismiss(self) -> None:
        """A policy that has been updated is not the one that sampled, until engines have it."""
        self._due = False

    def served_as(self, version: str) -> None:
        """Engines have the weights of now, under this name."""
        self._version, self._due = version, True

    def check(self, targets: Sequence[Targets], logprobs: Sequence[Floats32]) -> None:
        """Of all that an update computed with the weights of now, which are about to change.

        Raises:
            TrainError: they were sampled with other weights.
        """
        if not self._due:
            return
        behaviour_T = np.concatenate([part.behaviour_T for part in targets])
        own_T = np.concatenate(logprobs)
        if self._version is None:
            check_gap(behaviour_T, own_T)
        else:
            of_it_T = np.concatenate([sampled_by(part, self._version) for part in targets])
            self.compared = check_served(
                behaviour_T[of_it_T], own_T[of_it_T], version=self._version, max_gap=self._max_gap
            )
            if self.compared is not None:
                self._max_gap = None
        self._due = False


def sampled_by(targets: Targets, version: str) -> Bools:
    """Targets, (T,), of executions that this version has sampled all targets of."""
    if version not in targets.versions:
        return np.zeros(len(targets), np.bool_)
    other_T = targets.version_T != targets.versions.index(version)
    mixed_E = np.bincount(targets.execution_T[other_T], minlength=len(targets.executions)) > 0
    found: Bools = ~mixed_E[targets.execution_T]
    return found
