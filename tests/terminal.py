"""A program that believes in a person: its stderr is a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path


def in_terminal(*argv: str, at: str = "", then: Callable[[], None] = lambda: None) -> tuple[str, str]:
    """(stdout, what stood on the screen in the course of time) of a program whose stderr is a terminal.

    `then` is done once when `at` is seen.
    """
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"} | {"PYTHONUTF8": "1"}
    for name in ("NO_COLOR", "GYRE_NO_PROGRESS"):
        env.pop(name, None)
    root = Path(__file__).parents[1]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True, cwd=root)
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        waits = bool(at)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                return
            if not part:
                return
            seen.extend(part)
            if waits and at in seen.decode(errors="replace"):
                waits = False
                then()

    reader = threading.Thread(target=read)
    reader.start()
    out, _ = process.communicate()
    reader.join()
    os.close(ours)
    return out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
