"""A tree of messages, for calls of hosted APIs that give no token ids. Pure.

Each canonical block stands where a token would: equal blocks are one number. The same code then finds
turns and contexts; nothing of it can be trained.
"""

from __future__ import annotations

import numpy as np

from gyre.proxy.canonical import Block, Kind
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Try
from gyre.treebuilder.tokens.prefix import PrefixTree, common_prefix
from gyre.treebuilder.trees import Ids


def textual_tree(tries: list[Try], texts: Texts) -> PrefixTree:
    """Give each try that has messages its place in a tree of blocks."""
    tree = PrefixTree()
    numbers: dict[Block, int] = {}
    messages: dict[str, Ids] = {}
    last: Try | None = None
    path = np.zeros(0, np.int32)
    for one in tries:
        if one.call.delivery_of is not None:
            continue
        pieces = [_message(address, texts, numbers, messages) for address in texts.addresses(one.call)]
        prompt = np.concatenate(pieces) if pieces else path[:0]
        if not len(prompt):
            continue
        answer = [block for block in texts.answer(one.call) if block.kind is not Kind.REASONING]
        # Nearly every call goes on from the last one: what it shares with that is not looked for again.
        size = min(len(path), len(prompt))
        known = common_prefix(path[:size], prompt[:size])
        at = tree.start if last is None or last.output_end is None else tree.up(last.output_end, known)
        one.prompt_end, more = tree.grow(at, prompt[known:], one.index)
        one.shared = known + more
        output = _numbered(answer, numbers)
        one.output_end = tree.sample(one.prompt_end, output, one.index) if len(output) else one.prompt_end
        last, path = one, np.concatenate([prompt, output])
    for one in tries:
        one.prompt_end = None if one.prompt_end is None else tree.settle(one.prompt_end)
        one.output_end = None if one.output_end is None else tree.settle(one.output_end)
    return tree


def _message(address: str, texts: Texts, numbers: dict[Block, int], known: dict[str, Ids]) -> Ids:
    if address not in known:
        known[address] = _numbered(texts.of(address), numbers)
    return known[address]


def _numbered(blocks: list[Block], numbers: dict[Block, int]) -> Ids:
    return np.array([numbers.setdefault(_trimmed(block), len(numbers)) for block in blocks], np.int32)


def _trimmed(block: Block) -> Block:
    if block.role == "assistant" and block.kind is Kind.TEXT:
        return block._replace(text=block.text.strip())
    return block
