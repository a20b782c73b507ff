"""Who may ask: programs of this machine, no page of elsewhere in its browser."""

from __future__ import annotations

import httpx
import pytest

from tests.engine.server.rig import Running


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "127.0.0.1.evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"host": "10.0.0.7"},
        {"host": "[", "origin": "http://["},
    ],
)
def test_pages_and_names_of_elsewhere_are_refused(engine: Running, headers: dict[str, str]) -> None:
    for path in ("/pause?mode=abort", "/v1/chat/completions", "/update_weights"):
        answer = httpx.post(engine.url + path, content="{}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_local")
    assert httpx.get(engine.url + "/is_paused").json()["is_paused"] is False


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000"])
def test_loopback_names_are_served(engine: Running, host: str) -> None:
    headers = {"host": host, "origin": f"http://{host}"}
    assert httpx.get(engine.url + "/health", headers=headers).status_code == 200
