"""A toy chat template: messages and tools to token ids, each with the kind of text it stands for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.trees.world.messages import Message, calls_of, spaced, text_of

_PIECES = re.compile(r"\w+|[^\w\s]+|\s+")


class Style(NamedTuple):
    """How a template differs from writing down what was said and sampled."""

    reasoning: str = "keep"
    """`keep`, `strip` (of earlier turns) or `strip_before_user` (of turns before the last user message)."""
    think_in_prompt: bool = False
    """The prompt ends with the opening of reasoning, so that the model always reasons."""
    respaces: bool = False
    """Arguments are parsed and written anew."""
    loses_stop: bool = False
    """Another token than the one sampled ends a turn."""


@dataclass
class Rendered:
    ids: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    """`tools`, `head`, `text`, `reasoning`, `call`, `end`: what each id belongs to."""

    def add(self, kind: str, ids: list[int]) -> None:
        self.ids += ids
        self.kinds += [kind] * len(ids)

    def __add__(self, other: Rendered) -> Rendered:
        return Rendered(self.ids + other.ids, self.kinds + other.kinds)


class Template:
    def __init__(self, style: Style) -> None:
        self.style = style
        self._vocabulary: dict[str, int] = {}

    def id_of(self, word: str) -> int:
        return self._vocabulary.setdefault(word, len(self._vocabulary))

    @property
    def opening(self) -> int:
        """Ids at the end of a prompt that open the answer."""
        return 1 + self.style.think_in_prompt

    def prompt(self, messages: list[Message], tools: list[Message]) -> Rendered:
        out = Rendered()
        if tools:
            out.add("tools", self._pieces(json.dumps(tools)))
        last_user = max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        for i, message in enumerate(messages):
            self._message(out, message, self._keeps_reasoning(i, last_user))
        out.add("head", [self.id_of("<assistant>")])
        if self.style.think_in_prompt:
            out.add("reasoning", [self.id_of("<think>")])
        return out

    def sampled(self, message: Message, broken_word: bool, stop: bool) -> Rendered:
        """What the model sampled for this answer; `broken_word`: in pieces that text never has again."""
        out = Rendered()
        self._reasoning(out, message, opened=self.style.think_in_prompt)
        words = text_of(message).split()
        if broken_word and words:
            first = words.pop(0)
            out.add("text", [self.id_of(first[:1] + "+"), self.id_of("+" + first[1:])])
        out.add("text", self._words(words))
        self._calls(out, message, respaced=False)
        if stop:
            out.add("end", [self.id_of("<end>")])
        return out

    def _keeps_reasoning(self, index: int, last_user: int) -> bool:
        style = self.style.reasoning
        return style == "keep" or (style == "strip_before_user" and index > last_user)

    def _message(self, out: Rendered, message: Message, keep: bool) -> None:
        out.add("head", [self.id_of(f"<{message['role']}>")])
        if keep:
            self._reasoning(out, message)
        out.add("text", self._words(text_of(message).split()))
        self._calls(out, message, self.style.respaces)
        sampled_end = message["role"] != "assistant" or not self.style.loses_stop
        out.add("end", [self.id_of("<end>" if sampled_end else "<other end>")])

    def _reasoning(self, out: Rendered, message: Message, opened: bool = False) -> None:
        reasoning = message.get("reasoning_content")
        if reasoning:
            words = ["<think>", *reasoning.split(), "</think>"]
            out.add("reasoning", self._words(words[1:] if opened else words))

    def _calls(self, out: Rendered, message: Message, respaced: bool) -> None:
        for call in calls_of(message):
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            pieces = self._pieces(spaced(arguments) if respaced else arguments)
            out.add("call", [self.id_of("<call>"), self.id_of(name), *pieces, self.id_of("</call>")])

    def _words(self, words: list[str]) -> list[int]:
        return [self.id_of(word) for word in words]

    def _pieces(self, text: str) -> list[int]:
        return self._words(_PIECES.findall(text))
