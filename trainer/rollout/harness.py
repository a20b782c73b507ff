"""How each harness is pointed at the proxy: its arguments, its environment, the files that it reads.

Pure: a `Setting` in, a `Launch` out. Checked with Claude Code 2.1.220, Codex 0.171.0, OpenCode 1.18.33,
Qwen Code 0.24.4 and mini-swe-agent 2.4.6. Arguments of the user's stand after ours and before the
instruction, so that they win.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

_OPENCODE_OUTPUT = 32_000
_OPENCODE_CONTEXT = 200_000
_PLACE = re.compile(
    r"\{(base_url|anthropic_url|model|instruction|instruction_file|workspace|execution|api_key)\}"
)


class Harness(StrEnum):
    """The agents that gyre knows how to point at itself."""

    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    OPENCODE = "opencode"
    QWEN_CODE = "qwen-code"
    MINI_SWE_AGENT = "mini-swe-agent"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an execution tells its harness."""

    execution: str
    base_url: str
    """With `/v1`."""
    key: str
    model: str
    instruction: str
    instruction_file: Path
    workspace: Path
    home: Path
    context: int | None = None
    """Tokens that the model can take in; None: not known."""

    @property
    def anthropic_url(self) -> str:
        return self.base_url.removesuffix("/v1")


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A harness ready to start."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """Below its home: name -> text."""
    stdin: Path | None = None
    """A file; None: nothing."""


@dataclass(frozen=True)
class Preset:
    """What is known of a harness."""

    program: str
    install: str
    launch: Callable[[Setting, str, Sequence[str]], Launch]
    """(setting, program, arguments of the user's)"""


def command(setting: Setting, argv: Sequence[str]) -> Launch:
    """A program of the user's own, with what stands in braces filled in.

    Whoever may list processes sees its arguments, and so `{api_key}`; the environment says the same.
    """
    values = {
        "base_url": setting.base_url,
        "anthropic_url": setting.anthropic_url,
        "model": setting.model,
        "instruction": setting.instruction,
        "instruction_file": str(setting.instruction_file),
        "workspace": str(setting.workspace),
        "execution": setting.execution,
        "api_key": setting.key,
    }
    return Launch(argv=[_PLACE.sub(lambda found: values[found[1]], word) for word in argv])


def wants(argv: Sequence[str], name: str) -> bool:
    """Whether a command has the place `{name}`."""
    return any(found[1] == name for word in argv for found in _PLACE.finditer(word))


def common_env(setting: Setting) -> dict[str, str]:
    """What every harness finds, also one that gyre does not know."""
    return {
        "OPENAI_BASE_URL": setting.base_url,
        "OPENAI_API_KEY": setting.key,
        "ANTHROPIC_BASE_URL": setting.anthropic_url,
        "ANTHROPIC_API_KEY": setting.key,
        "GYRE_EXECUTION": setting.execution,
    }


def _claude_code(setting: Setting, program: str, more: Sequence[str]) -> Launch:
    argv = [program, "-p", "--output-format", "json", "--dangerously-skip-permissions"]
    argv += ["--model", setting.model, *more, "--", setting.instruction]
    env = {
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_TELEMETRY": "1",
        # Or it refuses to go without permissions as root.
        "IS_SANDBOX": "1",
    }
    # Sub-agents and side calls ask for models by these names.
    env |= {f"ANTHROPIC_DEFAULT_{name}_MODEL": setting.model for name in ("OPUS", "SONNET", "HAIKU")}
    if setting.context:
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(setting.context)
    return Launch(argv=argv, env=env)


def _codex(setting: Setting, program: str, more: Sequence[str]) -> Launch:
    argv = [program, "exec", "--json", "--skip-git-repo-check"]
    argv += ["--dangerously-bypass-approvals-and-sandbox", *more, "--", setting.instruction]
    window = f"model_context_window = {setting.context}\n" if setting.context else ""
    config = f"""\
model = {json.dumps(setting.model)}
model_provider = "gyre"
check_for_update_on_startup = false
{window}
[model_providers.gyre]
name = "gyre"
base_url = {json.dumps(setting.base_url)}
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""
    return Launch(argv=argv, files={".codex/config.toml": config})


def _opencode(setting: Setting, program: str, more: Sequence[str]) -> Launch:
    context = setting.context or _OPENCODE_CONTEXT
    limit = {"context": context, "output": min(_OPENCODE_OUTPUT, context // 2)}
    config = {
        "model": f"gyre/{setting.model}",
        "small_model": f"gyre/{setting.model}",
        "permission": "allow",
        "share": "disabled",
        "autoupdate": False,
        "provider": {
            "gyre": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "gyre",
                "options": {"baseURL": setting.base_url, "apiKey": "{env:OPENAI_API_KEY}"},
                "models": {setting.model: {"name": setting.model, "limit": limit}},
            }
        },
    }
    env = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    files = {
        ".config/opencode/opencode.json": json.dumps(config, indent=2) + "\n",
        # Or it fetches 5 MB of packages into each new home, which nothing here needs.
        ".config/opencode/.npmrc": "offline=true\n",
    }
    return Launch(
        argv=[program, "run", "--format", "json", *more],
        env=env,
        files=files,
        # Of what stands in its arguments it makes something else: quotation marks, numbers.
        stdin=setting.instruction_file,
    )


def _qwen_code(setting: Setting, program: str, more: Sequence[str]) -> Launch:
    argv = [program, "--yolo", "--auth-type", "openai", "--output-format", "json"]
    argv += [*more, f"--prompt={setting.instruction}"]
    generation = {"contextWindowSize": setting.context} if setting.context else {}
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "model": {"generationConfig": generation},
    }
    env = {"OPENAI_MODEL": setting.model}
    return Launch(argv=argv, env=env, files={".qwen/settings.json": json.dumps(settings, indent=2) + "\n"})


def _mini_swe_agent(setting: Setting, program: str, more: Sequence[str]) -> Launch:
    argv = [program, "--exit-immediately", "--yolo", "--cost-limit", "0"]
    argv += ["--model", f"openai/{setting.model}", "--output", str(setting.home / "trajectory.json")]
    argv += [*more, f"--task={setting.instruction}"]
    env = {
        "OPENAI_API_BASE": setting.base_url,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        # Or a list of prices is fetched.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return Launch(argv=argv, env=env)


PRESETS = {
    Harness.CLAUDE_CODE: Preset("claude", "npm i -g @anthropic-ai/claude-code@2.1.220", _claude_code),
    Harness.CODEX: Preset("codex", "npm i -g @openai/codex@0.171.0", _codex),
    Harness.OPENCODE: Preset("opencode", "npm i -g opencode-ai@1.18.33", _opencode),
    Harness.QWEN_CODE: Preset("qwen", "npm i -g @qwen-code/qwen-code@0.24.4", _qwen_code),
    Harness.MINI_SWE_AGENT: Preset("mini", "pip install mini-swe-agent==2.4.6", _mini_swe_agent),
}


REWRITES = frozenset((Harness.OPENCODE, Harness.QWEN_CODE))
"""Those that write arguments of tool calls anew. The proxy puts back what was sampled, so that a turn goes
on from the tokens of the one before."""
