"""Small tokenizers: byte-level BPE as Qwen's, and the SentencePiece kind with byte fallback."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "user assistant system tool name arguments function",
    "the weather in Paris is fine; look at the file and tell me what you think of it",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}',
    "é è ü ß 你好 世界 😀 naïve café",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKERS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]


@cache
def byte_level(*, special_markers: bool = False) -> PreTrainedTokenizerFast:
    """256 bytes, a few merges and the markers of ChatML; 340 ids at most."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(CORPUS * 3, trainer)
    rust.add_tokens([AddedToken(text, special=special_markers, normalized=False) for text in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=rust, eos_token="<|im_end|>", additional_special_tokens=SPECIAL
    )


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """Words with a leading `▁`, and one id for each byte."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "▁b", "▁hello", "."]
    rust = Tokenizer(
        models.BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    )
    rust.normalizer = normalizers.Replace(" ", "▁")
    rust.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=rust)


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def text_of(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
