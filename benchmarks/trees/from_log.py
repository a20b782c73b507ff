"""Executions from their log on disk to trees on disk, with every default; prints what it cost as JSON.

A process of its own: its start and its imports are told apart from the build.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Sequence

_STARTED_S = time.process_time()
"""What Python itself took until here."""


def cpu_s() -> float:
    """User and system time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main(arguments: Sequence[str]) -> None:
    log, out = arguments
    from gyre.treebuilder import build_trees

    imported_s = cpu_s()
    build_trees(log, out)
    built_s = cpu_s()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    parts = {"start_s": _STARTED_S, "import_s": imported_s - _STARTED_S, "build_s": built_s - imported_s}
    print(json.dumps(parts | {"peak_bytes": peak}))


if __name__ == "__main__":
    main(sys.argv[1:])
