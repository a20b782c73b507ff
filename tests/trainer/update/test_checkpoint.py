"""What a checkpoint holds, and with what a run may go on from it."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gyre.elastic.engine.models.tiny import make_tiny, save_tiny
from gyre.trainer.config import as_table
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import LossSettings, OptimizerSettings, TrainSettings
from gyre.trainer.update import checkpoint
from gyre.trainer.update.checkpoint import Saved, State, read, require_same, write
from gyre.trainer.update.folder import RunFolder

SETTINGS = TrainSettings()
INPUTS = {"trees": "abc", "model": "def"}
STATE = State(
    format=1,
    gyre="0.1.0",
    update=3,
    epoch=0,
    batch=1,
    part=1,
    bad_in_a_row=0,
    bad=1,
    token_budget=4096,
    settings=as_table(SETTINGS),
    inputs=INPUTS,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of `tiny` with one weight changed, and the folder that it was made from."""
    root = tmp_path_factory.mktemp("checkpoint")
    save_tiny(root / "source")
    (root / "source" / "README.md").write_text("not of the tokenizer")
    model = make_tiny().model
    model.model.norm.weight.data[0] = 7.0
    saved = Saved(
        state=STATE,
        optimizer={"step.w": torch.tensor(3.0), "exp_avg.w": torch.ones(2)},
        batch={"old.run": torch.tensor([-1.5, -0.25])},
    )
    (root / "made").mkdir()
    write(root / "made", model=model, weights=None, source=root / "source", saved=saved)
    return root / "made"


def test_it_is_a_hugging_face_folder_with_the_tokenizer_of_the_model(whole: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    assert model.dtype == torch.float32
    assert model.model.norm.weight[0].item() == 7.0
    assert tokenizer.decode(tokenizer.encode("to train")) == "to train"
    assert tokenizer.chat_template == make_tiny().tokenizer.chat_template
    assert model.generation_config.eos_token_id == make_tiny().model.generation_config.eos_token_id
    assert not (whole / "model" / "README.md").exists()


def test_all_else_comes_back(whole: Path) -> None:
    saved = read(whole)
    assert saved.state == STATE
    assert saved.batch["old.run"].tolist() == [-1.5, -0.25]
    assert saved.optimizer["exp_avg.w"].tolist() == [1, 1]


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file can be longer, in bytes. (Python ignores the signal that comes of it.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("large", ["model", "optimizer", "batch"])
def test_a_full_disk_is_told_and_leaves_nothing_of_the_checkpoint(tmp_path: Path, large: str) -> None:
    folder, many = RunFolder(tmp_path), {"x": torch.ones(1 << 19)}
    model = make_tiny().model
    fits = large != "model"
    saved = Saved(
        state=STATE,
        optimizer=many if large == "optimizer" else {},
        batch=many if large == "batch" else {},
    )

    def fill(place: Path) -> None:
        weights = {"model.norm.weight": model.model.norm.weight} if fits else None
        write(place, model=model, weights=weights, source=None, saved=saved)

    with (
        small_disk(1 << 20),
        pytest.raises(TrainError, match=r"could not be written.*File too large") as caught,
    ):
        folder.write_checkpoint(2, fill, keep=1)
    assert "--resume" in caught.value.hint
    assert list(folder.checkpoints.iterdir()) == []


def test_random_states_come_back(whole: Path) -> None:
    before = torch.get_rng_state()
    try:
        checkpoint.set_random_states(read(whole).optimizer)
        first = torch.rand(3)
        checkpoint.set_random_states(read(whole).optimizer)
        assert torch.equal(torch.rand(3), first)
    finally:
        torch.set_rng_state(before)


@pytest.mark.parametrize("file", ["state.json", "optimizer.safetensors", "batch.safetensors"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x00" * 64])
def test_a_damaged_one_is_named(whole: Path, tmp_path: Path, file: str, content: bytes | None) -> None:
    for path in whole.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(TrainError, match="is damaged"):
        read(tmp_path)


def test_one_of_a_newer_format_is_refused(whole: Path, tmp_path: Path) -> None:
    for name in ("optimizer.safetensors", "batch.safetensors"):
        (tmp_path / name).write_bytes((whole / name).read_bytes())
    newer = msgspec.structs.replace(STATE, format=2)
    (tmp_path / "state.json").write_bytes(msgspec.json.encode(newer))
    with pytest.raises(TrainError, match="checkpoint format 2"):
        read(tmp_path)


def test_a_run_goes_on_as_it_was_without_a_word() -> None:
    assert require_same(STATE, SETTINGS, INPUTS) == []


def changed(**fields: object) -> TrainSettings:
    return msgspec.structs.replace(SETTINGS, **fields)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (changed(seed=1), "seed"),
        (changed(groups_per_batch=2), "groups_per_batch"),
        (changed(train=("*.layers.*",)), "train"),
        (changed(loss=LossSettings(clip_low=0.2)), "loss.clip_low"),
        (changed(optimizer=OptimizerSettings(weight_decay=0.1)), "optimizer.weight_decay"),
    ],
)
def test_what_would_make_it_another_run_is_refused_by_name(settings: TrainSettings, named: str) -> None:
    with pytest.raises(TrainError, match=f"started with `{named}` ="):
        require_same(STATE, settings, INPUTS)


def test_how_long_and_how_fast_may_be_told_anew() -> None:
    settings = changed(max_updates=9, token_budget=100, optimizer=OptimizerSettings(lr=1e-5))
    notes = require_same(STATE, settings, INPUTS)
    assert notes == [
        "`max_updates` is 9 from here on; it was None",
        "`token_budget` is 100 from here on; it was 8192",
        "`optimizer.lr` is 1e-05 from here on; it was 1e-06",
    ]


def test_every_setting_that_may_change_is_one() -> None:
    assert {name for name, _ in checkpoint.flat(as_table(SETTINGS))} >= checkpoint.MAY_CHANGE


@pytest.mark.parametrize("what", ["trees", "model"])
def test_other_inputs_are_refused(what: str) -> None:
    with pytest.raises(TrainError, match=f"started with other {what}"):
        require_same(STATE, SETTINGS, INPUTS | {what: "other"})
