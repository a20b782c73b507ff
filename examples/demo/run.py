"""Record a real agent run: engine, proxy, an agent that knows nothing of either, and its log.

    make demo

Everything here is what a user would type, in order: `gyre engine`, `gyre proxy`, then an agent with
its base URL changed, then `gyre log` on what was recorded.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from story import write_story

LOGS = Path("demo-logs")
GYRE = str(Path(sys.executable).with_name("gyre"))

CALLS = """\
SELECT agent_text, prompt_tokens, prompt_shared, output_tokens
FROM calls"""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    shutil.rmtree(LOGS, ignore_errors=True)
    with server("engine", "--model", "smollm2") as engine:
        with server("proxy", "--upstream", engine, "--logs", str(LOGS), "--port", "0") as proxy:
            asyncio.run(write_story(f"{proxy}/x/demo-1/v1", model="smollm2"))
        show("log", "calls", str(LOGS))
        show("log", "sql", str(LOGS), CALLS)
        show("log", "check", "--engine", engine, str(LOGS))


@contextmanager
def server(*command: str) -> Iterator[str]:
    """A gyre server for the length of the block; gives its URL, which `--json` prints when it is up."""
    process = subprocess.Popen([GYRE, *command, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            sys.exit(f"`gyre {command[0]}` did not start")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.wait(timeout=30)


def show(*command: str) -> None:
    """Run a gyre command as a user would, and show that command."""
    words = [f'"{word}"' if " " in word else word for word in command]
    print(f"\n$ gyre {' '.join(words)}", flush=True)
    subprocess.run([GYRE, *command], check=True)


if __name__ == "__main__":
    main()
