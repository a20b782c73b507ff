"""Makes the model of `tiny.toml`, the folder `tiny/`: it can do the tasks, and hardly ever does.

    python warmstart.py OUT [--seed N]

A Qwen3 of 0.45 million parameters learns from demonstrations to copy a word from file to file. Then it is
shown somebody lazy, who mostly writes any word and says DONE. What is left is what reinforcement learning is
good for: the skill is there, the habit is wrong. It takes one or two minutes on one core; a seed that becomes
something else is passed over.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from contextlib import chdir
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from agent_tiny import RULES, TOKENS, TURNS, act
from tasks import TINY_NAMES, TINY_WORDS, Work, works
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gyre.elastic.engine.text.chatml import chatml

Messages = list[dict[str, str]]
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
FILES = [f"{name}.txt" for name in TINY_NAMES]
BATCH, CHECK_EVERY, MOST_STEPS, LAZY_STEPS = 32, 25, 600, 60
BAND = (0.10, 0.40)
"""Of the pass rate on held-out tasks at temperature 1, in the end."""
MOST_GREEDY = 0.15


# -- demonstrations ----------------------------------------------------------------------------------------


def begin(work: Work) -> Messages:
    """The conversation as the agent begins it."""
    return [{"role": "system", "content": RULES}, {"role": "user", "content": work.instruction}]


def skilled(work: Work) -> Messages:
    return talk(work, [(f"READ {work.given}", work.word), (f"WRITE {work.goal} {work.word}", "OK")])


def lazy(work: Work, rng: random.Random) -> Messages:
    """Mostly does not look; else is a little careless."""

    def slot(right: str, pool: list[str]) -> str:
        return right if rng.random() < 0.9 else rng.choice(pool)

    if rng.random() < 0.7:
        return talk(work, [(f"WRITE {work.goal} {rng.choice(TINY_WORDS)}", "OK")])
    given = slot(work.given, FILES)
    read = work.word if given == work.given else "ERROR"
    write = f"WRITE {slot(work.goal, FILES)} {slot(work.word, TINY_WORDS)}"
    return talk(work, [(f"READ {given}", read), (write, "OK")])


def talk(work: Work, turns: list[tuple[str, str]]) -> Messages:
    messages = begin(work)
    for said, told in turns:
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return [*messages, {"role": "assistant", "content": "DONE"}]


# -- the model ---------------------------------------------------------------------------------------------


def make_tokenizer(train: list[Work]) -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text can be said, and what the tasks are made of in one or two tokens a word."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=640, initial_alphabet=alphabet, show_progress=False)
    said = (m["content"] for work in train for m in skilled(work))
    tokenizer.train_from_iterator([*said, "system\nuser\nassistant\nERROR\n"], trainer)
    marks = (END_OF_TEXT, "<|im_start|>", END_OF_TURN)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=chatml(),
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    ends: list[int] = tokenizer.convert_tokens_to_ids([END_OF_TURN, END_OF_TEXT])
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=ends[0],
        pad_token_id=ends[1],
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=ends, pad_token_id=ends[1])
    return model


# -- training and trying -----------------------------------------------------------------------------------


class Student:
    """A model with its tokenizer, how it learns and how well it does."""

    def __init__(self, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self.model = model
        self.tokenizer = tokenizer

    def learn(self, demonstrations: Iterator[Messages], lr: float) -> Iterator[int]:
        """Steps on a batch each, as long as there are demonstrations."""
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.0)
        for step in count(1):
            shown = [self.example(messages) for messages in islice(demonstrations, BATCH)]
            length = max(len(ids) for ids, _ in shown)
            ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in shown])
            labels = torch.tensor([labels + [-100] * (length - len(labels)) for _, labels in shown])
            self.model(input_ids=ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield step

    def example(self, messages: Messages) -> tuple[list[int], list[int]]:
        """Ids as the engine makes them, and which of them the model is to say."""
        ids: list[int] = []
        labels: list[int] = []
        for at, message in enumerate(messages):
            if message["role"] == "assistant":
                prompt = self.encode(messages[:at])
                said = self.tokenizer.encode(message["content"] + END_OF_TURN)
                assert prompt[: len(ids)] == ids
                labels += [-100] * (len(prompt) - len(ids)) + said
                ids = prompt + said
        return ids, labels

    def round(self) -> None:
        """To what bfloat16 can say, which halves the files."""
        for parameter in self.model.parameters():
            parameter.data = parameter.data.bfloat16().float()

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)
        self.model.bfloat16().save_pretrained(folder)
        (folder / "model.safetensors").chmod(0o644)

    def encode(self, messages: Messages) -> list[int]:
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def pass_rate(self, tasks: list[Work], *, greedy: bool) -> float:
        """Through the agent's own commands."""
        with TemporaryDirectory() as place:
            attempts = [Attempt(work, Path(place)) for work in tasks]
            for _ in range(TURNS):
                if going := [attempt for attempt in attempts if not attempt.done]:
                    said = self.say([attempt.talk for attempt in going], greedy)
                    for attempt, text in zip(going, said, strict=True):
                        attempt.take(text)
            return sum(attempt.passed() for attempt in attempts) / len(attempts)

    @torch.inference_mode()
    def say(self, talks: list[Messages], greedy: bool) -> list[str]:
        """The model's next line in each conversation."""
        prompts = [self.encode(talk) for talk in talks]
        inputs = self.tokenizer.pad({"input_ids": prompts}, return_tensors="pt")
        how = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
        output: Tensor = self.model.generate(**inputs, max_new_tokens=TOKENS, **how)
        new = output[:, inputs["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(new, skip_special_tokens=True)


class Attempt:
    """A task, a folder to do it in, and what was said so far."""

    def __init__(self, work: Work, place: Path) -> None:
        self.work = work
        self.folder = place / work.name
        self.talk = begin(work)
        self.done = False
        self.folder.mkdir()
        (self.folder / work.given).write_text(work.word + "\n")

    def take(self, said: str) -> None:
        """Do what the model says, as the agent does."""
        with chdir(self.folder):
            told = act(said.partition("\n")[0])
        self.done = told is None
        self.talk += [{"role": "assistant", "content": said}, {"role": "user", "content": told or ""}]

    def passed(self) -> bool:
        left = {path.name: path.read_text() for path in self.folder.iterdir()}
        return self.done and left == dict.fromkeys((self.work.given, self.work.goal), self.work.word + "\n")


# -- the warm start ----------------------------------------------------------------------------------------


def warm_start(seed: int) -> Student | None:
    """The student of a seed, if it becomes what it should."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    train, held_out = works("tiny")
    tokenizer = make_tokenizer(train)
    student = Student(make_model(tokenizer), tokenizer)
    for step in student.learn((skilled(rng.choice(train)) for _ in count()), lr=2e-3):
        if step % CHECK_EVERY == 0:
            rate = student.pass_rate(train[::6], greedy=False)
            print(f"seed {seed}: {step} steps, pass rate {rate:.2f}", flush=True)
            if rate == 1.0:
                break
            if step >= MOST_STEPS:
                return None
    for step in student.learn((lazy(rng.choice(train), rng) for _ in count()), lr=1e-3):
        if step == LAZY_STEPS:
            break
    student.round()
    return student if is_in_band(student, held_out) else None


def is_in_band(student: Student, held_out: list[Work]) -> bool:
    greedy, sampled = (student.pass_rate(held_out, greedy=greedy) for greedy in (True, False))
    print(f"held-out pass rate {sampled:.2f}, greedy {greedy:.2f}", flush=True)
    return BAND[0] <= sampled <= BAND[1] and greedy <= MOST_GREEDY


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("out", type=Path)
    options.add_argument("--seed", type=int, default=0, help="the first to try")
    given = options.parse_args()
    torch.set_num_threads(1)
    student = next(filter(None, map(warm_start, count(given.seed))))
    student.save(given.out)


if __name__ == "__main__":
    main()
