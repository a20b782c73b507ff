"""What a harness finds around it: a home of its own, an empty environment, its instruction."""

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
    user = pwd.getpwuid(os.getuid()).pw_name
    plain = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(setting.home),
        "TMPDIR": str(temporary),
        "PWD": str(setting.workspace),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        # Should the user hand on a proxy for the world outside: we are not there.
        "NO_PROXY": "127.0.0.1,localhost,::1",
    }
    return {**plain, **common_env(setting), **launch.env, **more}


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
