"""The engine from its settings to a URL, and to its end."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from gyre.elastic.engine.server.app import serve
from gyre.elastic.engine.settings import EngineSettings
from gyre.proxy.errors import EngineError


def refusal(**fields: Any) -> EngineError:
    with pytest.raises(EngineError) as caught, serve(EngineSettings(**{"model": "tiny", **fields})):
        pass
    return caught.value


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_only_loopback_addresses_are_listened_on(host: str) -> None:
    assert f"`{host}`" in str(refusal(host=host))


def test_a_port_in_use_is_named_before_a_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in str(refusal(port=port, model="no model at all"))


def test_what_is_no_model_is_named() -> None:
    assert "no-model" in str(refusal(model="no-model"))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_it_answers_within_the_block_and_not_after_it(host: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    with serve(EngineSettings(model="tiny", host=host, ctx=512)) as engine:
        assert engine.model == "tiny"
        assert httpx.get(f"{engine.url}/v1/models").json()["data"][0]["max_model_len"] == 512
        body = {"prompt": "Once", "max_tokens": 3}
        answer = httpx.post(f"{engine.url}/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 3
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{engine.url}/health")
