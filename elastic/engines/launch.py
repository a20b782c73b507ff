"""An engine's own program, as the user's command starts it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gyre.elastic.engines.child import Child
from gyre.elastic.engines.served import point
from gyre.elastic.process.port import lasting_port

HOST = "127.0.0.1"
PLACES = ("{model}", "{host}", "{port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Started again it has the same port and reads the same path, where the newest weights are then."""

    command: Sequence[str]
    """With `{model}`, `{host}` and `{port}`."""
    env: Mapping[str, str]
    """Beside the process's own."""
    served: Path
    """The link that `{model}` becomes."""
    port: int
    child: Child

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self, folder: Path, answers: Callable[[], bool | None], timeout_s: float) -> None:
        """Raises what `Child.start` does."""
        point(self.served, folder)
        values = dict(zip(PLACES, (str(self.served), HOST, str(self.port)), strict=True))
        argv = [_filled(word, values) for word in self.command]
        self.child.start(argv, {**os.environ, **self.env}, answers, timeout_s)


def launch(
    engine: str, command: Sequence[str], env: Mapping[str, str], *, served: Path, output: Path
) -> Launch:
    return Launch(
        command=command, env=env, served=served, port=lasting_port(HOST), child=Child(engine, output)
    )


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Only these are filled in: other braces are the engine's own, as in JSON."""
    for place, value in values.items():
        word = word.replace(place, value)
    return word
