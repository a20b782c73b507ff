"""The random model: the same bits for the same seed, everywhere; its tokenizer loses no text."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from gyre.elastic.engine.models.tiny import CONTROL, MARKERS, VOCAB_SIZE, Tiny, make_tiny, save_tiny

TINY = make_tiny(7)


def digest(tiny: Tiny) -> str:
    sha = hashlib.sha256(tiny.tokenizer.backend_tokenizer.to_str().encode())
    for name, parameter in tiny.model.named_parameters():
        sha.update(name.encode() + parameter.detach().numpy().tobytes())
    return sha.hexdigest()


def test_a_seed_means_the_same_bits_in_any_process_and_with_any_threads() -> None:
    """Here it is made with one."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r});"
    program += "from test_tiny import digest; from gyre.elastic.engine.models.tiny import make_tiny;"
    program += "print(digest(make_tiny(7)))"
    environment = os.environ | {"OMP_NUM_THREADS": "3", "RAYON_NUM_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digest(TINY)


def test_another_seed_has_other_weights_and_the_same_tokenizer() -> None:
    other = make_tiny(8)
    assert not torch.equal(other.model.lm_head.weight, TINY.model.lm_head.weight)
    assert other.tokenizer.backend_tokenizer.to_str() == TINY.tokenizer.backend_tokenizer.to_str()


def test_torchs_own_random_state_is_left_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    make_tiny(1)
    assert torch.equal(torch.rand(3), expected)


def test_every_id_of_the_model_is_a_token() -> None:
    assert len(TINY.tokenizer) == TINY.config.vocab_size == VOCAB_SIZE
    assert None not in TINY.tokenizer.convert_ids_to_tokens(list(range(VOCAB_SIZE)))


@pytest.mark.parametrize("text", [*CONTROL, *MARKERS])
def test_chat_and_tool_marks_are_one_id_each(text: str) -> None:
    assert len(TINY.tokenizer.encode(f"a{text}b")) == 3


@given(st.text())
def test_no_text_is_lost(text: str) -> None:
    assert TINY.tokenizer.decode(TINY.tokenizer.encode(text)) == text


def test_its_logits_are_not_flat() -> None:
    with torch.no_grad():
        logits_NV = TINY.model(torch.tensor([[5, 1000, 2000, 17]])).logits[0]
    assert 0.8 < logits_NV.std() < 2


def test_it_ends_at_the_end_of_a_turn_and_of_the_text() -> None:
    ends = TINY.tokenizer.convert_ids_to_tokens(TINY.model.generation_config.eos_token_id)
    assert ends == ["<|im_end|>", "<|endoftext|>"]


def test_a_saved_one_is_the_same_for_transformers(tmp_path: Path) -> None:
    save_tiny(tmp_path, 7)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert digest(Tiny(config=model.config, model=model, tokenizer=tokenizer)) == digest(TINY)
    assert model.generation_config.eos_token_id == TINY.model.generation_config.eos_token_id


def test_it_can_chat() -> None:
    messages = [{"role": "user", "content": "hello"}]
    text = TINY.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
