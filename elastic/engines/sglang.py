"""SGLang as an engine of a run, over the routes it documents for reinforcement learning (0.5.23).

With `keep` it is paused in place: running answers go on with their keys and values, and the prefix cache is
forgotten only where nothing runs. With `recompute` they go back into the queue and are computed anew.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gyre.elastic.engines.face import Weights
from gyre.elastic.engines.launch import Launch
from gyre.elastic.engines.options import EngineOptions
from gyre.elastic.engines.outside import Outside
from gyre.proxy.errors import EngineError

_MISSING = "it has to be SGLang 0.5.23 or later"


class Sglang:
    profile = "sglang"
    key = None

    def __init__(self, name: str, options: EngineOptions, source: Launch | str) -> None:
        """`source` starts it, or is the URL of one that runs already."""
        self.name = name
        self._options = options
        self._at = Outside(name, source, missing=_MISSING)
        self._ask = self._at.connection.ask

    @property
    def url(self) -> str:
        return self._at.url

    @property
    def owned(self) -> bool:
        return self._at.launch is not None

    def start(self, folder: Path, version: str) -> None:
        if not self._at.start(folder, self._options.start_timeout_s):
            self.publish(folder, version)
            return
        # Unless told not to it ends every request.
        body = {"new_version": version, "abort_all_requests": False}
        self._ask("POST", "/update_weight_version", body)

    def alive(self) -> bool:
        return self._at.alive()

    def publish(self, folder: Path, version: str) -> None:
        again = self._options.in_flight == "recompute"
        body = {
            "model_path": str(folder.resolve()),
            "weight_version": version,
            "abort_all_requests": False,
            # It fails as a whole where it is to forget what is in use.
            "flush_cache": again,
        }
        with self._at.frozen(self.pause, self.resume):
            timeout_s = self._options.publish_timeout_s
            done = self._ask("POST", "/update_weights_from_disk", body, timeout_s=timeout_s)
            if not done.get("success"):
                said = done.get("message", "it does not say why")
                raise EngineError(f"engine `{self.name}` does not take up `{folder}`: {said}")
            if not again:
                with suppress(EngineError):  # 400: something is in use
                    self._ask("POST", "/flush_cache")

    def pause(self) -> None:
        mode = "retract" if self._options.in_flight == "recompute" else "in_place"
        self._ask("POST", "/pause_generation", {"mode": mode})
        self._at.paused = True

    def resume(self) -> None:
        self._ask("POST", "/continue_generation", {})
        self._at.paused = False

    def weights(self) -> Weights:
        return Weights(version=self._ask("GET", "/model_info").get("weight_version"))

    def stop(self) -> None:
        self._at.stop()
