"""What a run asks of a proxy: its control API from the other side."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from gyre.proxy.errors import ConfigError, UpstreamError
from gyre.proxy.identity import execution_key
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.live import TOKEN_ENV, proxy_url

_TIMEOUT_S = 60.0
_AGAIN_S = 0.5
_CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=20.0)
"""A proxy keeps them for 75 s."""
_ASKING = "gyre-run"
"""The execution under which we ask for models ourselves."""


class GoneError(UpstreamError):
    """No proxy listens there."""


class RefusedError(UpstreamError):
    """It will say the same however often it is asked."""


class OtherError(UpstreamError):
    """What was said of one attempt would be of another."""


@dataclass(frozen=True)
class Model:
    """One that an engine serves."""

    name: str
    context: int | None
    """Tokens that it can take in, where the engine says it."""


class Control:
    """A proxy, by its URL and, where it writes on this machine, by its log.

    When it is started anew on the same log it is found again, also on another port.
    """

    def __init__(self, url: str, logs: Path | None = None, token: str | None = None) -> None:
        """`token`: the proxy's, unless it stands in the environment."""
        self.url = url.rstrip("/").removesuffix("/v1")
        self.logs = logs
        self.token = token or os.environ.get(TOKEN_ENV)
        # Without TLS the list of authorities is not read, which takes longer than all the rest.
        secure = self.url.startswith("https:")
        self._client = httpx.Client(
            timeout=_TIMEOUT_S, trust_env=False, limits=_CONNECTIONS, verify=secure, headers=self._headers()
        )
        weakref.finalize(self, self._client.close)

    def _headers(self) -> dict[str, str]:
        return {"x-gyre-token": self.token} if self.token else {}

    def base_url(self, execution: str) -> str:
        """What a harness is given as OPENAI_BASE_URL."""
        return f"{self.url}/x/{execution}/v1"

    def key(self, execution: str) -> str:
        """The API key of a harness: it names the execution, and opens it where the proxy has a token."""
        return execution_key(execution, self.token)

    def model(self, name: str = "") -> Model:
        """What the engine says of the model of that name, or of its only one.

        Raises:
            ConfigError: it has several.
            UpstreamError: it does not say.
        """
        answer = self.ask("GET", f"/x/{_ASKING}/v1/models")
        listed = [each for each in (answer or {}).get("data") or () if isinstance(each, dict)]
        found = [each for each in listed if each.get("id") and name in ("", each["id"])]
        if name and not found:
            return Model(name, None)
        if not found:
            raise UpstreamError(
                f"the engine behind `{self.url}` does not say its models", "give `--model NAME`"
            )
        if len(found) > 1:
            known = ", ".join(f"`{each['id']}`" for each in found[:20])
            raise ConfigError(f"the engine has several models: {known}", "give `--model NAME`")
        window = found[0].get("max_model_len")
        return Model(found[0]["id"], window if isinstance(window, int) else None)

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, patience_s: float = 0.0
    ) -> dict[str, Any] | None:
        """Its answer; None when it does not know what `path` names.

        For `patience_s` it is asked again while it is not there or says that it cannot now.

        Raises:
            GoneError: nobody listens.
            OtherError: it would take it for something else.
            RefusedError: it refuses.
            UpstreamError: it fails.
        """
        end = time.monotonic() + patience_s
        while True:
            try:
                answer = self._send(method, path, body)
                if answer.status_code != 503 or time.monotonic() >= end:
                    return self._read(answer)
            except GoneError:
                if time.monotonic() >= end:
                    raise
            time.sleep(_AGAIN_S)

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        try:
            return self._client.request(method, self.url + path, json=body)
        except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as problem:
            if (moved := self._moved()) is not None:
                self.url = moved
                return self._send(method, path, body)
            raise GoneError(f"no proxy answers at `{self.url}`", "start it again: gyre proxy") from problem
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise UpstreamError(f"the proxy at `{self.url}` does not answer: {problem}") from problem

    def _moved(self) -> str | None:
        """Where the log's proxy listens now, if that is another place."""
        found = proxy_url(Folder(self.logs)) if self.logs else None
        return found if found != self.url else None

    def _read(self, answer: httpx.Response) -> dict[str, Any] | None:
        if answer.status_code == 404:
            return None
        if answer.status_code == 409:
            raise OtherError(f"the proxy at `{self.url}` refuses: {answer.text[:200]}")
        if answer.status_code != 200:
            hint = f"set {TOKEN_ENV} to the proxy's token" if answer.status_code in (401, 403) else ""
            said = f"the proxy at `{self.url}` answers {answer.status_code}: {answer.text[:200]}"
            raise (RefusedError if answer.status_code < 500 else UpstreamError)(said, hint)
        document = answer.json()
        assert isinstance(document, dict)
        return document


def execution_route(name: str) -> str:
    return f"/gyre/v1/executions/{quote(name, safe='')}"
