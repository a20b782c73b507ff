"""The path of a model that engines read again and again: a symbolic link, so that it is never half new."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def point(served: Path, folder: Path) -> None:
    """Make `served` a link to `folder`, at once."""
    served.parent.mkdir(parents=True, exist_ok=True)
    # Engines of a run are started by threads of one process.
    unfinished = served.with_name(f".{served.name}.{os.getpid()}.{threading.get_native_id()}")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(folder.resolve(), target_is_directory=True)
    unfinished.replace(served)
