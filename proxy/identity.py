"""Who is calling: pure functions from path and headers to an `Identity`.

Strongest signal first: URL prefix, API key, our header, native headers of the harnesses, body hints.
Weaker signals that name another execution do not win; the row is flagged `identity_conflict`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import xxhash

from gyre.proxy.calls import Identity
from gyre.proxy.errors import RequestError

LONGEST = 128
NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}}")
KEY_PREFIX = "gyre-x-"
_PROOF = "~"
"""In no name."""
HEADER = "x-gyre-execution"

BODY_HINTS = frozenset(("prompt_cache_key", "metadata"))
"""Fields of a request's top level that may name the session."""
Headers = Mapping[str, str]
"""Lower-case names; the last of repeated headers."""


def checked_name(name: str, source: str) -> str:
    """`name` if it can stand in paths and queries.

    Raises:
        RequestError: status 400, naming the bad name and where it came from.
    """
    if not NAME.fullmatch(name):
        raise RequestError(
            f"execution name `{name[:140]}` from {source} is not allowed",
            code="invalid_execution_name",
            hint="use letters, digits, `.`, `_`, `-`; at most 128, first a letter or digit",
        )
    return name


def split_path(path: str) -> tuple[str | None, str]:
    """`/x/<execution>/v1/...` -> (execution, `/v1/...`); other paths are returned as they are.

    Raises:
        RequestError: a name from which a path could be formed, or no path at all.
    """
    if not path.startswith("/"):
        raise RequestError(f"`{path[:140]}` is not a path", code="invalid_path")
    if not path.startswith("/x/"):
        return None, path
    name, slash, rest = path[3:].partition("/")
    return checked_name(name, "the URL"), slash + rest or "/"


def api_key(headers: Headers) -> str | None:
    bearer = headers.get("authorization", "")
    if bearer[:7].lower() == "bearer ":
        return bearer[7:].strip()
    return headers.get("x-api-key")


def execution_key(name: str, token: str | None) -> str:
    """The API key of an execution. Where the proxy has a token, it opens the calls of that execution only."""
    proof = _PROOF + hmac.digest(token.encode(), name.encode(), "sha256").hex() if token else ""
    return f"{KEY_PREFIX}{name}{proof}"


def identify(
    url_name: str | None, headers: Headers, body: Mapping[str, msgspec.Raw] | None = None
) -> Identity:
    """Resolve the caller. `body` is the top level of a JSON request, for the weakest hints.

    Raises:
        RequestError: a name from which a path could be formed.
    """
    key = api_key(headers)
    named: list[tuple[str, str]] = []
    if url_name:
        named.append((url_name, "url"))
    if key and key.startswith(KEY_PREFIX):
        named.append((checked_name(key.removeprefix(KEY_PREFIX).partition(_PROOF)[0], "the API key"), "key"))
    if HEADER in headers:
        named.append((checked_name(headers[HEADER], f"header `{HEADER}`"), "header"))
    session, session_source = _session(headers, body)
    agent, agent_source = _first(headers, "x-claude-code-agent-id", "thread-id")
    parent, parent_source = _first(
        headers, "x-claude-code-parent-agent-id", "x-codex-parent-thread-id", "x-parent-session-id"
    )
    if not named:
        named.append(_unnamed(session, key))
    (execution, source), others = named[0], named[1:]
    return Identity(
        execution_id=execution,
        execution_source=source,
        session_id=session,
        session_source=session_source,
        agent_id=agent,
        agent_source=agent_source,
        parent_agent_id=parent,
        parent_agent_source=parent_source,
        retry_count=_number(headers.get("x-stainless-retry-count")),
        client=headers.get("user-agent"),
        hints=_hints(headers),
        flags=["identity_conflict"] if any(name != execution for name, _ in others) else [],
    )


def _unnamed(session: str | None, key: str | None) -> tuple[str, str]:
    """The native session is the execution; without one, callers with one key share a name."""
    if session and NAME.fullmatch(session):
        return session, "session"
    return f"unnamed-{xxhash.xxh3_64_hexdigest((key or '').encode())}", "none"


def _session(headers: Headers, body: Mapping[str, msgspec.Raw] | None) -> tuple[str | None, str | None]:
    value, source = _first(headers, "x-claude-code-session-id", "x-session-id", "session-id", "session_id")
    if value or not body:
        return value, source
    try:
        if "prompt_cache_key" in body:
            return msgspec.json.decode(body["prompt_cache_key"], type=str), "prompt_cache_key"
        if "metadata" in body:
            user = msgspec.json.decode(body["metadata"], type=_Metadata).user_id
            return (_session_of(user), "metadata.user_id") if _session_of(user) else (None, None)
    except msgspec.DecodeError:
        pass
    return None, None


class _Metadata(msgspec.Struct):
    user_id: str = ""


def _session_of(user: str) -> str | None:
    """Claude Code writes JSON there; before that it was text that ends in `_session_<id>`."""
    if not user.startswith("{"):
        return user.rpartition("_session_")[2] if "_session_" in user else None
    try:
        session = msgspec.json.decode(user, type=dict[str, Any]).get("session_id")
    except msgspec.DecodeError:
        return None
    return session if isinstance(session, str) and session else None


def _first(headers: Headers, *names: str) -> tuple[str | None, str | None]:
    for name in names:
        if name in headers:
            return headers[name], name
    return None, None


_HINTS = (
    "x-codex-turn-metadata",
    "x-codex-window-id",
    "x-openai-subagent",
    "x-client-request-id",
    "idempotency-key",
)


def _hints(headers: Headers) -> dict[str, Any]:
    return {name: headers[name] for name in _HINTS if name in headers}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 10 else None
