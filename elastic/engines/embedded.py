"""`gyre engine` as an engine of a run: a process of its own that takes up weights while it samples.

It has a key that nobody else knows: agents share its network, and are not to sample unseen or to steer it.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from gyre.elastic.engine.settings import KEY_ENV
from gyre.elastic.engines.child import Child
from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.face import Weights
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.pulse import Pulse
from gyre.elastic.process.port import lasting_port

_HOST = "127.0.0.1"


class Embedded:
    profile = "gyre"
    owned = True

    def __init__(self, name: str, options: EngineOptions, output: Path) -> None:
        """What its process says goes to the folder `output`."""
        self.name = name
        self._options = options
        self._port = lasting_port(_HOST)
        self.url = f"http://{_HOST}:{self._port}"
        self.child = Child(name, output)
        self.key = secrets.token_urlsafe(24)
        self._connection = Connection(name, self.url, output=f"`{output}`", key=self.key)
        self._pulse = Pulse(self._connection.healthy)

    def start(self, folder: Path, version: str) -> None:
        argv, env = self._command(folder), os.environ | {KEY_ENV: self.key}
        self.child.start(argv, env, self._connection.healthy, self._options.start_timeout_s)
        self._pulse.begin()
        self._connection.ask("POST", "/update_weight_version", {"new_version": version})

    def alive(self) -> bool:
        return self.child.alive() and self._pulse.beats()

    def publish(self, folder: Path, version: str) -> None:
        body = {
            "update_info": {"path": str(folder.resolve()), "weight_version": version},
            "in_flight": self._options.in_flight,
        }
        self._connection.ask("POST", "/update_weights", body, timeout_s=self._options.publish_timeout_s)

    def pause(self) -> None:
        self._connection.ask("POST", "/pause?mode=keep")

    def resume(self) -> None:
        self._connection.ask("POST", "/resume")

    def weights(self) -> Weights:
        told = self._connection.ask("GET", "/weight_info")
        return Weights(version=told.get("weight_version"), digest=told.get("weight_digest"))

    def stop(self) -> None:
        self.child.stop()

    def _command(self, folder: Path) -> list[str]:
        options = self._options
        given = {
            "--model": folder.resolve(),
            "--name": options.model,
            "--host": _HOST,
            "--port": self._port,
            "--slots": options.slots,
            "--kv-memory": options.kv_memory,
            "--device": options.device,
            "--dtype": options.dtype,
            "--runtime": "transformers",
            "--ctx": options.context,
            "--threads": options.threads,
            "--chat-template": options.chat_template,
        }
        words = [str(word) for pair in given.items() if pair[1] is not None for word in pair]
        return [sys.executable, "-m", "gyre.cli.main", "engine", *words]
