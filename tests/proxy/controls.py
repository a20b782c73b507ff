"""A control API without a server: requests go to the application of a worker in this process.

The recorder is not started, since that and closing it seal in a process of their own; it opens its
journal at the first event.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from gyre.proxy.calls import ExecutionRecord
from gyre.proxy.control.api import control_app
from gyre.proxy.control.plane import LocalPlane
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.record.journal import open_new
from gyre.proxy.log.record.recorder import Recorder
from gyre.proxy.settings import load_settings
from gyre.proxy.worker import Worker

URL = "http://127.0.0.1:9001"


class Control:
    """`control("PUT", "executions/e1", {...})`; paths that begin with `/` are taken as they are."""

    def __init__(self, logs: Path, *urls: str, **flags: Any) -> None:
        flags["backends"] = [{"url": url} for url in urls or (URL,)]
        self.logs = logs
        self.settings = load_settings(None, {"logs": str(logs), **flags})
        self._descriptors: list[int] = []
        self._full = False

    def __enter__(self) -> Control:
        self._runner = asyncio.Runner()
        self._runner.__enter__()
        self._runner.run(self._start())
        return self

    async def _start(self) -> None:
        create_folder(self.logs)
        self.worker = Worker(self.settings)
        self.worker.recorder = Recorder(self.logs, self.worker.name, self.settings.log, self._open)
        app = control_app(self.worker, LocalPlane(self.worker))
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runner.run(self._client.aclose())
        self._runner.__exit__(kind, error, trace)
        for descriptor in set(self._descriptors):
            # One that was rotated away is closed already.
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def __call__(self, method: str, path: str, body: Any = None, **options: Any) -> httpx.Response:
        url = f"http://proxy{path if path.startswith('/') else '/gyre/v1/' + path}"
        return self._runner.run(self._client.request(method, url, json=body, **options))

    def ok(self, method: str, path: str, body: Any = None) -> Any:
        return self(method, path, body).raise_for_status().json()

    def events(self) -> list[ExecutionRecord]:
        """What stands in the journal, in commit order."""
        records = [r for path in (self.logs / "journal").iterdir() for r in scan(path, Damage())]
        found = [record for record in records if isinstance(record, ExecutionRecord)]
        return sorted(found, key=lambda record: record.order)

    def fill_disk(self) -> None:
        """Writes to what is open, and opening anew, fail as on a full disk."""
        self._full = True
        full = os.open("/dev/full", os.O_WRONLY)
        for descriptor in self._descriptors:
            os.dup2(full, descriptor)
        os.close(full)

    def _open(self, path: Path) -> int:
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._descriptors.append(open_new(path))
        return self._descriptors[-1]
