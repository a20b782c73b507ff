"""Where logs and trees of a test lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.builders import LogBuilder


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path / "logs")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "trees"
