"""One vLLM for all tests here: it takes half a minute to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.vllm.server import VllmServer


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tmp_path_factory.mktemp("vllm")) as server:
        yield server
