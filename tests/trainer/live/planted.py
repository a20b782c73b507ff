"""`gyre train RUN.toml` in a process of several, of which the last one fails in its first update.

python -m tests.trainer.live.planted RUN.toml
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gyre.cli.main import main
from gyre.trainer.data.tree import TrainTree
from gyre.trainer.errors import TrainError
from gyre.trainer.update.report import UpdateReport
from gyre.trainer.update.streamed import Streamed


def fail(self: Streamed, trees: Sequence[TrainTree]) -> list[UpdateReport]:
    raise TrainError("as planted")


if __name__ == "__main__":
    if os.environ["RANK"] == "1":
        Streamed.add = fail  # type: ignore[method-assign]
    main(["train", *sys.argv[1:]])
