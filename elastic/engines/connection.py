"""The control routes of one engine over HTTP; whatever goes wrong names the engine and the route."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx

from gyre.proxy.errors import EngineError

_ANSWER_S = 30.0
_GLANCE_S = 2.0
_SHOWN = 300


class Connection:
    def __init__(
        self,
        engine: str,
        url: str,
        *,
        missing: str = "",
        output: str = "its output",
        key: str | None = None,
    ) -> None:
        """`missing` says what to do when a route is not there, `output` where its own words are."""
        self._engine = engine
        self.url = url.rstrip("/").removesuffix("/v1")
        self._missing = missing or "is it the engine that `engine.kind` says?"
        self._output = output
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def ask(
        self,
        method: str,
        route: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = _ANSWER_S,
    ) -> dict[str, Any]:
        """The JSON object that it answers; of anything else an empty one.

        Raises:
            EngineError: it is not there, does not answer in time, or refuses.
        """
        answer = self._send(method, route, body, timeout_s)
        if answer.status_code == 404 or answer.status_code == 405:
            raise EngineError(f"engine `{self._engine}` has no {method} {self._place(route)}", self._missing)
        if not answer.is_success:
            raise EngineError(
                f"engine `{self._engine}` answers {answer.status_code} to {method} {self._place(route)}: "
                f"{_reason(answer)}",
                f"see {self._output}",
            )
        document = _document(answer)
        return document if isinstance(document, dict) else {}

    def healthy(self, route: str = "/health") -> bool | None:
        """Whether it says that it serves; None when it says nothing, as one that is very busy may."""
        try:
            return self._request("GET", route, None, _GLANCE_S).is_success
        except httpx.ConnectError:
            return False
        except httpx.HTTPError:
            return None

    def _send(
        self, method: str, route: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        try:
            return self._request(method, route, body, timeout_s)
        except httpx.TimeoutException as problem:
            raise EngineError(
                f"engine `{self._engine}` does not answer {method} {self._place(route)} "
                f"within {timeout_s:g} s",
                f"see {self._output}; `engine.publish_timeout` is how long a publication may take",
            ) from problem
        except (httpx.HTTPError, httpx.InvalidURL) as problem:
            raise EngineError(
                f"engine `{self._engine}` is not reached: {method} {self._place(route)}: {problem}",
                f"see {self._output}",
            ) from problem

    def _request(
        self, method: str, route: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> httpx.Response:
        url = self.url + route
        # Certificates are read only where they are needed: that takes longer than all the rest.
        verify = url.startswith("https:")
        return httpx.request(
            method,
            url,
            json=body,
            headers=self._headers,
            timeout=timeout_s,
            trust_env=False,
            verify=verify,
        )

    def _place(self, route: str) -> str:
        return f"`{self.url}{route}`"


def _document(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except json.JSONDecodeError:
        return None


def _reason(answer: httpx.Response) -> str:
    """What it says is wrong, wherever it says so."""
    document = _document(answer)
    if isinstance(document, dict):
        for key in ("error", "message", "detail"):
            said = document.get(key)
            said = said.get("message") if isinstance(said, dict) else said
            if said:
                return str(said)[:_SHOWN]
    return answer.text[:_SHOWN] or "(nothing)"
