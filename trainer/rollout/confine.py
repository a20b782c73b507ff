"""Harnesses and scorers under bubblewrap: they see this machine and change nothing but their folders.

    the whole file system      to be read only
    /tmp, /dev/shm             a folder of the execution's own, which is both
    /dev, /proc, /run          its own, and read only; processes, IPC and host name as well
    the user's home, the run   hidden, but for what it takes to run the program
    workspace, home            to be written

The network is the machine's, since the proxy listens there: what else listens on it can be reached as well.
Nothing here protects from holes in the kernel; for that there are containers and virtual machines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gyre.proxy.errors import GyreError
from gyre.trainer.rollout.judge import last_line

PROGRAM = "bwrap"
TEMPORARY, SHARED = Path("/tmp"), Path("/dev/shm")
OWN_PROCESSES = 2
"""Of bubblewrap itself: one waits outside, one is the first process inside."""
_PROBE_S = 20.0
_BASE = (
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"),
    # Root would keep its powers, and could mount the world anew.
    *("--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
    # It lies in memory that nobody counts.
    *("--remount-ro", "/dev"),
    # Switches of the kernel; where bubblewrap leaves them open to root.
    *("--ro-bind-try", "/proc/sys", "/proc/sys"),
    *("--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"),
)
_RESOLVER = Path("/etc/resolv.conf")
_EMPTY = (Path("/run"), Path("/var/tmp"))
"""Sockets of services, and what others leave lying about."""


class ConfinementError(GyreError, RuntimeError):
    """Harnesses cannot be confined here."""


@dataclass(frozen=True, kw_only=True)
class Cage:
    """What a program may see and change. Of paths in paths the inner one counts."""

    workdir: Path
    writable: Sequence[Path]
    temporary: Path
    """What it finds at `/tmp`, and at `/dev/shm`: shared memory is counted as files are."""
    hidden: Sequence[Path] = ()
    readable: Sequence[Path] = ()
    """Though they lie in what is hidden."""


def confined(argv: Sequence[str], cage: Cage) -> list[str]:
    """The command that runs `argv` in it. Pure, but for where links lead."""
    words = [PROGRAM, *_BASE]
    mounts = sorted(_mounts(cage))
    for _, kind, source, target in mounts:
        words += ["--tmpfs", target] if kind == _HIDDEN else [_FLAGS[kind], source, target]
    for _, kind, _, target in mounts:
        # What is written there would be neither kept nor counted.
        words += ["--remount-ro", target] if kind == _HIDDEN else []
    return [*words, "--chdir", str(cage.workdir), "--", *argv]


_HIDDEN, _READABLE, _WRITABLE = range(3)
_FLAGS = {_READABLE: "--ro-bind-try", _WRITABLE: "--bind"}


def _mounts(cage: Cage) -> Iterator[tuple[int, int, str, str]]:
    """(depth, kind, source, target); sorted, what lies in another stands after it."""
    for path in (TEMPORARY, SHARED):
        yield len(path.parts), _WRITABLE, str(cage.temporary), str(path)
    hidden = [*_EMPTY, *(real(path) for path in cage.hidden)]
    for path in dict.fromkeys(hidden):
        if path.is_dir() and path != Path("/"):
            yield len(path.parts), _HIDDEN, "", str(path)
    for kind, paths in ((_READABLE, [*cage.readable, _RESOLVER]), (_WRITABLE, cage.writable)):
        for path in dict.fromkeys(map(real, paths)):
            # What is hidden as a whole stays so, whoever names it.
            covered = any(path.is_relative_to(each) for each in (*hidden, TEMPORARY, SHARED))
            shows = covered and path not in hidden
            if kind == _WRITABLE or shows:
                yield len(path.parts), kind, str(path), str(path)


def process_limit(most: int, wrapped: bool) -> int:
    """For whoever counts all processes, where the program may have so many; 0: any."""
    return most + OWN_PROCESSES if most and wrapped else most


def real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def require_confinement(unsafe_local: bool, tell: Callable[[str], None] = lambda _: None) -> bool:
    """Whether harnesses are confined: wherever they can be. Where not, that is told.

    Raises:
        ConfinementError: they cannot, and the user has not said that they may go without.
    """
    why = why_not()
    if why and not unsafe_local:
        raise ConfinementError(
            f"agents would run commands of the model on this machine unconfined: {why}",
            "install bubblewrap (`apt install bubblewrap`), or allow it: `--unsafe-local`, or "
            "`unsafe_local = true` in the run file",
        )
    if why:
        tell(f"agents and scorers run unconfined, with your rights: {why}")
    return not why


@cache
def why_not() -> str:
    """Why bubblewrap cannot be used here; empty when it can."""
    if shutil.which(PROGRAM) is None:
        return "`bwrap` (bubblewrap) is not installed"
    try:
        ran = subprocess.run(
            [PROGRAM, *_BASE, "--", "/bin/sh", "-c", ":"], capture_output=True, timeout=_PROBE_S
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return f"`bwrap` does not work here: {problem}"
    said = last_line(ran.stderr.decode(errors="replace"))
    return f"`bwrap` does not work here: {said or f'exit code {ran.returncode}'}" if ran.returncode else ""
