"""What lists are made of. Those that are held out share no word and no name with those that are trained."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

FILES = 12
"""Of a list."""
WORDS = "lamp boat tree stone bird cloud river bread glass chair horse snow door candle garden bridge"
NAMES = "fig oak elm ash yew pine beech birch cedar maple larch alder hazel rowan willow poplar"
HELD_OUT_WORDS = "moon violin salt wheel tower honey"
HELD_OUT_NAMES = "rose lily iris fern moss clover daisy tulip poppy violet thistle nettle aster heather"


class Listed(NamedTuple):
    """A task: a word to be read in one file, and the files that it belongs in."""

    source: str
    word: str
    names: list[str]

    @property
    def instruction(self) -> str:
        return f"Read {self.source} and write its word to: {' '.join(self.names)}"


def draw(random: Random, words: str = WORDS, names: str = NAMES, files: int = FILES) -> Listed:
    source, *listed = (f"{name}.txt" for name in random.sample(names.split(), files + 1))
    return Listed(source, random.choice(words.split()), listed)
