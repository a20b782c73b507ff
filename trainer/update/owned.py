"""Whose a run's folder is, where several processes train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from gyre.trainer.update.folder import RunFolder
from gyre.trainer.update.ranks import Ranks


@contextmanager
def owned(folder: RunFolder, ranks: Ranks, *, resume: bool) -> Iterator[None]:
    """The main process's, as long as the block lasts; the others go on once it has it.

    Raises:
        TrainError: it has another run, or none to go on with, or is somebody else's. Nothing is overwritten.
    """
    if ranks.is_main:
        folder.require(resume=resume)
    with folder.locked() if ranks.is_main else nullcontext():
        if ranks.is_main:
            folder.require(resume=resume)
        ranks.barrier()
        yield
