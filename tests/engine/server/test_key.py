"""An engine with a key: what asks without it learns nothing and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from gyre.elastic.engine.settings import EngineSettings
from tests.engine.server.rig import USER, Running, run_engine

KEY = "a-key-for-tests"
ROUTES = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("POST", "/tokenize"),
    ("POST", "/pause?mode=abort"),
    ("POST", "/resume"),
    ("GET", "/weight_info"),
    ("POST", "/update_weights"),
    ("POST", "/update_weight_version"),
    ("POST", "/abort_requests"),
    ("POST", "/reset_prefix_cache"),
    ("POST", "/kv/export"),
    ("GET", "/load"),
    ("GET", "/metrics"),
    ("GET", "/no-such-route"),
]


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with run_engine(key=KEY) as running:
        yield running


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_without_it_nothing_is_answered(locked: Running, method: str, route: str) -> None:
    for headers in ({}, {"authorization": "Bearer other"}, {"authorization": KEY}, {"x-api-key": ""}):
        answer = locked.client.request(method, route, headers=headers, content=b"{}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert KEY not in answer.text
    assert not locked.engine.stats.publications


@pytest.mark.parametrize("headers", [{"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}])
def test_with_it_all_is_as_ever(locked: Running, headers: dict[str, str]) -> None:
    body = {"messages": USER, "max_tokens": 2}
    assert locked.client.post("/v1/chat/completions", json=body, headers=headers).status_code == 200
    assert locked.client.get("/weight_info", headers=headers).json()["weight_version"] == "7"


def test_health_is_told_to_all(locked: Running) -> None:
    assert httpx.get(f"{locked.url}/health").status_code == 200


def test_settings_do_not_show_it() -> None:
    assert KEY not in repr(EngineSettings(model="tiny", key=KEY))
