"""Record a real agent run, rebuild it as a tree; then let agents make a small model better.

    make demo

What happens here is what a user would do, in order: `gyre engine`, `gyre proxy`, an agent with its
base URL changed (story.py), then `gyre log` on what was recorded and `gyre-trees` on what that was. At the
end `gyre train` does all of that by itself, again and again, with the quickstart's model.
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

LOGS, TREES, RUN = Path("demo-logs"), Path("demo-trees"), Path("demo-run")
QUICKSTART = Path(__file__).parents[1] / "quickstart"
EXECUTION = "demo-1"
COMMANDS = Path(sys.executable).parent
SHARED = """\
SELECT count(*) AS calls, sum(prompt_tokens) AS prompt, sum(prompt_shared) AS shared,
       sum(len(output_ids)) AS sampled, sum(prompt_shared) / sum(prompt_tokens) AS shared_share
FROM calls"""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are ended too
    for folder in (LOGS, TREES, RUN):
        shutil.rmtree(folder, ignore_errors=True)
    with server("engine", "--runtime", "llamacpp") as engine:
        with server("proxy", "--upstream", engine, "--logs", str(LOGS), "--port", "0") as proxy:
            asyncio.run(write_story(f"{proxy}/x/{EXECUTION}/v1", model="smollm2"))
        show("gyre", "log", "calls", str(LOGS))
        show("gyre", "log", "sql", str(LOGS), SHARED)
        show("gyre", "log", "check", "--engine", engine, str(LOGS))
    show("gyre", "log", "score", str(LOGS), "--execution", EXECUTION, "--score", "0.1")
    show("gyre-trees", "build", str(LOGS), "-o", str(TREES))
    show("gyre-trees", "verify", str(TREES))
    show("gyre-trees", "show", str(TREES), EXECUTION)
    show("python", str(QUICKSTART / "tasks.py"), "tiny")
    show("gyre", "train", str(QUICKSTART / "demo.toml"), "--out", str(RUN))


@contextmanager
def server(*command: str) -> Iterator[str]:
    """A gyre server for the length of the block; gives its URL, which `--json` prints when it is up."""
    announce("gyre", *command)
    gyre = str(COMMANDS / "gyre")
    process = subprocess.Popen([gyre, *command, "--json"], stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            sys.exit(f"`gyre {command[0]}` did not start")
        yield json.loads(line)["url"]
    finally:
        process.terminate()
        process.communicate()
    if process.returncode:
        sys.exit(f"`gyre {command[0]}` ended with exit code {process.returncode}")


def show(*command: str) -> None:
    announce(*command)
    if code := subprocess.call([str(COMMANDS / command[0]), *command[1:]]):
        sys.exit(code)


def announce(*command: str) -> None:
    words = [f'"{word}"' if " " in word else word for word in command]
    print(f"\n$ {' '.join(words)}", flush=True)


if __name__ == "__main__":
    main()
