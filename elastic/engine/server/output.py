"""One choice while it is sampled: written on the engine's thread, read on the event loop.

Both sides share lists that only grow. `told` says how much of them belongs together, and `finish` is set
last: whoever sees it has all there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet

from gyre.elastic.engine.request import Finish, FinishReason, Started, Token
from gyre.elastic.engine.text.detokenizer import Detokenizer
from gyre.elastic.engine.text.reply import Piece, Reply, ReplyParser
from gyre.elastic.engine.text.stops import StopStrings

_GOES_ON = (FinishReason.MOVED, FinishReason.ABORT, FinishReason.ERROR)
"""Ends after which another engine may continue: it says the text that is held back here."""


class Output:
    """A `Listener` that turns tokens into the pieces of a reply."""

    def __init__(
        self,
        *,
        detokenizer: Detokenizer,
        stops: StopStrings,
        parser: ReplyParser,
        stop_ids: AbstractSet[int],
    ) -> None:
        self.tokens: list[Token] = []
        self.offsets: list[int] = []
        """Where the text of each token begins."""
        self.pieces: list[Piece] = []
        self.start: Started | None = None
        self.finish: Finish | None = None
        self.versions: list[str] = []
        """Of the tokens, each time it changes."""
        self.told = (0, 0)
        """How many tokens, and how many pieces all of their certain text makes."""
        self.primed = (0, 0)
        """The same before the first new token."""
        self.begun_at: float | None = None
        """When the first token followed; of `time.perf_counter`."""
        self.on_news: Callable[[], None] = _nothing
        """Called on the engine's thread when something was added."""
        self.on_finish: Callable[[], None] = _nothing
        self._detokenizer = detokenizer
        self._stops = stops
        self._parser = parser
        self._stop_ids = stop_ids
        self._length = 0
        self._whole = True
        """Every token that was told is in the lists."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.matched

    @property
    def reply(self) -> Reply:
        return self._parser.reply

    def prime(self, tokens: Iterable[Token]) -> bool:
        """Take tokens sampled earlier, elsewhere; whether they are already the whole output."""
        ended = False
        for token in tokens:
            if ended:
                raise ValueError("tokens follow after the output's end")
            ended = self._add(token) or token.id in self._stop_ids
        self._tell()
        self.primed = self.told
        return ended

    def started(self, started: Started) -> None:
        self.start = started
        self.begun_at = self.begun_at or time.perf_counter()
        self.on_news()

    def token(self, token: Token) -> bool:
        self._whole = False
        ended = self._add(token)
        self._whole = True
        self._tell()
        self.on_news()
        return ended

    def finished(self, finish: Finish) -> None:
        if not self._whole:
            # A fault of ours must not pass for the reply's end.
            finish = Finish(reason=FinishReason.ERROR, error="its tokens could not be read as text")
        if finish.reason not in _GOES_ON:
            self._say(self._stops.add(self._detokenizer.flush()) + self._stops.flush())
            self.pieces += self._parser.finish()
        self._tell()
        self.finish = finish
        self.on_finish()

    def _add(self, token: Token) -> bool:
        self.offsets.append(self._length)
        if token.id not in self._stop_ids:
            text = self._detokenizer.add(token.id)
            self._length += len(text)
            self._say(self._stops.add(text))
        if token.version not in self.versions[-1:]:
            self.versions.append(token.version)
        self.tokens.append(token)
        return self._stops.matched is not None

    def _tell(self) -> None:
        self.told = (len(self.tokens), len(self.pieces))

    def _say(self, text: str) -> None:
        if text:
            self.pieces += self._parser.add(text)


def _nothing() -> None:
    pass
