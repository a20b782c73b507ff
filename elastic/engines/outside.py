"""An engine that is no program of gyre's: what vLLM and SGLang have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.launch import Launch
from gyre.elastic.engines.pulse import Pulse
from gyre.proxy.errors import EngineError, GyreError


class Outside:
    """Where it is, whether it lives, and whether somebody holds it still."""

    def __init__(self, engine: str, source: Launch | str, *, missing: str) -> None:
        """`source` starts it, or is the URL of one that runs already."""
        self.launch = None if isinstance(source, str) else source
        self.url = source if isinstance(source, str) else source.url
        output = f"`{self.launch.child.folder}`" if self.launch else "what it says"
        self.connection = Connection(engine, self.url, missing=missing, output=output)
        self._pulse = Pulse(self.connection.healthy)
        self.paused = False

    def start(self, folder: Path, timeout_s: float) -> bool:
        """Whether one was started; else it is not ours to start."""
        self.paused = False
        if self.launch is None:
            return False
        self.launch.start(folder, self.connection.healthy, timeout_s)
        self._pulse.begin()
        return True

    def alive(self) -> bool:
        if self.launch is not None and not self.launch.child.alive():
            return False
        return self._pulse.beats()

    def stop(self) -> None:
        if self.launch is not None:
            self.launch.child.stop()

    @contextmanager
    def frozen(self, pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
        """For the length of the block; who had paused it before lets it go on.

        After a failure nothing does: it may have half of its weights from either version.

        Raises:
            EngineError: of the block; of an engine that is not ours it says that it stands still.
        """
        if self.paused:
            yield
            return
        pause()
        with told_of_pause(self.url, self.launch is not None):
            yield
        resume()


@contextmanager
def told_of_pause(url: str, owned: bool) -> Iterator[None]:
    """A block in which an engine is paused. After a failure it stays so: whose it is has to know.

    Raises:
        EngineError: of the block; of an engine that is not ours it says that it stands still.
    """
    try:
        yield
    except GyreError as problem:
        if owned:
            raise
        left = f"`{url}` stays paused, it may have half of the new weights: start it again"
        raise EngineError(problem.message, f"{problem.hint}; {left}" if problem.hint else left) from None
