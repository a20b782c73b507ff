"""The real small model: what is rebuilt is what the file holds, and it is made once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from gguf import GGUFReader, dequantize
from transformers import AutoTokenizer

from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.models.smollm2 import rebuilt
from gyre.elastic.llamacpp import LlamaCppSettings, serve
from gyre.elastic.packaged import smollm2_file
from gyre.proxy.errors import EngineError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BUILD = "from gyre.elastic.engine.models.smollm2 import rebuilt; print(rebuilt(print))"


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model("smollm2")


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[httpx.Client]:
    with (
        serve(LlamaCppSettings(threads=1)) as engine,
        httpx.Client(base_url=engine.url, timeout=60) as client,
    ):
        yield client


def build(cache: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", BUILD],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_is_made_once_whatever_was_killed_and_however_many_ask(tmp_path: Path) -> None:
    killed = build(tmp_path)
    while not list(tmp_path.glob("gyre/*.partial/model.safetensors")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.communicate()
    both = [build(tmp_path), build(tmp_path)]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(len(out.splitlines()) for out, _ in said) == [1, 2]  # one of them built
    assert [err for _, err in said] == ["", ""]
    folder = Path(said[0][0].splitlines()[-1])
    assert str(folder) == said[1][0].splitlines()[-1]
    assert {path.suffix for path in folder.parent.iterdir()} == {"", ".lock"}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(EngineError, match="cannot write") as caught:
        rebuilt(print)
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_the_weights_are_the_files_to_the_last_bit(smollm2: LoadedModel) -> None:
    tensors = {tensor.name: tensor for tensor in GGUFReader(smollm2_file()).tensors}
    layer = smollm2.model.get_submodule("model.layers.7")
    pairs = {
        "token_embd": smollm2.model.get_input_embeddings(),
        "blk.7.ffn_down": layer.get_submodule("mlp.down_proj"),
        "blk.7.attn_v": layer.get_submodule("self_attn.v_proj"),
        "blk.7.attn_norm": layer.get_submodule("input_layernorm"),
    }
    for name, module in pairs.items():
        tensor = tensors[f"{name}.weight"]
        expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        assert torch.equal(module.get_parameter("weight"), expected)


def greedy(smollm2: LoadedModel, question: str, tokens: int) -> str:
    tokenizer, model = smollm2.tokenizer, smollm2.model
    talk = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    prompt = torch.tensor([tokenizer.encode(str(text))])
    model.set_attn_implementation("sdpa")
    out = model.generate(prompt, do_sample=False, max_new_tokens=tokens)  # type: ignore[operator]
    return str(tokenizer.decode(out[0, prompt.shape[1] :]))


def test_it_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    assert "Paris" in greedy(smollm2, "What is the capital of France?", 12)


def varied_texts() -> list[str]:
    draw = random.Random(0)
    words = ["the ", "ing ", " and", "'s", "<|im_end|>", "12", " 7", "\n\n", "  ", "\t", "３", "½"]
    ranges = [(0x20, 0x7F), (0xA0, 0x2FFF), (0x4E00, 0x9FFF), (0x1F300, 0x1F6FF)]

    def piece() -> str:
        return draw.choice(words) if draw.random() < 0.4 else chr(draw.randrange(*draw.choice(ranges)))

    own = [
        "def f(x):\n    return x**2  # 10",
        '{"name": "read", "arguments": {"n": 1.50}}',
        "naïve 👩‍👩‍👧 e\u0301",
    ]
    return own + ["".join(piece() for _ in range(draw.randrange(1, 40))) for _ in range(300)]


def test_text_has_the_ids_that_llama_cpp_gives_it(smollm2: LoadedModel, llamacpp: httpx.Client) -> None:
    for text in varied_texts():
        ask = {"content": text, "add_special": True, "parse_special": True}
        ids = llamacpp.post("/tokenize", json=ask).json()["tokens"]
        assert smollm2.tokenizer.encode(text) == ids, text
        assert smollm2.tokenizer.decode(ids) == text


def test_chats_are_rendered_as_by_the_models_own_template(smollm2: LoadedModel) -> None:
    source = smollm2_file()
    own = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).chat_template
    user, answer = {"role": "user", "content": "Hi 1"}, {"role": "assistant", "content": "Yes\n"}
    system = {"role": "system", "content": "Be brief."}
    for talk in ([user], [system, user], [user, answer, user], [system, user, answer]):
        for prompt in (True, False):
            texts = [
                smollm2.tokenizer.apply_chat_template(
                    talk, chat_template=template, tokenize=False, add_generation_prompt=prompt
                )
                for template in (own, smollm2.chat_template)
            ]
            assert texts[0] == texts[1]


def test_its_stop_ids_are_the_end_of_turn_and_of_text(smollm2: LoadedModel) -> None:
    assert {smollm2.tokenizer.decode([id_]) for id_ in smollm2.stop_ids} == {"<|im_end|>", "<|endoftext|>"}
    assert (smollm2.max_positions, smollm2.vocab_size) == (8192, 49_152)
