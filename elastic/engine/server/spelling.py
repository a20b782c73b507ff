"""How single tokens are spelled in log-probabilities: text, and the exact bytes behind it."""

from __future__ import annotations

import re
from functools import lru_cache

from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

_BROKEN = "\ufffd"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How tokenizers with byte fallback name a single byte."""
_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""How byte-level tokenizers name bytes."""
_KEPT = 1 << 16


class Spelling:
    """Of one tokenizer; the most recent ids are kept."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self.of = lru_cache(_KEPT)(self._of)

    def _of(self, token_id: int) -> tuple[str, list[int]]:
        """Text of one id, special ones shown, and its bytes: parts of characters are U+FFFD in the text."""
        text = str(self._tokenizer.decode([token_id], skip_special_tokens=False))
        if _BROKEN not in text:
            return text, list(text.encode())
        name = self._tokenizer.convert_ids_to_tokens(token_id)
        return text, _bytes(name, text) if isinstance(name, str) else list(text.encode())


def _bytes(name: str, text: str) -> list[int]:
    if byte := _BYTE.fullmatch(name):
        return [int(byte[1], 16)]
    if all(character in _BYTES for character in name):
        return [_BYTES[character] for character in name]
    return list(text.encode())
