"""Checkpoints of a live run: from the first weights on, with what it has to remember."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from transformers import AutoTokenizer

from gyre.trainer.errors import TrainError
from gyre.trainer.settings import CheckpointSettings, TrainSettings
from gyre.trainer.update import checkpoint
from gyre.trainer.update.checkpoint import require_inputs, require_settings
from gyre.trainer.update.cursor import Cursor
from gyre.trainer.update.folder import RunFolder
from gyre.trainer.update.saving import Saver, newest_saved
from tests.trainer.update.test_learner import SETTINGS, Rig, assert_same

INPUTS = {"model": "abc"}
LIVE = {"burst": 1, "waiting": [{"index": 4, "version": "1"}]}


def saver(root: Path, rig: Rig) -> Saver:
    return Saver(RunFolder(root), rig.learner, source=None, inputs=INPUTS)


def told(folder: Path, settings: TrainSettings = SETTINGS) -> checkpoint.Saved:
    saved = newest_saved(RunFolder(folder), settings, INPUTS, lambda _: None)
    assert saved is not None
    return saved


def test_what_a_live_run_remembers_comes_back(tmp_path: Path) -> None:
    rig = Rig()
    own = saver(tmp_path, rig)
    rig.update(rig.trees())
    own.save(Cursor(), live=LIVE)
    assert own.newest == tmp_path / "checkpoints" / "update-000001"
    again = Rig(seed=1)
    saved = told(tmp_path)
    assert saved.state.live == LIVE
    saver(tmp_path, again).go_on_from(saved)
    assert again.learner.progress == rig.learner.progress


def test_a_live_run_begins_with_a_checkpoint_and_training_on_a_folder_does_not(tmp_path: Path) -> None:
    live, offline = saver(tmp_path / "live", Rig()), saver(tmp_path / "offline", Rig())
    live.save(Cursor(), live=LIVE)
    offline.save(Cursor(), None)
    assert live.newest == RunFolder(tmp_path / "live").newest() == tmp_path / "live/checkpoints/update-000000"
    assert offline.newest is None
    assert not (tmp_path / "offline").exists()
    rig = Rig()
    saver(tmp_path / "live", rig).go_on_from(told(tmp_path / "live"))
    assert rig.learner.progress.update == 0


def test_updates_that_changed_nothing_make_a_checkpoint_all_the_same(tmp_path: Path) -> None:
    rig = Rig()
    own, before = saver(tmp_path, rig), rig.weights()
    own.save(Cursor(), live={"burst": 0})
    rig.learner.stream(groups=1).add([])
    own.save(Cursor(), live={"burst": 1})
    assert told(tmp_path).state.live == {"burst": 1}
    assert_same(rig.weights(), before)


def test_engines_of_a_live_run_keep_the_weights_that_they_serve_until_they_have_the_next(
    tmp_path: Path,
) -> None:
    rig = Rig(msgspec.structs.replace(SETTINGS, checkpoint=CheckpointSettings(keep=1)))
    own = saver(tmp_path, rig)
    for number in range(3):
        before = own.newest
        own.save(Cursor(), live={"burst": number})
        assert before is None or before.is_dir()
        rig.learner.stream(groups=1).add([])
    assert len(RunFolder(tmp_path).all()) == 2


def test_a_chat_template_of_the_runs_own_goes_with_the_model(tmp_path: Path) -> None:
    own = Saver(RunFolder(tmp_path), Rig().learner, source=None, inputs=INPUTS, template="{{ messages }}")
    own.save(Cursor(), live=LIVE)
    assert own.newest is not None
    tokenizer = AutoTokenizer.from_pretrained(own.newest / checkpoint.MODEL)
    assert tokenizer.chat_template == "{{ messages }}"


def test_a_checkpoint_of_an_earlier_gyre_has_no_live_state(tmp_path: Path) -> None:
    rig = Rig()
    own = saver(tmp_path, rig)
    rig.update(rig.trees())
    own.save(Cursor(), None)
    assert own.newest is not None
    path = own.newest / checkpoint.STATE
    state = json.loads(path.read_text())
    del state["live"]
    path.write_text(json.dumps(state))
    assert told(tmp_path).state.live is None


def test_any_table_can_be_compared_and_patterns_say_what_may_change() -> None:
    before = {"engine": {"slots": 4, "env": {}}, "rollout": {"batches": 3}, "model": "tiny"}
    now = {"engine": {"slots": 8, "env": {"A": "1"}}, "rollout": {"batches": 3}, "model": "tiny"}
    notes = require_settings(before, now, {"engine.*"})
    assert notes == [
        "`engine.slots` is 8 from here on; it was 4",
        "`engine.env.A` is '1' from here on; it was None",
    ]
    with pytest.raises(TrainError, match=r"started with `engine.env.A` = '1', not None"):
        require_settings(now, before, {"engine.slots"})


def test_inputs_are_told_apart_by_name() -> None:
    require_inputs({"model": "a", "tasks": "b"}, {"model": "a"})
    with pytest.raises(TrainError, match="started with other tasks"):
        require_inputs({"model": "a"}, {"model": "a", "tasks": "b"})
