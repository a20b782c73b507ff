"""`gyre doctor`: what can be captured from an engine, what cannot, and what helps."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gyre.cli import output

if TYPE_CHECKING:
    from gyre.proxy.diagnosis import Diagnosis

SCHEMA = 1
ALL_WELL = "all token ids can be captured"
IDS_MISSING = "token ids are missing: calls without them are recorded and cannot be trained on"


class Profile(StrEnum):
    """How the engine is to be asked; `auto` asks it what it is."""

    AUTO = "auto"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"
    GYRE = "gyre"
    TEXT = "text"


def doctor(
    url: Annotated[str, typer.Argument(help="The engine, or a gyre proxy in front of it.")],
    model: Annotated[str | None, typer.Option(help="Model to ask; the first one it names.")] = None,
    profile: Annotated[Profile, typer.Option(help="What kind of engine it is.")] = Profile.AUTO,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the API key.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for an answer.")] = 120,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Ask an engine three calls (plain, stream, tool) and say what can be captured exactly.

    Exit code 1 when token ids are missing or an answer has no recognisable content.
    """
    import httpx

    from gyre.proxy.capture.profiles import Engine
    from gyre.proxy.doctor import diagnose

    engine = None if profile == Profile.AUTO else Engine(profile.value)
    with httpx.Client(timeout=timeout, headers=_authorization(key_env)) as client:
        diagnosis = diagnose(client, url, model=model, engine=engine)
    if json:
        output.print_json(to_json(diagnosis))
    else:
        show(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)


def _authorization(key_env: str | None) -> dict[str, str]:
    if key_env is None:
        return {}
    if not (key := os.environ.get(key_env)):
        output.fail(f"the environment variable `{key_env}` is not set", "it should hold the engine's API key")
    return {"authorization": f"Bearer {key}"}


def show(diagnosis: Diagnosis) -> None:
    rows = [(f.what, f.grade.value, f.detail) for f in diagnosis.findings]
    title = f"{diagnosis.url}  engine {diagnosis.engine.value}, model {diagnosis.model}"
    output.print_table(title, ["what", "captured", "detail"], rows)
    print()
    for finding in diagnosis.findings:
        if finding.remedy:
            print(f"{finding.what}: {finding.remedy}")
    print()
    print(ALL_WELL if diagnosis.ok else IDS_MISSING)


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "url": diagnosis.url,
        "engine": diagnosis.engine.value,
        "model": diagnosis.model,
        "ok": diagnosis.ok,
        "findings": [
            {"what": f.what, "captured": f.grade.value, "detail": f.detail, "remedy": f.remedy}
            for f in diagnosis.findings
        ],
        "calls": [
            {
                "call": p.kind.value,
                "status": p.status,
                "problem": p.problem,
                "capture_quality": p.quality.value,
                "logprob_quality": p.logprobs.value,
                "capture_flags": p.flags,
                "prompt_tokens": None if p.prompt_ids is None else len(p.prompt_ids),
                "sampled_tokens": p.sampled,
                "versions": p.versions,
                "weight_digests": dict(p.digests),
            }
            for p in diagnosis.probes
        ],
    }
