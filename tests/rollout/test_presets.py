"""How each harness is pointed at the proxy. That they understand it is tested with the real programs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from gyre.trainer.rollout.harness import PRESETS, Harness, Launch, Setting, command, common_env, wants
from gyre.trainer.rollout.job import Options

TOLD = '- "quoted" {workspace}\nand more'


def setting(**more: Any) -> Setting:
    usual: dict[str, Any] = {
        "execution": "e1",
        "base_url": "http://127.0.0.1:8400/x/e1/v1",
        "key": "gyre-x-e1",
        "model": 'org/"m"',
        "instruction": TOLD,
        "instruction_file": Path("/runs/e1/instruction.md"),
        "workspace": Path("/runs/e1/workspace"),
        "home": Path("/runs/e1/home"),
    }
    return Setting(**usual | more)


def launch(harness: Harness, *arguments: str, **more: Any) -> Launch:
    return PRESETS[harness].launch(setting(**more), "/bin/program", arguments)


@pytest.mark.parametrize("harness", Harness)
def test_every_harness_has_a_preset_that_pins_what_it_was_checked_with(harness: Harness) -> None:
    preset = PRESETS[harness]
    assert preset.install.rpartition("@" if "npm" in preset.install else "==")[2][0].isdigit()
    assert launch(harness).argv[0] == "/bin/program"


@pytest.mark.parametrize("harness", Harness)
def test_arguments_of_the_user_stand_after_ours_and_before_the_instruction(harness: Harness) -> None:
    argv = list(launch(harness, "--theirs", "x").argv)
    assert argv.count("--theirs") == 1
    rest = argv[argv.index("--theirs") + 1 :]
    assert rest[0] == "x" and len(rest) <= 3
    assert launch(harness).argv == [word for word in argv if word not in ("--theirs", "x")]


@pytest.mark.parametrize("harness", Harness)
def test_the_instruction_reaches_it_unchanged(harness: Harness) -> None:
    made = launch(harness)
    if made.stdin is not None:
        assert made.stdin == Path("/runs/e1/instruction.md")
    else:
        assert made.argv[-1].removeprefix("--prompt=").removeprefix("--task=") == TOLD


@pytest.mark.parametrize("harness", Harness)
def test_no_key_is_written_to_a_file(harness: Harness) -> None:
    assert "gyre-x-e1" not in "".join(launch(harness).files.values())


def test_claude_code_asks_for_one_model_whatever_the_agent() -> None:
    made = launch(Harness.CLAUDE_CODE, context=50_000)
    assert made.argv[made.argv.index("--model") + 1] == 'org/"m"'
    assert {made.env[f"ANTHROPIC_DEFAULT_{name}_MODEL"] for name in ("OPUS", "SONNET", "HAIKU")} == {
        'org/"m"'
    }
    assert made.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "50000"
    assert "CLAUDE_CODE_AUTO_COMPACT_WINDOW" not in launch(Harness.CLAUDE_CODE).env
    assert common_env(setting())["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8400/x/e1"


def test_codex_reads_its_provider_from_a_file() -> None:
    config = tomllib.loads(launch(Harness.CODEX, context=50_000).files[".codex/config.toml"])
    assert (config["model"], config["model_provider"], config["model_context_window"]) == (
        'org/"m"',
        "gyre",
        50_000,
    )
    provider = config["model_providers"]["gyre"]
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8400/x/e1/v1", "responses")
    assert provider["env_key"] in common_env(setting())
    assert "model_context_window" not in launch(Harness.CODEX).files[".codex/config.toml"]


def test_opencode_reads_its_provider_from_a_file() -> None:
    config = json.loads(launch(Harness.OPENCODE, context=50_000).files[".config/opencode/opencode.json"])
    assert config["model"] == config["small_model"] == 'gyre/org/"m"'
    provider = config["provider"]["gyre"]
    assert provider["options"] == {
        "baseURL": "http://127.0.0.1:8400/x/e1/v1",
        "apiKey": "{env:OPENAI_API_KEY}",
    }
    assert provider["models"]['org/"m"']["limit"] == {"context": 50_000, "output": 25_000}


def test_qwen_code_is_told_by_its_environment_and_what_fits_by_a_file() -> None:
    made = launch(Harness.QWEN_CODE, context=50_000)
    assert made.env["OPENAI_MODEL"] == 'org/"m"'
    settings = json.loads(made.files[".qwen/settings.json"])
    assert settings["model"] == {"generationConfig": {"contextWindowSize": 50_000}}


def test_mini_swe_agent_asks_for_the_model_by_its_librarys_name() -> None:
    made = launch(Harness.MINI_SWE_AGENT)
    assert made.argv[made.argv.index("--model") + 1] == 'openai/org/"m"'
    assert made.env["OPENAI_API_BASE"] == "http://127.0.0.1:8400/x/e1/v1"


def test_a_command_is_filled_in_once() -> None:
    made = command(setting(), ["agent", "{instruction}", "{base_url}/{unknown}", "{}"])
    assert made.argv == ["agent", TOLD, "http://127.0.0.1:8400/x/e1/v1/{unknown}", "{}"]
    assert (made.env, made.files, made.stdin) == ({}, {}, None)
    assert wants(["a", "x{model}"], "model") and not wants(["{instruction}"], "model")


def test_those_who_write_arguments_anew_are_known() -> None:
    made = [harness for harness in Harness if Options(runs=Path("runs"), harness=harness).restores]
    assert made == [Harness.OPENCODE, Harness.QWEN_CODE]
    assert not Options(runs=Path("runs"), command=["agent"]).restores
