"""The process of an engine that a run starts itself, again and again on one port."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gyre.elastic.process.restartable import Restartable
from gyre.elastic.process.supervised import Program
from gyre.elastic.process.words import complaint, last_lines
from gyre.proxy.errors import EngineError

_POLL_S = 0.1
_GRACE_S = 10.0
_STOP_S = 30.0
_LINES = 5


class Child(Restartable):
    """An engine's process, of the command that the run has for it."""

    def __init__(self, engine: str, folder: Path) -> None:
        """What it says goes to `folder`, a file for each start."""
        super().__init__(_STOP_S)
        self._engine = engine
        self.folder = folder
        self.output = folder / f"{engine}.txt"
        """Of the newest start."""

    def start(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        answers: Callable[[], bool | None],
        timeout_s: float,
    ) -> None:
        """Returns when it answers.

        Raises:
            EngineError: it ends before that, or needs too long; its last words are in the hint.
            StartError: there is no such program.
        """
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.output = _unused(self.folder, self._engine)
        program = Program(
            argv=argv,
            env=env,
            cwd=self.folder,
            stdout=self.output.with_suffix(".stdout.txt"),
            stderr=self.output,
            grace_s=_GRACE_S,
        )
        self._launch(program)
        self._await(answers, timeout_s)

    def _await(self, answers: Callable[[], bool | None], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while not answers():
            if not self.alive():
                error, hint = complaint(self._talkative)
                raise EngineError(
                    f"engine `{self._engine}` ended before it answered: {error}", self._more(hint)
                )
            if time.monotonic() > end:
                self.stop()
                raise EngineError(
                    f"engine `{self._engine}` does not answer after {timeout_s:g} s",
                    self._more("`engine.start_timeout` gives it longer"),
                )
            time.sleep(_POLL_S)

    @property
    def _talkative(self) -> Path:
        """The output that it says things on: some say all on the other one."""
        plain = self.output.with_suffix(".stdout.txt")
        return self.output if last_lines(self.output, 1) else plain

    def _more(self, hint: str) -> str:
        words = last_lines(self._talkative, _LINES)
        said = f"its last lines in `{self.output}`: " + " | ".join(words) if words else f"see `{self.output}`"
        return f"{hint}; {said}" if hint else said


def _unused(folder: Path, name: str) -> Path:
    """A file for what it says: those of earlier starts tell why they ended."""
    for number in itertools.count(1):
        path = folder / (f"{name}.txt" if number == 1 else f"{name}.{number}.txt")
        if not path.exists():
            return path
    raise AssertionError
