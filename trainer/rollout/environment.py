"""What a harness finds around it, and a scorer that is confined: a home, an environment, an instruction."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

from gyre.trainer.rollout.harness import Launch, Setting, common_env


def environment(setting: Setting, launch: Launch, temporary: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Nothing of ours but PATH: no key, no setting and no proxy of the user's changes an execution.

    `more` wins over everything: what a task or the user sets.
    """
    plain = plain_env(setting.home, temporary, setting.workspace)
    # Should the user hand on a proxy for the world outside: we are not there.
    plain["NO_PROXY"] = "127.0.0.1,localhost,::1"
    return {**plain, **common_env(setting), **launch.env, **more}


def plain_env(home: Path, temporary: Path, workdir: Path) -> dict[str, str]:
    """What any program expects; of ours only PATH."""
    user = pwd.getpwuid(os.getuid()).pw_name
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PWD": str(workdir),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }


def furnish(setting: Setting, launch: Launch) -> None:
    """Write what the harness reads.

    Raises:
        OSError: it cannot be written.
    """
    setting.home.mkdir(parents=True, exist_ok=True)
    setting.instruction_file.write_text(setting.instruction, encoding="utf-8")
    for name, text in launch.files.items():
        path = setting.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
