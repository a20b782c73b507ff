"""What a model is worth, without gyre: it does some lists that are held out, here in this process."""

from __future__ import annotations

import tempfile
from contextlib import chdir
from pathlib import Path
from random import Random
from statistics import fmean

import torch
from agent import ANSWER_TOKENS, Answer, Message, work
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
from words import HELD_OUT_NAMES, HELD_OUT_WORDS, draw


class Speaker:
    """Answers as the model does at temperature 1."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self._model = model
        self._tokenizer = tokenizer

    def ask(self, messages: list[Message]) -> Answer:
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = torch.tensor([self._tokenizer.encode(prompt)])
        with torch.no_grad():
            all_ids = self._model.generate(
                ids,
                do_sample=True,
                max_new_tokens=ANSWER_TOKENS,
                top_k=0,
                attention_mask=torch.ones_like(ids),
            )[0]
        text = self._tokenizer.decode(all_ids[ids.shape[1] :], skip_special_tokens=True)
        return Answer(text, tokens=len(all_ids))


def mean_score(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, lists: int, limit: int) -> float:
    random, speaker = Random(1), Speaker(model, tokenizer)
    return fmean(_score(speaker, random, limit) for _ in range(lists))


def _score(speaker: Speaker, random: Random, limit: int) -> float:
    task = draw(random, HELD_OUT_WORDS, HELD_OUT_NAMES)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path(task.source).write_text(task.word)
        work(speaker, task.instruction, limit)
        files = [Path(name) for name in task.names]
        return fmean(file.is_file() and file.read_text().strip() == task.word for file in files)
