"""Who knows how the work is done: a model in Python, whose conversations the small model learns from."""

from __future__ import annotations

import re
import tempfile
from contextlib import chdir
from pathlib import Path
from random import Random

from agent import FIRST, HELPER, HELPERS, SUMMARISE, Answer, Message, work
from words import FILES, HELD_OUT_NAMES, HELD_OUT_WORDS, NAMES, WORDS, draw

ALL_WORDS, ALL_NAMES = f"{WORDS} {HELD_OUT_WORDS}", f"{NAMES} {HELD_OUT_NAMES}"
_NAME = re.compile(r"(\S+\.txt)$")
_WORD = re.compile(r"(?:word|is) (\w+) (?:to|and)")
_FULL = 0.12
"""How often its memory is full after an answer."""


class Expert:
    """Gives each word rightly with the probability `right`, else any word: that is a slip."""

    def __init__(self, random: Random, right: float = 1.0) -> None:
        self._random = random
        self._right = right
        self.heard: list[list[Message]] = []
        """Every conversation up to its last answer."""
        self.slips: set[str] = set()
        """Answers."""

    def ask(self, messages: list[Message]) -> Answer:
        self._slipped = False
        text = self._answer(messages)
        if self._slipped:
            self.slips.add(text)
        if len(messages) > 2:
            self.heard.pop(self._place(messages))
        self.heard.append([*messages, {"role": "assistant", "content": text}])
        return Answer(text, tokens=int(self._random.random() < _FULL))

    def _place(self, messages: list[Message]) -> int:
        return next(i for i, one in enumerate(self.heard) if one == messages[:-1])

    def _answer(self, messages: list[Message]) -> str:
        asked = messages[-1]["content"]
        if len(messages) == 2 and messages[0]["content"] == HELPER:
            return f"WRITE {asked.split()[8]} {self._word(messages)}"
        if messages[0]["content"] == HELPER:
            _, name, word = messages[-2]["content"].split()
            return f"DONE I wrote {word} to {name}"
        last = asked.splitlines()[-1]
        found = _NAME.search(last)
        name = found[1] if found else ""
        if last == FIRST.format(name=name):
            return f"READ {name}"
        if last == SUMMARISE:
            done = _NAME.search(messages[-3]["content"])
            file = done[1] if done else ""
            return f"SUMMARY the word to write is {self._word(messages)} and the file was {file}"
        if last == HELPERS.format(name=name):
            return f"TASK write the word {self._word(messages)} to the file {name} and say what you did"
        return f"WRITE {name} {self._word(messages)}" if name else "DONE"

    def _word(self, messages: list[Message]) -> str:
        self._slipped = self._random.random() >= self._right
        if self._slipped:
            return self._random.choice(ALL_WORDS.split())
        told = _WORD.search(messages[1]["content"])
        return told[1] if told else messages[3]["content"].splitlines()[0].split()[-1]


def told(random: Random, right: float = 1.0, files: int = FILES) -> Expert:
    """One that has done a list, in a folder that is gone afterwards."""
    task, expert = draw(random, ALL_WORDS, ALL_NAMES, files), Expert(random, right)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path(task.source).write_text(task.word)
        work(expert, task.instruction, limit=0)
    return expert
