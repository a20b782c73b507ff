"""What a task needs of its container, and what of that a folder on this machine can give.

A task runs without a container when its Dockerfile only copies files and when nothing of it names a path
that a container has and this machine has not. Anything else is a reason, in words, why it cannot: a
task that ran in the wrong surroundings would have a score that means nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gyre.trainer.rollout.harbor_toml import TaskToml

_PLAIN_IMAGES = ("scratch", "alpine", "bash", "busybox", "debian", "fedora", "python", "ubuntu")
"""Images of Docker's own library that hold nothing of a task; what they have is expected of this machine."""
_WITHOUT_EFFECT = ("CMD", "ENTRYPOINT", "EXPOSE", "LABEL", "MAINTAINER", "STOPSIGNAL")
_WORKDIR = PurePosixPath("/app")
"""Harbor's habit, where a Dockerfile says nothing."""
_INSTALLS = re.compile(r"(?:^|[\s;&|(])(apt|apt-get|apk|dnf|yum)\s+(?:-\S+\s+)*(add|install|update)\b")
_MOST_BYTES = 1_000_000
"""Of a file that is searched for paths; larger ones are data."""


class Start(NamedTuple):
    """A file or folder that the workspace starts with."""

    source: Path
    target: str
    """Below the workspace; `""` for a folder whose content is the workspace's."""
    into: bool
    """Whether a file keeps its name below `target`."""


@dataclass(slots=True)
class Local:
    """How a task is run without a container, or why it is not."""

    reason: str | None = None
    starts: list[Start] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: PurePosixPath = _WORKDIR


def without_container(folder: Path, toml: TaskToml) -> Local:
    """How the task in `folder` runs on this machine; reads its files, writes nothing."""
    reason = _declared(toml)
    local = Local(reason) if reason else _environment(folder / "environment")
    if toml.environment.workdir and not local.reason:
        local.workdir = PurePosixPath(toml.environment.workdir)
    if not local.reason:
        local.reason = _names_container_paths(folder, local.workdir)
    return local


def _declared(toml: TaskToml) -> str | None:
    """What task.toml asks for that only a container has."""
    environment, verifier = toml.environment, toml.verifier
    wants = {
        "it has several steps, which only Harbor runs": toml.steps,
        f"its image is `{environment.docker_image}`": environment.docker_image,
        f"it is for {environment.os}": environment.os.lower() != "linux",
        "it asks for accelerators": environment.gpus or environment.tpu,
        "it limits the network": environment.network_mode != "public"
        or environment.allow_internet is False
        or {toml.agent.network_mode, verifier.network_mode} - {None, "public"},
        "it starts MCP servers": environment.mcp_servers,
        "it brings skills": environment.skills_dir,
        "it has a health check": environment.healthcheck,
        "it runs as another user": toml.agent.user is not None or verifier.user is not None,
        "its verifier has an environment of its own": verifier.environment is not None
        or verifier.environment_mode == "separate",
        "it collects from services": verifier.collect,
    }
    return next((reason for reason, wanted in wants.items() if wanted), None)


def _environment(folder: Path) -> Local:
    dockerfile = folder / "Dockerfile"
    for name in ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml", ".dockerignore"):
        if (folder / name).exists():
            return Local(f"it has `environment/{name}`")
    if dockerfile.is_file():
        return _from_dockerfile(dockerfile)
    if folder.is_dir() and any(folder.iterdir()):
        return Local(starts=[Start(folder, "", False)])
    return Local()


def _from_dockerfile(path: Path) -> Local:
    local = Local()
    workdir, bases = PurePosixPath("/"), 0
    copies: list[tuple[PurePosixPath, list[str], str]] = []
    for number, line in _instructions(path.read_text(errors="replace")):
        word, _, rest = line.partition(" ")
        cannot = f"`environment/Dockerfile` line {number} needs a container: `{line[:80]}`"
        match word.upper():
            case "FROM":
                bases += 1
                if bases > 1 or not _is_plain(rest):
                    return Local(cannot)
            case "WORKDIR" if "$" not in rest:
                workdir = workdir / rest.strip()
            case "ENV" if (pairs := _pairs(rest)) is not None:
                local.env |= pairs
            case "COPY" if (paths := _paths(rest)) is not None:
                copies.append((workdir, paths[:-1], paths[-1]))
            case other if other not in _WITHOUT_EFFECT:
                return Local(cannot)
    local.workdir = workdir if workdir != PurePosixPath("/") else _WORKDIR
    for where, sources, target in copies:
        local.reason = local.reason or _place(path.parent, where, sources, target, local)
    return local


def _instructions(text: str) -> Iterator[tuple[int, str]]:
    """Line numbers and whole instructions; comments left out, continued lines joined."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        first = first or number
        begun += " " * bool(begun) + stripped.removesuffix("\\").rstrip()
        if not stripped.endswith("\\"):
            yield first, begun
            begun, first = "", 0
    if begun:
        yield first, begun


def _is_plain(image: str) -> bool:
    name = image.split()[0] if image.split() else ""
    return name.partition("@")[0].partition(":")[0] in _PLAIN_IMAGES


def _pairs(rest: str) -> dict[str, str] | None:
    """`A=1 B="two words"`; None for forms that only a build can work out."""
    try:
        words = shlex.split(rest)
    except ValueError:
        return None
    if "$" in rest or not all("=" in word for word in words):
        return None
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _paths(rest: str) -> list[str] | None:
    """Sources and target of a copy; None for forms that only a build can work out."""
    try:
        words = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
    except ValueError:
        return None
    while words and words[0].startswith(("--chown=", "--chmod=")):
        words = words[1:]
    odd = any(word.startswith(("--", "<<")) or "$" in word for word in words)
    return None if odd or len(words) < 2 else words


def _place(
    environment: Path, where: PurePosixPath, sources: list[str], target: str, local: Local
) -> str | None:
    """Add one copy to what the workspace starts with; a reason when it does not lie in it."""
    whole = where / target
    if not whole.is_relative_to(local.workdir) or ".." in whole.parts:
        return f"`environment/Dockerfile` copies to `{whole}`, outside of `{local.workdir}`"
    below = str(whole.relative_to(local.workdir))
    below = "" if below == "." else below
    for pattern in sources:
        found = _matching(environment, pattern)
        if not found:
            return f"`environment/Dockerfile` copies `{pattern}`, which is not in `environment/`"
        into = target.endswith("/") or below == "" or len(sources) > 1 or len(found) > 1
        local.starts += [Start(source, below, into and source.is_file()) for source in found]
    return None


def _matching(environment: Path, pattern: str) -> list[Path]:
    """The sources in the build's folder, and nothing outside of it."""
    relative = pattern.lstrip("/").removeprefix("./").rstrip("/")
    found = [environment] if relative in ("", ".") else sorted(environment.glob(relative))
    return [path for path in found if path.resolve().is_relative_to(environment.resolve())]


def _names_container_paths(folder: Path, workdir: PurePosixPath) -> str | None:
    """The first line of instruction or tests that only makes sense in a container."""
    names = sorted({"app", "logs", "solution", "tests", workdir.parts[1] if workdir.parts[1:] else "app"})
    path = re.compile(rf"(?<![\w.$}})/:-])/(?:{'|'.join(map(re.escape, names))})(?![\w-])")
    tests = sorted(file for file in (folder / "tests").rglob("*") if file.is_file())
    for file in (folder / "instruction.md", *tests):
        for number, line in _lines(file):
            where = f"`{file.relative_to(folder)}` line {number}"
            if (named := path.search(line)) and "GYRE_" not in line:
                return f"{where} names `{named[0]}`, which only a container has"
            if (installs := _INSTALLS.search(line)) and file in tests:
                return f"{where} installs packages: `{installs[0].strip()}`"
    return None


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    if not file.is_file() or file.stat().st_size > _MOST_BYTES:
        return
    data = file.read_bytes()
    if b"\0" not in data:
        yield from enumerate(data.decode(errors="replace").splitlines(), 1)
