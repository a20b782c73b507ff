"""Harbor's agents, each trial with a URL of its own: an execution in gyre's log is then called like it.

    PYTHONPATH=examples/harbor harbor run -a own_url:QwenCode --base-url http://HOST:8400 ...

Needs Harbor, and nothing of gyre.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from harbor.agents.installed.claude_code import ClaudeCode as _ClaudeCode
from harbor.agents.installed.codex import Codex as _Codex
from harbor.agents.installed.mini_swe_agent import MiniSweAgent as _MiniSweAgent
from harbor.agents.installed.opencode import OpenCode as _OpenCode
from harbor.agents.installed.qwen_code import QwenCode as _QwenCode


class OwnUrl:
    """Before an agent's class: makes the proxy's URL that of the trial."""

    AFTER = "/v1"
    """What the harness expects at the end of its base URL."""

    def __init__(self, logs_dir: Path, *, base_url: str, **others: Any) -> None:
        # A trial's folder has its name, and `agent/` in it is where its logs go.
        trial = re.sub(r"[^A-Za-z0-9._-]", "-", logs_dir.parent.name)[:128]
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/x/{trial}{self.AFTER}"
        super().__init__(logs_dir=logs_dir, base_url=url, **others)


class ClaudeCode(OwnUrl, _ClaudeCode):
    AFTER = ""


class Codex(OwnUrl, _Codex):
    pass


class OpenCode(OwnUrl, _OpenCode):
    pass


class QwenCode(OwnUrl, _QwenCode):
    pass


class MiniSweAgent(OwnUrl, _MiniSweAgent):
    pass
