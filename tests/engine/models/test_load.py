"""Loading: what comes out, and everything that is refused with a reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gyre.elastic.engine.models.load import load_model
from gyre.elastic.engine.models.tiny import make_tiny
from gyre.elastic.engine.settings import Device, Dtype
from gyre.proxy.errors import EngineError
from tests.engine.models.folders import Spoil, changed, copied, cut, holding, original, without


def refusal(model: str | Path, **options: object) -> EngineError:
    with pytest.raises(EngineError) as caught:
        load_model(str(model), **options)  # type: ignore[arg-type]
    return caught.value


def test_tiny_is_known_by_name_and_its_seed() -> None:
    loaded = load_model("tiny", seed=3)
    assert (loaded.name, loaded.vocab_size, loaded.max_positions) == ("tiny", 2048, 131_072)
    assert (loaded.device, loaded.dtype) == (torch.device("cpu"), torch.float32)
    assert torch.equal(loaded.model.lm_head.weight, make_tiny(3).model.lm_head.weight)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_folder_is_served_under_its_name_and_is_the_same_model(tmp_path: Path) -> None:
    loaded, tiny = load_model(str(copied(tmp_path))), load_model("tiny")
    assert loaded.name == "model"
    for got, expected in zip(loaded.model.parameters(), tiny.model.parameters(), strict=True):
        assert torch.equal(got, expected)
    assert (loaded.stop_ids, loaded.chat_template) == (tiny.stop_ids, tiny.chat_template)
    assert loaded.tokenizer.encode("hello 12") == tiny.tokenizer.encode("hello 12")


def checkpoint(tmp_path: Path) -> None:
    """As `gyre train --out run` leaves it."""
    place = tmp_path / "run" / "checkpoints" / "update-000020"
    place.mkdir(parents=True)
    copied(tmp_path).rename(place / "model")
    (tmp_path / "run" / "latest").symlink_to(place)


def test_a_checkpoint_is_served_under_its_run_and_update(tmp_path: Path) -> None:
    checkpoint(tmp_path)
    assert load_model(str(tmp_path / "run" / "latest" / "model")).name == "run/update-000020"


@pytest.mark.parametrize("given", ["run", "run/latest", "run/checkpoints/update-000020"])
def test_the_folder_of_a_run_is_no_model_but_names_it(tmp_path: Path, given: str) -> None:
    checkpoint(tmp_path)
    error = refusal(tmp_path / given)
    inner = "latest/model" if given == "run" else "model"
    assert error.hint == f"did you mean `{tmp_path / given / inner}`?"


def test_bf16_is_rounded_once_and_rotary_frequencies_never(tmp_path: Path) -> None:
    loaded = load_model(str(copied(tmp_path)), dtype=Dtype.BF16)
    tiny = load_model("tiny", dtype=Dtype.BF16)
    full = make_tiny().model
    assert loaded.dtype == tiny.dtype == torch.bfloat16
    for got, same, exact in zip(
        loaded.model.parameters(), tiny.model.parameters(), full.parameters(), strict=True
    ):
        assert torch.equal(got, same)
        assert torch.equal(got, exact.to(torch.bfloat16))
    frequencies = dict(full.named_buffers())
    for model in (loaded.model, tiny.model):
        assert all(torch.equal(buffer, frequencies[name]) for name, buffer in model.named_buffers())


def test_who_overwrites_the_file_does_not_change_the_model(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    loaded = load_model(str(folder))
    before = loaded.model.lm_head.weight.clone()
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(b"\1" * 1000)
        file.seek(10_000)
        file.write(b"\1" * 1_000_000)
    assert torch.equal(loaded.model.lm_head.weight, before)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    model = load_model(str(copied(tmp_path))).model
    assert model.lm_head.weight is model.get_input_embeddings().weight


TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|endoftext|>{% endfor %}"


def test_a_tokenizer_without_a_template_still_loads(tmp_path: Path) -> None:
    folder = copied(tmp_path, without("chat_template.jinja"))
    assert load_model(str(folder)).chat_template is None


def test_a_template_of_ones_own_takes_the_place_of_the_models(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    assert load_model("tiny", chat_template=file).chat_template == TEMPLATE


def test_what_ends_an_answer_is_told_by_the_files_and_by_the_template(tmp_path: Path) -> None:
    silent = (without("generation_config.json"), changed("config.json", eos_token_id=None))
    silent += (changed("tokenizer_config.json", eos_token=None),)
    folder = copied(tmp_path, *silent)
    assert load_model(str(folder)).stop_ids == {2043}
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    assert load_model(str(folder)).stop_ids == {2041}
    (folder / "chat_template.jinja").write_text("{{ messages[1].content }} and so on")
    assert load_model(str(folder)).stop_ids == frozenset()
    (folder / "generation_config.json").write_text('{"eos_token_id": 17}')
    assert load_model(str(folder)).stop_ids == {17}
    changed("tokenizer_config.json", eos_token="<|im_start|>")(folder)
    assert load_model(str(folder)).stop_ids == {17, 2042}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        (b"\xff\xfe", "is no UTF-8"),
        (b"{% for x in %}", "line 1"),
    ],
)
def test_a_chat_template_that_is_none_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "bad.jinja"
    if content is not None:
        file.write_bytes(content)
    message = str(refusal("tiny", chat_template=file))
    assert "bad.jinja" in message and reason in message


def test_a_template_may_refuse_the_messages_it_is_tried_with(tmp_path: Path) -> None:
    file = tmp_path / "strict.jinja"
    file.write_text("{{ raise_exception('only tools') }}")
    assert load_model("tiny", chat_template=file).chat_template == file.read_text()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without("config.json"), "has no config.json"),
        (holding("config.json", "{"), "cannot read"),
        (holding("config.json", "[]"), "no JSON object"),
        (changed("config.json", model_type="gpt17"), "no model type `gpt17`"),
        (changed("config.json", model_type=None), "no model type `None`"),
        (changed("config.json", model_type="x", auto_map={"AutoConfig": "x.X"}), "code of its own"),
        (changed("config.json", hidden_size="many"), "hidden_size"),
        (changed("config.json", model_type="vit", architectures=None), "no causal language model"),
        (changed("config.json", architectures=["Qwen3ForSequenceClassification"]), "Classification"),
        (changed("config.json", quantization_config={"quant_method": "fp8"}), "quantized"),
        (changed("config.json", hidden_size=256), "another shape for `model.embed_tokens.weight`"),
        (changed("config.json", num_hidden_layers=3, layer_types=None), "lack `model.layers.2."),
        (changed("config.json", num_hidden_layers=1, layer_types=None), "does not: `model.layers.1."),
        (without("tokenizer.json"), "no tokenizer.json"),
        (holding("tokenizer.json", "{"), "tokenizer.json` is no tokenizer"),
        (holding("tokenizer.json", "{}"), "tokenizer.json` is no tokenizer"),
        (holding("tokenizer_config.json", "{"), "cannot read"),
        (holding("tokenizer_config.json", "[]"), "tokenizer_config.json` is no JSON object"),
        (changed("config.json", vocab_size=2000), "usable: Padding_idx"),
        (changed("config.json", hidden_act="zzz"), "transformers knows no 'zzz'"),
        (changed("config.json", num_hidden_layers=3), "`num_hidden_layers` (3) must be equal"),
        (holding("generation_config.json", "{"), "cannot read"),
        (holding("generation_config.json", "[]"), "generation_config.json` is no JSON object"),
        (changed("config.json", dtype="zzz"), "has no attribute 'zzz'"),
        (changed("config.json", max_position_embeddings=0), "model has 0 positions"),
        (changed("config.json", max_position_embeddings=-5), "model has -5 positions"),
        (
            changed("generation_config.json", eos_token_id=2048),
            "eos_token_id 2048, which is none of its 2048",
        ),
        (changed("generation_config.json", eos_token_id=[7, -1]), "eos_token_id -1,"),
        (changed("generation_config.json", eos_token_id="x"), "eos_token_id 'x',"),
        (changed("generation_config.json", eos_token_id=[[7]]), "eos_token_id [7],"),
        (
            holding("chat_template.jinja", "{% if %}"),
            "the chat template of `model` is no Jinja template: line 1",
        ),
        (
            holding("adapter_config.json", "{}"),
            "has an adapter (adapter_config.json), which would be ignored",
        ),
        (changed("tokenizer_config.json", tokenizer_class="CanineTokenizer"), "no fast tokenizer"),
        (without("model.safetensors"), "no file named model.safetensors"),
        (cut("model.safetensors", 100_000), "the weights of"),
        (holding("model.safetensors", "junk" * 100), "the weights of"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_with_the_reason(
    tmp_path: Path, spoil: Spoil, reason: str
) -> None:
    message = str(refusal(copied(tmp_path, spoil)))
    assert reason in message and "\n" not in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float) -> None:
    folder = copied(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][2047, 3] = value  # of a token that no check tries
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert "`model.embed_tokens.weight` has values that are not finite" in str(refusal(folder))


def test_a_template_of_ones_own_may_take_the_place_of_a_broken_one(tmp_path: Path) -> None:
    folder = copied(tmp_path, holding("chat_template.jinja", "{% if %}"))
    assert "--chat-template" in refusal(folder).hint
    file = tmp_path / "own.jinja"
    file.write_text(TEMPLATE)
    assert load_model(str(folder), chat_template=file).chat_template == TEMPLATE


def test_code_in_a_folder_is_never_run(tmp_path: Path) -> None:
    code = holding("evil.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
    names = {"AutoConfig": "evil.A", "AutoModelForCausalLM": "evil.B", "AutoTokenizer": ["evil.C", "evil.C"]}
    folder = copied(tmp_path, code, changed("config.json", auto_map=names))
    changed("tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]})(folder)
    load_model(str(folder))  # transformers knows the model type itself
    changed("config.json", model_type="evil")(folder)
    assert "code of its own" in str(refusal(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["gpt-17", "no/such/folder"])
def test_an_unknown_name_is_refused_with_those_that_are_known(name: str) -> None:
    error = refusal(name)
    assert "no such model" in str(error) and "smollm2" in error.hint
    assert "hf download" not in error.hint
    assert "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`" in refusal("Qwen/Qwen3-0.6B").hint


def test_files_are_no_folders(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"x": torch.zeros(1)}, file)
    assert "is no folder" in str(refusal(file))
    assert "--runtime llamacpp" in refusal(tmp_path / "model.gguf").hint


def test_an_adapter_is_told_to_be_merged_first(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "merge the adapter" in refusal(tmp_path).hint


def test_weights_in_several_files_are_one_model(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = {}
    for number, half in enumerate((sorted(weights)[:9], sorted(weights)[9:]), 1):
        shard = f"model-0000{number}-of-00002.safetensors"
        save_file({name: weights[name] for name in half}, folder / shard, metadata={"format": "pt"})
        names |= dict.fromkeys(half, shard)
    holding("model.safetensors.index.json", "{}")(folder)
    changed("model.safetensors.index.json", metadata={"total_size": 1}, weight_map=names)(folder)
    loaded = load_model(str(folder))
    assert torch.equal(loaded.model.lm_head.weight, make_tiny().model.lm_head.weight)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "the weights of" in str(refusal(folder))


def test_more_context_than_the_model_has_positions_is_refused() -> None:
    assert "131072 positions" in str(refusal("tiny", ctx=131_073))
    assert load_model("tiny", ctx=131_072).max_positions == 131_072


def test_a_model_whose_rotation_changes_with_length_serves_its_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 4096}
    rope |= {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "factor": 32.0}
    assert (
        load_model(str(copied(tmp_path, changed("config.json", rope_parameters=rope)))).max_positions == 4096
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named() -> None:
    error = refusal("tiny", device=Device.CUDA)
    assert "`cuda`" in str(error) and "cpu" in error.hint


def test_the_files_read_are_left_as_they_were() -> None:
    assert {path.name for path in original().iterdir()} == {
        *("config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
