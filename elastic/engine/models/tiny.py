"""`tiny`: a random Qwen3 of 0.7M parameters with a byte-level BPE of its own, made in under a second.

It says nothing sensible, but everything about it is real: chat tokens, tool markers, 128K positions.
The same seed gives the same bits on any machine and with any number of threads; the tokenizer is the
same for every seed, so that weights of one can be published into an engine of another.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gyre.elastic.engine.models.corpus import corpus
from gyre.elastic.engine.text.chatml import chatml

TINY = "tiny"
VOCAB_SIZE = 2048
MAX_POSITIONS = 131_072
WEIGHT_RANGE = 0.17
"""Weights are uniform in ±0.17, a standard deviation of 0.1: with the usual 0.02 logits would be flat."""

END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
CONTROL = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""One id each, but text: decoding keeps them, as with Qwen3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    config: Qwen3Config
    model: Qwen3ForCausalLM
    """fp32 on the CPU, in eval mode."""
    tokenizer: PreTrainedTokenizerFast


def make_tiny(seed: int = 0) -> Tiny:
    """The model of a seed. torch's own random state is left as it was."""
    tokenizer = _make_tokenizer()
    config = _make_config(tokenizer)
    with torch.random.fork_rng(devices=[]):
        model = Qwen3ForCausalLM(config)
    _fill(model, seed)
    stops = [tokenizer.convert_tokens_to_ids(text) for text in (END_OF_TURN, END_OF_TEXT)]
    model.generation_config = GenerationConfig(eos_token_id=stops, pad_token_id=config.pad_token_id)
    return Tiny(config=config, model=model.eval(), tokenizer=tokenizer)


def save_tiny(folder: Path, seed: int = 0) -> None:
    """Write the model of a seed as a Hugging Face folder, to train from."""
    tiny = make_tiny(seed)
    tiny.model.save_pretrained(folder)
    tiny.tokenizer.save_pretrained(folder)


def _make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )


def _fill(model: Qwen3ForCausalLM, seed: int) -> None:
    """Norms are 1; each other weight has a random stream of its own, exact in any floating-point unit."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1)
                continue
            stream = np.random.default_rng([seed, zlib.crc32(name.encode())])
            uniform = stream.random(tuple(parameter.shape), dtype=np.float32) - np.float32(0.5)
            parameter.copy_(torch.from_numpy(uniform * np.float32(2 * WEIGHT_RANGE)))


def _make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: any text survives encoding and decoding. All 2,048 ids are tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL) - len(MARKERS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=chatml(),
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
