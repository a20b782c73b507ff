"""Of each target of an update what its report is made of. Parts of an update that were computed one after
the other are put together here, so that spreads and percentiles are over all targets.

Numbers on the host only. Shapes: T targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from gyre.trainer.pack.piece import Bools, Floats32, Floats64, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    execution_T: Ints
    """Index of its execution: 0 to E - 1."""
    weight_T: Floats64
    advantage_T: Floats64
    behaviour_T: Floats32
    """Log-probability it was sampled with; NaN where there is none that may be compared."""
    old_T: Floats64
    now_T: Floats64
    reference_T: Floats64 | None
    """Log-probabilities at the batch's start, with the weights of now, of the reference."""
    execution_ratio_T: Floats64
    """s_e"""
    clipped_T: Bools
    cap: float | None
    """Of importance weights; None: they are not used."""

    @classmethod
    def join(cls, parts: Sequence[Measured]) -> Measured:
        """Of one part at least, all with the same settings; no execution is in two of them."""
        references = [part.reference_T for part in parts if part.reference_T is not None]
        firsts = accumulate((int(part.execution_T.max()) + 1 for part in parts), initial=0)
        return cls(
            execution_T=np.concatenate(
                [part.execution_T + first for part, first in zip(parts, firsts, strict=False)]
            ),
            weight_T=np.concatenate([part.weight_T for part in parts]),
            advantage_T=np.concatenate([part.advantage_T for part in parts]),
            behaviour_T=np.concatenate([part.behaviour_T for part in parts]),
            old_T=np.concatenate([part.old_T for part in parts]),
            now_T=np.concatenate([part.now_T for part in parts]),
            reference_T=np.concatenate(references) if references else None,
            execution_ratio_T=np.concatenate([part.execution_ratio_T for part in parts]),
            clipped_T=np.concatenate([part.clipped_T for part in parts]),
            cap=parts[0].cap,
        )
