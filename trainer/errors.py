"""What can be wrong with training.

GyreError
└── TrainError(RuntimeError)        data, model or run cannot be trained
    ├── UnusableError               what was recorded cannot be trained; recorded anew it may be
    ├── RefusedError                this pass would be silently wrong on this model
    └── DivergedError               too many updates in a row were not finite
"""

from __future__ import annotations

from gyre.proxy.errors import GyreError


class TrainError(GyreError, RuntimeError):
    """Trees, a model or a run folder that cannot be used for training."""


class UnusableError(TrainError):
    """Executions that cannot be trained, for a reason that the next ones would have too."""


class RefusedError(TrainError):
    """A way to run a model that would give wrong gradients without any error."""


class DivergedError(TrainError):
    """Loss or gradients were not finite in too many updates in a row; a checkpoint was written."""
