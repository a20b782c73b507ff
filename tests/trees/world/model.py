"""A toy model: answers that are never twice the same, sampled token by token."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.trees.world.messages import Message, assistant, text_of, tool_call
from tests.trees.world.template import Rendered, Template

_COMMON = ("let", "me", "look", "at", "the", "parser")


@dataclass
class Reply:
    message: Message
    sampled: Rendered
    logprobs: list[float]


class Model:
    def __init__(self, random: Random, template: Template, reasons: bool, breaks_words: bool) -> None:
        self.random = random
        self.template = template
        self.reasons = reasons or template.style.think_in_prompt
        self.breaks_words = breaks_words
        self._count = 0

    def unique(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def words(self, count: int) -> str:
        """Some words that others say too, then some that nobody else says."""
        common = _COMMON[: self.random.randint(0, len(_COMMON))]
        return " ".join([*common, *(self.unique("w") for _ in range(count))])

    def calls(self, count: int, name: str = "read") -> list[Message]:
        return [
            self.call(name, {"path": f"src/{self.unique('module')}/parser.c", "lines": 10})
            for _ in range(count)
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> Message:
        return tool_call(self.unique("call_"), name, arguments)

    def work(self, calls: int = 1) -> Message:
        """An answer that calls tools, sometimes after a word about it."""
        text = self.words(2) if self.random.random() < 0.5 else ""
        return self.answer(text, self.calls(calls))

    def talk(self) -> Message:
        return self.answer(self.words(self.random.randint(1, 4)))

    def summary(self, wrapped: bool) -> tuple[Message, str]:
        """A summary, and the part of it that an agent uses."""
        inner = "so far " + " ".join(self.unique("fact") for _ in range(9))
        text = f"<analysis> {self.words(3)} </analysis>\n<summary> {inner} </summary>" if wrapped else inner
        return self.answer(text), inner

    def answer(self, text: str, calls: list[Message] | None = None) -> Message:
        reasons = self.reasons and (self.template.style.think_in_prompt or self.random.random() < 0.7)
        return assistant(text, calls or [], "think " + self.words(2) if reasons else "")

    def cut(self, tokens: int) -> Reply:
        """The first tokens of an answer, and what a client can make of them."""
        whole = self.work()
        reply = self.sample(whole, tokens=tokens)
        words = whole.get("reasoning_content", "").split()
        said = text_of(whole).split()[:tokens]
        reply.message = assistant("", (), " ".join(words[:tokens])) if words else assistant(" ".join(said))
        return reply

    def sample(self, message: Message, stop: bool = True, tokens: int | None = None) -> Reply:
        """The tokens of that answer, or only the first of them."""
        broken = self.breaks_words and self.random.random() < 0.5
        sampled = self.template.sampled(message, broken, stop)
        if tokens is not None:
            sampled = Rendered(sampled.ids[:tokens], sampled.kinds[:tokens])
        return Reply(message, sampled, [-self.random.random() for _ in sampled.ids])
