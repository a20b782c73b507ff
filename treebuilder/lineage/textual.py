"""A tree of messages, for calls of hosted APIs that give no token ids. Pure.

Each canonical block stands where a token would: equal blocks are one number. The same code then finds
turns and contexts; nothing of it can be trained.
"""

from __future__ import annotations

import numpy as np

from gyre.proxy.canonical import Block, Kind
from gyre.treebuilder.lineage.texts import Texts
from gyre.treebuilder.lineage.turn import Try
from gyre.treebuilder.tokens.prefix import PrefixTree
from gyre.treebuilder.trees import Ids


def textual_tree(tries: list[Try], texts: Texts) -> PrefixTree:
    """Give each try that has messages its place in a tree of blocks."""
    tree = PrefixTree()
    numbers: dict[Block, int] = {}
    for one in tries:
        if one.call.delivery_of is not None:
            continue
        prompt = _numbered(texts.messages(one.call), numbers)
        if not len(prompt):
            continue
        answer = [block for block in texts.answer(one.call) if block.kind is not Kind.REASONING]
        one.prompt_end, one.shared = tree.grow(tree.start, prompt, one.index)
        output = _numbered(answer, numbers)
        one.output_end = tree.sample(one.prompt_end, output, one.index) if len(output) else one.prompt_end
    for one in tries:
        one.prompt_end = None if one.prompt_end is None else tree.settle(one.prompt_end)
        one.output_end = None if one.output_end is None else tree.settle(one.output_end)
    return tree


def _numbered(blocks: list[Block], numbers: dict[Block, int]) -> Ids:
    return np.array([numbers.setdefault(_trimmed(block), len(numbers)) for block in blocks], np.int32)


def _trimmed(block: Block) -> Block:
    if block.role == "assistant" and block.kind is Kind.TEXT:
        return block._replace(text=block.text.strip())
    return block
