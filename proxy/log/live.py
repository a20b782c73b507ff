"""Talking to the proxy that writes a log, when one runs.

It leaves its URL, and its process id with the time it began, in `proxy.json`. A file of a dead proxy means
nothing.
"""

from __future__ import annotations

import json
import os
from typing import Any

import httpx

from gyre.proxy.errors import UpstreamError
from gyre.proxy.log.folder import Folder
from gyre.proxy.process import lives

TOKEN_ENV = "GYRE_PROXY_TOKEN"
_TIMEOUT_S = 120.0


def ask_proxy(
    folder: Folder, route: str, body: dict[str, Any] | None = None, *, method: str = "POST"
) -> dict[str, Any] | None:
    """Ask the control API; None when no proxy runs or it does not know the route or what that names.

    Raises:
        UpstreamError: it runs and refuses or fails.
    """
    url = proxy_url(folder)
    if url is None:
        return None
    token = os.environ.get(TOKEN_ENV)
    headers = {"x-gyre-token": token} if token else {}
    try:
        answer = httpx.request(
            method, url + route, json=body, headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )
    except httpx.ConnectError:
        return None
    except httpx.HTTPError as problem:
        raise UpstreamError(f"the proxy at `{url}` does not answer: {problem}") from problem
    if answer.status_code == 404:
        return None
    if answer.status_code != 200:
        hint = f"set {TOKEN_ENV} to the proxy's token" if answer.status_code in (401, 403) else ""
        raise UpstreamError(f"the proxy at `{url}` answers {answer.status_code}: {answer.text[:200]}", hint)
    document: dict[str, Any] = answer.json()
    return document


def proxy_url(folder: Folder) -> str | None:
    """Where the log's proxy listens, if it runs."""
    try:
        told = json.loads(folder.proxy_file.read_bytes())
        url, pid, begun = str(told["url"]), int(told["pid"]), told.get("born")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return url if lives(pid, begun) else None
