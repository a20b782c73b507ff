"""Random executions through the builder and out again: nothing trained twice, nothing said is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atif
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gyre.proxy.canonical import Kind, blocks_of
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from gyre.treebuilder.trees import Cause
from tests.log.builders import LogBuilder
from tests.trees.export.builders import Folder
from tests.trees.export.load import ROWS, load, trained
from tests.trees.export.test_atif import unresolved
from tests.trees.world.emit import View, emit, write_log
from tests.trees.world.row import Row
from tests.trees.world.story import Story, stories
from tests.trees.world.wires import Form, request_bodies

FEW = settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def built(rows: list[Row], view: View, root: Path) -> Folder:
    """The rows as a log and as a tree."""
    worker = LogBuilder(root / "log").worker()
    write_log(rows, worker, "e1", view)
    worker.close()
    record = emit(rows, view)
    builder = Builder("e1", bodies=record.bodies)
    for call in record.calls:
        builder.add(call)
    folder = Folder(log=root / "log")
    folder.add(builder.tree(), score=1.0, exact=view.ids)
    return folder


@FEW
@given(story=stories())
@pytest.mark.parametrize("fmt", ROWS)
def test_every_kept_target_is_trained_once(fmt: Format, story: Story, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as root:
        folder = built(story.act().rows, View(), Path(root))
        report = export_trees(folder, fmt, Path(root) / "out")
        found = sum(len(trained(fmt, row)) for row in load(fmt, Path(root) / "out"))
    [(summary, _)] = folder.pairs
    assert found == summary.kept_targets == report.targets


@FEW
@given(story=stories(), form=st.sampled_from(Form), ids=st.booleans())
def test_what_was_said_and_done_is_in_the_document(
    story: Story, form: Form, ids: bool, tmp_path: Path
) -> None:
    rows = story.act().rows
    with tempfile.TemporaryDirectory(dir=tmp_path) as root:
        folder = built(rows, View(ids=ids, form=form), Path(root))
        export_trees(folder, Format.ATIF, Path(root) / "out")
        text = (Path(root) / "out" / "e1.json").read_bytes()
    atif.Trajectory.model_validate_json(text)
    document = json.loads(text)
    assert list(unresolved(document)) == []
    [(_, tree)] = folder.pairs
    assert tree
    shown = [(e["call_id"], e.get("attempt", 0), e.get("choice", 0)) for e in calls_of(document)]
    assert sorted(shown) == sorted(link.call for link in tree.links if link.cause is not Cause.RETRY)
    said = set(texts_of(document))
    for row in rows:
        if tuple(row.key) in shown:
            assert [text for text in heard(row, form) if text not in said] == []


def steps_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for each in (document, *document.get("subagent_trajectories", ())):
        yield from each["steps"]


def calls_of(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return (step["extra"] for step in steps_of(document) if step.get("llm_call_count") == 1)


def texts_of(document: dict[str, Any]) -> Iterator[str]:
    for step in steps_of(document):
        yield from step["message"].split("\n\n")
        for result in step.get("observation", {"results": []})["results"]:
            yield result.get("content", "")


def heard(row: Row, form: Form) -> Iterator[str]:
    """What the request says that the model did not say; system prompts may change in place."""
    for body in request_bodies(row.messages, form):
        for block in blocks_of(body):
            if block.kind is Kind.RESULT:
                yield block.text
            elif block.kind is Kind.TEXT and block.role not in ("assistant", "system"):
                yield from block.text.split("\n\n")
