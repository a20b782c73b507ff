"""What calls say: message lists and answers as canonical blocks, parsed once and only when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gyre.proxy.canonical import Block, Kind, blocks_of, response_blocks
from gyre.treebuilder.call import Call
from gyre.treebuilder.errors import ExecutionError
from gyre.treebuilder.trees import CallKey

_LISTS = 64
"""Whole message lists that are kept: those of the contexts that a prompt is held against."""


class Texts:
    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        self._bodies = bodies
        self._calls: dict[CallKey, Call] = {}
        self._blocks: dict[str, list[Block]] = {}
        self._answers: dict[CallKey, list[Block]] = {}
        self._lists: dict[CallKey, list[str]] = {}

    def add(self, call: Call) -> None:
        self._calls[call.key] = call

    def addresses(self, call: Call) -> list[str]:
        """The whole message list of a call.

        Raises:
            ExecutionError: a row it builds on is missing or too short.
        """
        if not call.messages and not call.messages_shared:
            return []  # Not kept: a row that is still to come may have the request of this one.
        known = self._lists.get(call.key)
        if known is None:
            if len(self._lists) == _LISTS:
                self._lists.clear()
            known = self._lists[call.key] = self._put_together(call)
        return known

    def _put_together(self, call: Call) -> list[str]:
        pieces: list[list[str]] = [call.messages]
        limit, parent = call.messages_shared, call.parent
        while limit > 0:
            above = self._calls.get(parent) if parent is not None else None
            if above is None or limit > above.messages_shared + len(above.messages):
                raise ExecutionError(f"call `{call.key.call_id}`: the messages before its own are missing")
            if above.key in self._lists:
                pieces.append(self._lists[above.key][:limit])
                break
            if limit > above.messages_shared:
                pieces.append(above.messages[: limit - above.messages_shared])
                limit = above.messages_shared
            parent = above.parent
        whole: list[str] = []
        for piece in reversed(pieces):
            whole += piece
        return whole

    def of(self, address: str) -> list[Block]:
        """Blocks of one message, without its reasoning: harnesses echo that or not, as they like."""
        known = self._blocks.get(address)
        if known is None:
            body = self._bodies.get(address)
            # A message that is not to be had is like itself and nothing else.
            found = [Block("", Kind.OTHER, "", address)] if body is None else blocks_of(body)
            known = self._blocks[address] = [block for block in found if block.kind is not Kind.REASONING]
        return known

    def all_of(self, addresses: list[str]) -> list[Block]:
        return [block for address in addresses for block in self.of(address)]

    def each_of(self, addresses: list[str]) -> Iterator[Block]:
        """The same, read as far as somebody looks."""
        for address in addresses:
            yield from self.of(address)

    def messages(self, call: Call) -> list[Block]:
        return self.all_of(self.addresses(call))

    def answer(self, call: Call) -> list[Block]:
        """Blocks of the assembled answer, reasoning included."""
        known = self._answers.get(call.key)
        if known is None:
            known = self._answers[call.key] = response_blocks(call.response)
        return known

    def said(self, call: Call) -> str:
        """The answer's text, without reasoning and tool calls."""
        return "\n".join(b.text for b in self.answer(call) if b.kind is Kind.TEXT)
