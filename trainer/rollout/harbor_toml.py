"""`task.toml` as Harbor writes it: what of it gyre reads, and which names may be misspelt.

Harbor adds keys over time, so a key that is not known here is no error. One that differs from a known
key by a letter or two is a note.
"""

from __future__ import annotations

import difflib
import tomllib
from typing import Any

import msgspec


class Package(msgspec.Struct):
    """`[task]`"""

    name: str = ""


class Agent(msgspec.Struct):
    """`[agent]`"""

    timeout_sec: float | None = None
    user: str | int | None = None
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class Environment(msgspec.Struct):
    """`[environment]` and `[verifier.environment]`"""

    docker_image: str | None = None
    os: str = "linux"
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    network_mode: str = "public"
    allow_internet: bool | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    mcp_servers: list[dict[str, Any]] = []
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None


class Verifier(msgspec.Struct):
    """`[verifier]`"""

    timeout_sec: float = 600.0
    env: dict[str, str] = {}
    user: str | int | None = None
    environment_mode: str | None = None
    environment: Environment | None = None
    collect: list[dict[str, Any]] = []
    network_mode: str | None = None
    allowed_hosts: list[str] | None = None


class TaskToml(msgspec.Struct):
    """The whole file."""

    schema_version: str = ""
    version: str = ""
    """What `schema_version` was called before it had that name."""
    task: Package = msgspec.field(default_factory=Package)
    metadata: dict[str, Any] = {}
    agent: Agent = msgspec.field(default_factory=Agent)
    verifier: Verifier = msgspec.field(default_factory=Verifier)
    environment: Environment = msgspec.field(default_factory=Environment)
    solution: dict[str, Any] = {}
    steps: list[dict[str, Any]] = []
    artifacts: list[Any] = []
    source: str | None = None


_TABLES: dict[str, type[msgspec.Struct]] = {
    "agent": Agent,
    "verifier": Verifier,
    "environment": Environment,
}
_ALSO_KNOWN = {
    "": ("multi_step_reward_strategy",),
    "environment": (
        *("build_timeout_sec", "cpus", "memory_mb", "storage_mb", "memory", "storage", "gpu_types"),
        "allowed_hosts",
    ),
}
"""Keys of Harbor that gyre has no use for."""


def parse_toml(text: str) -> tuple[TaskToml, list[str]]:
    """The file, and notes about it.

    Raises:
        ValueError: it is no TOML, or a value is of the wrong type; the message says which.
    """
    document = tomllib.loads(text)
    try:
        parsed = msgspec.convert(document, TaskToml)
    except msgspec.ValidationError as problem:
        raise ValueError(_with_key(str(problem))) from None
    _require_limits(parsed)
    return parsed, [*_newer(parsed), *_misspelt(document)]


def _with_key(message: str) -> str:
    """``... - at `$.agent.timeout_sec` `` -> `` `agent.timeout_sec`: ...``"""
    what, _, where = message.partition(" - at `$.")
    return f"`{where.rstrip('`')}`: {what[:1].lower()}{what[1:]}" if where else message


def _require_limits(parsed: TaskToml) -> None:
    limits = {
        "agent.timeout_sec": parsed.agent.timeout_sec,
        "verifier.timeout_sec": parsed.verifier.timeout_sec,
    }
    for key, seconds in limits.items():
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ValueError(f"`{key}` is {seconds}, which is no number of seconds above 0")


def _newer(parsed: TaskToml) -> list[str]:
    version = parsed.schema_version or parsed.version
    if version.partition(".")[0] in ("", "0", "1"):
        return []
    return [f"`schema_version` is {version}, newer than what gyre knows (1.x)"]


def _misspelt(document: dict[str, Any]) -> list[str]:
    notes = _near("", document, TaskToml)
    for table, kind in _TABLES.items():
        if isinstance(document.get(table), dict):
            notes += _near(table, document[table], kind)
    return notes


def _near(table: str, found: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    known = [*kind.__struct_fields__, *_ALSO_KNOWN.get(table, ())]
    place = f"[{table}] " if table else ""
    return [
        f"`{place}{key}` is no key of Harbor's; did you mean `{near[0]}`?"
        for key in found
        if key not in known and (near := difflib.get_close_matches(key, known, 1, cutoff=0.8))
    ]
