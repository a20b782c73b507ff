"""A command of which torchrun started several processes. The main one speaks for all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gyre.cli import output
from gyre.proxy.errors import GyreError

if TYPE_CHECKING:
    from gyre.trainer.update.ranks import Ranks


def failed(ranks: Ranks, error: GyreError, *, main_first_s: float = 0.0) -> None:
    """The end of one that has an error, unless there is but one.

    main_first_s: how long the others leave the main process to tell of an error that all have met, and to
    end: torchrun then ends them.
    """
    if ranks.size > 1:
        if not ranks.is_main:
            time.sleep(main_first_s)
        output.print_error(error)
        ranks.leave(1)
