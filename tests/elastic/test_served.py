"""The link that engines read their model from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gyre.elastic.engines.served import point


def test_engines_that_start_at_once_all_have_it(tmp_path: Path) -> None:
    folder, served = tmp_path / "model", tmp_path / "services" / "served"
    folder.mkdir()
    with ThreadPoolExecutor(8) as pool:
        for made in [pool.submit(point, served, folder) for _ in range(400)]:
            made.result()
    assert served.resolve() == folder.resolve()
    assert [path.name for path in served.parent.iterdir()] == ["served"]
