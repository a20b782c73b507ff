"""vLLM as an engine of a run, over the routes that it has with VLLM_SERVER_DEV_MODE=1 (0.32 and later).

A publication freezes what runs, hands the weights over (`transfer.py`), and lets go. vLLM's version changes
only while nothing is sampled. With `keep` running answers go on with their keys and values, and kept prefixes
stay too, since vLLM cannot forget these while any is in use; with `recompute` it computes them all anew.
"""

from __future__ import annotations

from pathlib import Path

from gyre.elastic.engines.face import Weights
from gyre.elastic.engines.launch import Launch
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.outside import Outside
from gyre.elastic.engines.transfer import INSIDE, FromDisk, Transfer
from gyre.proxy.errors import EngineError

ENV = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(INSIDE)}
_MISSING = "start vLLM 0.32 or later with VLLM_SERVER_DEV_MODE=1 in its environment"


class Vllm:
    profile = "vllm"
    key = None

    def __init__(
        self, name: str, options: EngineOptions, source: Launch | str, transfer: Transfer | None = None
    ) -> None:
        """`source` starts it, or is the URL of one that runs already."""
        self.name = name
        self._options = options
        self._at = Outside(name, source, missing=_MISSING)
        self._ask = self._at.connection.ask
        self._transfer = transfer or FromDisk()

    @property
    def url(self) -> str:
        return self._at.url

    @property
    def owned(self) -> bool:
        return self._at.launch is not None

    def start(self, folder: Path, version: str) -> None:
        started = self._at.start(folder, self._options.start_timeout_s)
        self._transfer.begin(self._at.connection)
        if started:
            self._name(version)
        else:
            self.publish(folder, version)

    def alive(self) -> bool:
        return self._at.alive()

    def publish(self, folder: Path, version: str) -> None:
        with self._at.frozen(self.pause, self.resume):
            self._transfer.send(self._at.connection, folder, self._options.publish_timeout_s)
            self._forget()
            self._name(version)

    def pause(self) -> None:
        self._ask("POST", "/pause?mode=keep")
        self._at.paused = True

    def resume(self) -> None:
        self._ask("POST", "/resume")
        self._at.paused = False

    def weights(self) -> Weights:
        return Weights(version=self._ask("GET", "/weight_info").get("weight_version"))

    def stop(self) -> None:
        self._transfer.end()
        self._at.stop()

    def _forget(self) -> None:
        again = self._options.in_flight == "recompute"
        route = f"/reset_prefix_cache?reset_running_requests={str(again).lower()}"
        done = self._ask("POST", route).get("success")
        if again and not done:
            raise EngineError(
                f"engine `{self.name}` does not forget keys and values of older weights",
                '`engine.in_flight = "keep"` goes on with them',
            )

    def _name(self, version: str) -> None:
        self._ask("POST", "/update_weight_version", {"new_version": version})
