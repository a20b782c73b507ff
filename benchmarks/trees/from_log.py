"""Executions from their log on disk to trees on disk, with every default; prints what it cost as JSON.

A process of its own: its start and its imports are told apart from the build.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Sequence

_STARTED_S = time.process_time()
"""What Python itself took until here."""


def cpu_s() -> tuple[float, float]:
    """User and system time of this process and of its children that have ended; and the latter alone."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    system = sum(usage.ru_stime for usage in usages)
    return sum(usage.ru_utime for usage in usages) + system, system


def main(arguments: Sequence[str]) -> None:
    log, out = arguments
    from benchmarks.processes import high_water
    from gyre.proxy.log.record.lean import without_pandas

    without_pandas()  # gyre does not need it, but where it is installed pyarrow imports it
    from gyre.treebuilder import build_trees

    before, before_system = cpu_s()
    build_trees(log, out)
    after, after_system = cpu_s()
    parts = {"start_s": _STARTED_S, "import_s": before - _STARTED_S}
    parts |= {"build_s": after - before, "system_s": after_system - before_system}
    print(json.dumps(parts | {"peak_bytes": high_water(os.getpid())}))


if __name__ == "__main__":
    main(sys.argv[1:])
