"""A small HTTP server that answers control routes as it is told, and remembers what it was asked.

with ControlServer({"POST /resume": (200, {"status": "resumed"})}) as server:
    ...
    assert server.asked == [("POST /resume", None)]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

Answer = tuple[int, Any]
"""Status, and what is sent as JSON; a text as it is."""
Route = Answer | Callable[[Any], Answer]
"""Or what answers a body."""


class ControlServer:
    """`routes` may be changed while it runs; a route without its query answers for those with any."""

    def __init__(self, routes: Mapping[str, Route], port: int = 0) -> None:
        self.routes = dict(routes)
        self.asked: list[tuple[str, Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, route: str, body: Any) -> Answer:
        self.asked.append((route, body))
        found = self.routes.get(
            route, self.routes.get(route.partition("?")[0], (404, {"detail": "Not Found"}))
        )
        return found(body) if callable(found) else found

    def __enter__(self) -> ControlServer:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("GET")

            def do_POST(self) -> None:
                self._answer("POST")

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def _answer(self, method: str) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, said = server.answer(f"{method} {self.path}", json.loads(raw) if raw else None)
                body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        return Handler


class VllmControl(ControlServer):
    """As vLLM 0.32 answers with VLLM_SERVER_DEV_MODE=1; `running`: whether answers are being sampled."""

    def __init__(self, port: int = 0) -> None:
        self.version = "default"
        self.folder = ""
        self.running = False
        self.extended = False
        self.device = "cuda"
        super().__init__(
            {
                "GET /server_info": lambda _: (
                    200,
                    {"vllm_config": {"device_config": {"device_type": self.device}}},
                ),
                "GET /health": (200, ""),
                "POST /pause": (200, {"status": "paused"}),
                "POST /resume": (200, {"status": "resumed"}),
                "POST /collective_rpc": self.reload,
                "POST /reset_prefix_cache?reset_running_requests=false": lambda _: (
                    200,
                    {"success": not self.running},
                ),
                "POST /reset_prefix_cache?reset_running_requests=true": (200, {"success": True}),
                "POST /update_weight_version": self._rename,
                "GET /weight_info": lambda _: (200, {"weight_version": self.version}),
            },
            port,
        )

    def reload(self, body: Any) -> Answer:
        if body == {"method": "gyre_can_reload"}:
            return (200, {"results": ["yes"]}) if self.extended else (500, {"error": {"message": "no such"}})
        assert body["method"] == ("gyre_reload" if self.extended else "reload_weights")
        self.folder = body["kwargs"]["weights_path"]
        return 200, {"results": [None]}

    def _rename(self, body: Any) -> Answer:
        self.version = body["new_version"]
        return 200, {"success": True, "new_version": self.version}


class SglangControl(ControlServer):
    """As SGLang 0.5.23 answers; texts and statuses are those of its `http_server.py`."""

    def __init__(self) -> None:
        self.version = "default"
        self.folder = ""
        self.running = False
        flushed = (
            "Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )
        super().__init__(
            {
                "GET /health": (200, ""),
                "POST /pause_generation": (
                    200,
                    {"message": "Generation paused successfully.", "status": "ok"},
                ),
                "POST /continue_generation": (
                    200,
                    {"message": "Generation continued successfully.", "status": "ok"},
                ),
                "POST /update_weights_from_disk": self._update,
                "POST /flush_cache": lambda _: (400 if self.running else 200, flushed),
                "POST /update_weight_version": self._rename,
                "GET /model_info": lambda _: (
                    200,
                    {"model_path": self.folder, "is_generation": True, "weight_version": self.version},
                ),
            }
        )

    def _update(self, body: Any) -> Answer:
        self.folder, self.version = body["model_path"], body["weight_version"]
        said = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        return 200, said

    def _rename(self, body: Any) -> Answer:
        assert body["abort_all_requests"] is False
        self.version = body["new_version"]
        said = f"Weight version updated to {self.version}"
        return 200, {"success": True, "message": said, "new_version": self.version}
