"""What an answer's form must provide; `chat` and `completions` are the two there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gyre.elastic.engine.request import Finish, Token
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.text.reply import Piece

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What became of a choice since its last chunk."""

    begins: bool
    """Nothing was said of this choice before."""
    at: int
    """Output position of the first of these tokens."""
    tokens: Sequence[Token]
    offsets: Sequence[int]
    pieces: Sequence[Piece]
    finish: Finish | None


class Wire(Protocol):
    name: str
    whole_kind: str
    chunk_kind: str

    def top(self, frame: Frame, call_outputs: Sequence[Output]) -> Json:
        """Fields beside the choices, of a plain answer or of a stream's first chunk."""

    def choice(self, frame: Frame, index: int, output: Output, finish: Finish) -> Json:
        """One choice of a plain answer."""

    def chunks(self, frame: Frame, index: int, output: Output, news: News) -> list[Json]:
        """The same as it comes: choices of chunks, none while there is nothing to say."""
