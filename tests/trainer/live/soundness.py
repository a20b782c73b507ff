"""What must hold of a run that came to its end, however often it was killed on its way."""

from __future__ import annotations

import json
from pathlib import Path

from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.trainer.live.assignment import group_key
from gyre.trainer.live.settings import RunSettings
from gyre.trainer.update import checkpoint
from gyre.trainer.update.metrics import read_lines
from gyre.treebuilder.store.read import read_trees


def require_sound(settings: RunSettings, killed: int = 0) -> None:
    """Every batch was trained once, of groups that were each trained once, and the log is whole.

    `killed`: executions whose agent may have been killed before it did anything.
    """
    assert settings.out is not None
    out, batches, groups = Path(settings.out), settings.rollout.batches, settings.train.groups_per_batch
    lines = read_lines(out / "metrics.jsonl")
    told = [line for line in lines if line["kind"] == "batch"]
    assert [line["batch"] for line in told] == list(range(batches))
    trained = [group["group"] for line in told for group in line["trained"]]
    assert sorted(trained) == [group_key(index) for index in range(batches * groups)]
    size = settings.rollout.group_size
    missing = [size - len(group["scores"]) for line in told for group in line["trained"]]
    assert min(missing) >= 0 and sum(missing) <= killed
    updates = [line["update"] for line in lines if line["kind"] == "update"]
    assert updates == list(range(1, batches * settings.train.updates_per_batch + 1))
    published = [line["version"] for line in lines if line["kind"] == "publication"]
    newest = json.loads((out / "latest" / checkpoint.STATE).read_text())["live"]["version"]
    assert published == [str(version) for version in range(1, newest + 1)]
    assert (out / "final" / "model.safetensors").is_file()
    _require_whole_log(out, settings, killed)


def _require_whole_log(out: Path, settings: RunSettings, killed: int) -> None:
    """Of each execution the last attempt is scored and counts, and those before are superseded."""
    assert check(out / "logs").ok
    summaries = read_trees(out / "trees").executions()
    mine = [one for one in summaries if one.group and one.group.startswith("g0")]
    counting = [one for one in mine if not one.superseded]
    wanted = settings.rollout.batches * settings.train.groups_per_batch * settings.rollout.group_size
    assert len({one.execution_id for one in counting}) == len(counting)
    assert wanted - killed <= len(counting) <= wanted
    # More than two calls: the proxy tried one again, of which the engine had gone.
    partial = {one.execution_id for one in counting if one.score is None or one.calls < 2}
    assert len(partial) <= killed
    events = read_log(out / "logs").executions.to_pylist()
    scored = {row["execution_id"] for row in events if row["event"] == "scored"}
    assert scored >= {one.execution_id for one in counting} - partial
    ended = {row["execution_id"] for row in events if row["event"] in ("ended", "timed_out")}
    assert len([name for name in ended if name.startswith("g0")]) == wanted
