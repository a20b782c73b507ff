"""Everything the proxy can be told, from a TOML file, the environment and flags.

Precedence: defaults < file < flags. An unknown key is an error that names the nearest known one.
Secrets never stand here: a backend names the environment variable that holds its key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec

from gyre.proxy.errors import ConfigError

EngineName = Literal["auto", "vllm", "sglang", "llamacpp", "gyre", "text"]
Translate = Literal["auto", "always", "never"]
Durability = Literal["interval", "always", "off"]
LOOPBACK = ("127.0.0.1", "::1", "localhost")
MiB = 1 << 20

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Bytes = Annotated[int, msgspec.Meta(gt=0)]


class Backend(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One addressable engine."""

    url: str
    """Base URL without `/v1`, for example `http://127.0.0.1:8000`."""
    name: str = ""
    """How metrics, rows and the control API call it; host and port unless given."""
    profile: EngineName = "auto"
    """What the engine can say about tokens; `auto` asks it."""
    key_env: str | None = None
    """Environment variable with the API key sent upstream in place of the client's."""
    models: dict[str, str] = {}
    """Model names as clients say them -> as this engine says them."""
    translate: Translate = "auto"
    """Whether Messages and Responses reach this engine as chat/completions, which is how token ids come of
    them: `auto` unless the profile is `text`, `always` for a hosted API that has only chat, `never`."""
    cell: str | None = None
    """The elastic cell this engine belongs to; a column of the log."""
    version: str | None = None
    """Policy version it serves, where the engine does not say so itself."""
    draining: bool = False
    """Whether it gets no calls until the control API says otherwise."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds; which one fired is recorded."""

    connect: Seconds = 10.0
    first_byte: Seconds = 1800.0
    idle: Seconds = 600.0
    """Silence between two reads of a started answer."""
    total: Seconds = 7200.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may be held in memory, in bytes unless said otherwise."""

    body: Bytes = 256 * MiB
    """One request body, after decompression; more is answered 413."""
    answer: Bytes = 512 * MiB
    """One plain answer; a longer one passes through and is flagged."""
    event: Bytes = 64 * MiB
    """One streamed event; a longer one passes through and is flagged."""
    memory: Bytes = 2048 * MiB
    """All bodies and held answers together, per worker; beyond it new calls wait."""
    hold_s: Annotated[float, msgspec.Meta(ge=0)] = 45.0
    """How long a call waits for a backend before it is refused; agents tolerate 45 s of silence."""
    hold_calls: Annotated[int, msgspec.Meta(ge=0)] = 4096
    """Calls that may wait at once, per worker."""


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    durability: Durability = "interval"
    """When a journal reaches the disk itself: `interval`, `always` (before each answer ends) or `off`."""
    sync_s: Seconds = 1.0
    """The interval of `interval`."""
    rotate_bytes: Bytes = 64 * MiB
    rotate_s: Seconds = 600.0
    """A journal segment is sealed into Parquet when it is this large or this old."""


MOST_TOP_K = 2**31 - 1
"""As engines hold it."""


class Pin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling forced on every call; unset fields are left to the client."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=MOST_TOP_K)] | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration of `gyre proxy`."""

    logs: str = ""
    """Log folder."""
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8400
    """0 takes a free port."""
    workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    backends: list[Backend] = []
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    log: Log = Log()
    pin: Pin = Pin()
    restore_arguments: bool = False
    """Send arguments of tool calls as they were sampled, where the harness wrote them anew with the same
    meaning, so that the engine sees the tokens it produced. Translated calls always are."""
    replay_retries: bool = False
    """Answer an SDK's marked retry of a call that was already answered with the stored answer."""
    shutdown_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """How long a graceful shutdown waits for open calls."""
    token_env: str = "GYRE_PROXY_TOKEN"
    """Environment variable with the token that every request must show; needed off loopback."""


def load_settings(path: Path | None, flags: dict[str, Any]) -> ProxySettings:
    """Read `path` (TOML) and lay `flags` over it; a flag of None is not given.

    Raises:
        ConfigError: unreadable file, unknown key, wrong type, or an unsafe combination.
    """
    raw = _read_toml(path) if path else {}
    for key, value in flags.items():
        if value is not None:
            _lay(raw, key, value)
    return _checked(_convert(raw))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read `{path}`: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"`{path}` is not TOML: {error}") from error


def _lay(raw: dict[str, Any], key: str, value: Any) -> None:
    table, _, name = key.rpartition(".")
    holder = raw.setdefault(table, {}) if table else raw
    if isinstance(holder, dict):  # what else stands there is refused with all of its kind
        holder[name] = value


def _convert(raw: dict[str, Any]) -> ProxySettings:
    _refuse_unknown(raw, ProxySettings, "")
    try:
        return msgspec.convert(raw, ProxySettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration: {str(error).replace('`$.', '`')}") from error


_TABLES: dict[str, type[msgspec.Struct]] = {
    "timeouts": Timeouts,
    "limits": Limits,
    "log": Log,
    "pin": Pin,
    "backends": Backend,
}


def _refuse_unknown(raw: dict[str, Any], kind: type[msgspec.Struct], where: str) -> None:
    known = kind.__struct_fields__
    for key, value in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean `{where}{near[0]}`?" if near else f"known keys: {', '.join(known)}"
            raise ConfigError(f"unknown key `{where}{key}`", hint)
        if not where and key in _TABLES:
            for table in value if isinstance(value, list) else [value]:
                if isinstance(table, dict):
                    _refuse_unknown(table, _TABLES[key], f"{key}.")


def _checked(settings: ProxySettings) -> ProxySettings:
    if not settings.logs:
        raise ConfigError("no log folder given", "pass `--logs DIR`")
    if not settings.backends:
        raise ConfigError("no engine given", "pass `--upstream URL`, as often as there are engines")
    if settings.host not in LOOPBACK and not os.environ.get(settings.token_env):
        raise ConfigError(
            f"`{settings.host}` is reachable from other machines and no token is set",
            f"set the environment variable `{settings.token_env}`, or bind 127.0.0.1",
        )
    backends = [checked_backend(backend) for backend in settings.backends]
    if len({b.name for b in backends}) < len(backends):
        raise ConfigError("two backends have the same name", "give each a `name`")
    return msgspec.structs.replace(settings, backends=backends)


def checked_backend(backend: Backend) -> Backend:
    """`backend` with a name and a base URL in its plain form.

    Raises:
        ConfigError: a URL that cannot be used, or that holds a secret.
    """
    try:
        url = urlsplit(backend.url)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if usable and "@" in url.netloc:
        # The URL is shown in metrics, rows and logs.
        raise ConfigError(f"the URL of `{url.hostname}` holds a password", "name its variable in `key_env`")
    if not usable or url.query or url.fragment:
        shown = backend.url.partition("?")[0]
        raise ConfigError(f"`{shown}` is not the base URL of an engine", "like http://127.0.0.1:8000")
    plain = backend.url.rstrip("/").removesuffix("/v1")
    return msgspec.structs.replace(backend, url=plain, name=backend.name or url.netloc)
