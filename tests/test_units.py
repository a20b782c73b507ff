"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
import typer

from gyre.cli.units import bytes_of, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("30m", 1800),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1d", 86400),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 h", "h", "1h30", "-1", "0", "nan", "inf", "2w"])
def test_what_is_no_duration_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--timeout"):
        seconds_of(text, "--timeout")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1000", 1000),
        ("1KB", 1024),
        ("500 MB", 500 << 20),
        ("8gb", 8 << 30),
        ("1.5G", 3 << 29),
        ("2TB", 2 << 40),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text, "--workspace-limit") == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "8XB", "much", "8 GB more"])
def test_what_is_no_size_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="--workspace-limit"):
        bytes_of(text, "--workspace-limit")
