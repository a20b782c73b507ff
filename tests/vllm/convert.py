"""Runs in vLLM's environment: a GGUF file into a folder of safetensors. Arguments: the file, the folder.

Two tokens that the model never needs become the marks of thinking, so that vLLM's parsers find them in its
vocabulary. It does not write them by itself: vLLM puts the end mark in when a thinking budget is spent.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MARKS = {"<issue_start>": "<think>", "<issue_closed>": "</think>"}


def convert(file: Path, folder: Path) -> None:
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    rename(folder / "tokenizer.json")
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.bfloat16)
    # What was loaded from GGUF refuses to be saved: a fresh model of the same shape takes the weights.
    config = loaded.config
    del config.quantization_config
    fresh = type(loaded)(config).to(torch.bfloat16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.tie_weights()
    fresh.save_pretrained(folder)


def rename(tokenizer: Path) -> None:
    content = json.loads(tokenizer.read_text())
    for token in content["added_tokens"]:
        if token["content"] in MARKS:
            token |= {"content": MARKS[token["content"]], "special": False}
    vocabulary = content["model"]["vocab"]
    for old, new in MARKS.items():
        vocabulary[new] = vocabulary.pop(old)
    tokenizer.write_text(json.dumps(content))


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
