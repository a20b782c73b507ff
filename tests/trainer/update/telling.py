"""Processes of which the first tells the others: `python -m tests.trainer.update.telling FOLDER`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gyre.trainer.settings import Device
from gyre.trainer.update.processes import start

ENVIRONMENT = "import json, os; print(json.dumps(sorted(os.environ)))"


def main(folder: Path) -> None:
    ranks = start(Device.CPU)
    heard = [ranks.share((ranks.rank, "first")), ranks.share((ranks.rank, "second"))]
    child = subprocess.check_output([sys.executable, "-c", ENVIRONMENT], text=True)
    found = {"heard": heard, "names": json.loads(child)}
    (folder / f"{ranks.rank}.json").write_text(json.dumps(found))
    ranks.leave(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
