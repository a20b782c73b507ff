"""One engine for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.server.rig import Running, run_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Running]:
    with run_engine() as running:
        yield running
