"""The table [train]: what it may say, and that the documentation says all of it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gyre.trainer.config import as_table, as_toml, flat, load_config, settings_of
from gyre.trainer.errors import TrainError
from gyre.trainer.settings import ClipLevel, LossSettings, PassName, TrainSettings

DOCS = (Path(__file__).parents[2] / "docs" / "training.md").read_text()


def load(tmp_path: Path, toml: str, **flags: Any) -> TrainSettings:
    file = tmp_path / "train.toml"
    file.write_text(toml)
    return load_config(file, flags)


def refusal(tmp_path: Path, toml: str) -> str:
    with pytest.raises(TrainError) as caught:
        load(tmp_path, toml)
    return f"{caught.value.message} | {caught.value.hint}"


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    toml = '[train]\nmax_updates = 3\npass = "dfs"\n[train.optimizer]\nlr = 1e-3\n'
    settings = load(tmp_path, toml, max_updates=5, seed=None, **{"optimizer.eps": 1e-6})
    assert (settings.max_updates, settings.tree_pass, settings.seed) == (5, PassName.DFS, 0)
    assert (settings.optimizer.lr, settings.optimizer.eps) == (1e-3, 1e-6)


def test_without_a_file_everything_is_as_usual() -> None:
    assert load_config(None, {}) == TrainSettings()


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("[train]\npas = 1", "unknown key `train.pas` | did you mean `train.pass`?"),
        ("[train]\ntree_pass = 'dfs'", "unknown key `train.tree_pass`"),
        ("[train.loss]\nclip_hi = 1", "did you mean `train.loss.clip_high`?"),
        ("[train]\nlr = 1e-3", "unknown key `train.lr` | did you mean `train.optimizer.lr`?"),
        ("[train]\nevery = 3", "did you mean `train.checkpoint.every`?"),
        ("[train]\nimportanc = 'off'", "did you mean `train.loss.importance`?"),
        ("[train.loss]\nseed = 3", "did you mean `train.seed`?"),
        ("[train]\nlearning_rate = 3", "known keys: seed, epochs"),
        (
            "lr = 1e-3",
            "outside of the table `[train]` | settings of training stand in `[train]`: did you mean",
        ),
        ("logs = 'logs'", "`[train]`; a file for `gyre proxy` is another one"),
        ("[loss]\nkl = 1.0", "unknown table `[loss]` in"),
        ("[train.optimizer]\nlr = 0", "train.toml`: `train.optimizer.lr` is 0: expected `float` > 0"),
        ("[train.optimizer]\nlr = inf", "`train.optimizer.lr` is not finite"),
        ("[train.loss]\nkl = nan", "`train.loss"),
        ("[train]\npass = 'paked'", '`train.pass` is "paked" | one of auto, flat, packed, dfs'),
        ("[train]\ntrain = '*.layers.*'", '`train.train` is "*.layers.*": expected a list, got `str`'),
        ("[train]\nfreeze = [3]", "`train.freeze` is [3]: expected `str`, got `int`"),
        ("[train]\nseed = 1979-05-27", "`train.seed` is "),
        ("[train]\noptimizer = 3", "`train.optimizer` is 3, and is a table"),
        ("train = 3", "`train` in"),
        ("[trian]\nseed = 1", "unknown table `[trian]`"),
        ("seed = ", "is not TOML"),
        ("[train.loss]\nreference = 'm'", "`train.loss.kl` is 0"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_it(tmp_path: Path, toml: str, told: str) -> None:
    assert told in refusal(tmp_path, toml)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(TrainError, match="cannot read `nowhere"):
        load_config(Path("nowhere.toml"), {})


def test_what_is_printed_says_the_same_when_it_is_read(tmp_path: Path) -> None:
    settings = TrainSettings(
        train=("*.layers.*", 'odd"name'), recompute=True, max_updates=7, loss=LossSettings(clip_low=1e-4)
    )
    assert load(tmp_path, as_toml(settings)) == settings
    assert load(tmp_path, as_toml(TrainSettings())) == TrainSettings()


def test_what_is_not_set_is_printed_with_what_it_then_is() -> None:
    printed = as_toml(TrainSettings(loss=LossSettings(clip_level=ClipLevel.TOKEN, clip_high=0.3)))
    assert "# clip_low is not set: 0.2\nclip_high = 0.3\n" in printed
    assert "# clip_high is not set: 0.0004\n" in as_toml(TrainSettings())


def test_a_table_is_json_and_comes_back() -> None:
    table = as_table(TrainSettings())
    assert json.loads(json.dumps(table)) == table
    assert settings_of(table) == TrainSettings()


def test_tables_are_flattened_by_their_names() -> None:
    assert list(flat({"a": 1, "b": {"c": None, "d": [2]}})) == [("a", 1), ("b.c", None), ("b.d", [2])]


def documented() -> dict[str, str]:
    section = DOCS.partition("## Settings")[2].partition("## The folder of a run")[0]
    return dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]*?) ?\|", section, re.MULTILINE))


def fields(kind: type[msgspec.Struct] = TrainSettings, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in msgspec.structs.fields(kind):
        if isinstance(field.default, msgspec.Struct):
            yield from fields(type(field.default), f"{field.encode_name}.")
        else:
            yield prefix + field.encode_name, field.default


def test_every_key_is_documented_with_its_default_and_nothing_else() -> None:
    rows = documented()
    assert set(rows) == {key for key, _ in fields()}
    for key, default in fields():
        if default is not None and default != "":
            shown = list(default) if isinstance(default, tuple) else default
            assert json.loads(rows[key].strip("`")) == shown, key


def test_the_example_of_the_documentation_is_understood(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    tomllib.loads(example)
    assert load(tmp_path, example).optimizer.warmup_updates == 10
