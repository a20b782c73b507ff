"""Each format as its reader documents it, from trees made by hand; golden files hold whole exports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.treebuilder.export.export import export_trees
from gyre.treebuilder.export.source import Format
from tests.trees.export.builders import Folder, TreeBuilder, branching, straight, usual
from tests.trees.export.load import ROWS, load

GOLDEN = Path(__file__).parent / "golden"
LEFT_OUT = {
    "evaluation": 1,
    "no_score": 1,
    "run_timeout": 1,
    "scorer_failed": 1,
    "skipped": 1,
    "superseded": 1,
    "text_only": 1,
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def exported(fmt: Format, out: Path) -> list[dict[str, Any]]:
    export_trees(usual(), fmt, out)
    return load(fmt, out)


@pytest.mark.parametrize("fmt", ROWS)
def test_an_export_is_what_it_was(fmt: Format, out: Path) -> None:
    rows = exported(fmt, out)
    assert rows == json.loads((GOLDEN / f"{fmt}.json").read_text())


@pytest.mark.parametrize("fmt", ROWS)
def test_the_report_counts_what_is_in_it_and_what_is_not(fmt: Format, out: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = export_trees(usual(), fmt, out, progress=lambda done, of: seen.append((done, of)))
    assert (report.executions, report.rows, report.targets, report.tokens) == (6, 8, 20, 48)
    assert report.left_out == LEFT_OUT
    assert seen == [(done, 6) for done in range(1, 7)]


def test_a_trl_row_is_what_a_rollout_function_returns(out: Path) -> None:
    for row in exported(Format.TRL, out):
        assert {"prompt_ids", "completion_ids", "logprobs", "env_mask"} <= set(row)
        assert row["prompt_ids"] and row["env_mask"][0] == 1
        assert len(row["completion_ids"]) == len(row["logprobs"]) == len(row["env_mask"])


def test_verl_rows_have_queue_keys_and_the_scored_leaf_last(out: Path) -> None:
    rows = exported(Format.VERL, out)
    for row in rows:
        assert row["key"].rsplit("_", 2) == [row["uid"], str(row["session_id"]), str(row["index"])]
        assert len(row["response_ids"]) == len(row["response_mask"]) == len(row["response_logprobs"])
        assert row["response_mask"][0] == 1
    assert len({row["key"] for row in rows}) == len(rows)
    good = [row for row in rows if row["extra_fields"]["execution_id"] == "good"]
    assert [row["index"] for row in good] == [0, 1, 2]
    assert good[-1]["extra_fields"]["trajectory_id"] == 0
    assert {row["reward_score"] for row in good} == {1.0}


def test_slime_siblings_share_their_rollout_and_their_group(out: Path) -> None:
    rows = exported(Format.SLIME, out)
    for row in rows:
        assert len(row["loss_mask"]) == len(row["rollout_log_probs"]) == row["response_length"]
        assert row["status"] in ("pending", "completed", "truncated", "aborted", "failed")
    shared = {
        row["metadata"]["execution_id"]: (row["group_index"], row["rollout_id"], row["reward"], row["status"])
        for row in rows
    }
    assert shared["good"] == (0, 0, 1.0, "completed")
    assert shared["late"] == (0, 1, 0.0, "truncated")
    assert len({rollout for _, rollout, _, _ in shared.values()}) == len(shared)


def test_an_areal_row_has_one_of_everything_per_token(out: Path) -> None:
    for row in exported(Format.AREAL, out):
        names = ("input_ids", "loss_mask", "logprobs", "versions", "attention_mask")
        assert {len(row[name]) for name in names} == {len(row["input_ids"])}
        trained = [version for version, mask in zip(row["versions"], row["loss_mask"], strict=True) if mask]
        assert all(version >= 0 for version in trained)
        assert row["versions"].count(-1) == row["loss_mask"].count(0)


def test_skyrl_steps_are_adjacent_and_the_last_has_the_reward(out: Path) -> None:
    rows = exported(Format.SKYRL, out)
    names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "rollout_logprobs")
    assert all(len(row[name]) == 1 for row in rows for name in (*names, "trajectory_ids", "is_last_step"))
    steps = [(tuple(row["trajectory_ids"][0].values()), row["is_last_step"][0]) for row in rows]
    ends = [place for place, (_, last) in enumerate(steps) if last]
    assert ends == [2, 3, 4, 5, 6, 7]
    assert [steps[end][0] for end in ends] == list(dict.fromkeys(name for name, _ in steps))
    assert [sum(row["rewards"][0]) for row in rows] == [0, 0, 1, 0, 0.5, 0.5, 0, 1]
    assert rows[2]["rewards"][0][-1] == 1


def test_prime_rl_weights_make_executions_count_the_same(out: Path) -> None:
    rows = exported(Format.PRIME_RL, out)
    tokens = sum(sum(row["mask"]) for row in rows)
    assert sum(sum(row["rl_weights"]) for row in rows) == pytest.approx(tokens)
    assert sum(sum(row["rl_weights"]) for row in rows[:3]) == pytest.approx(sum(rows[3]["rl_weights"]))
    for row in rows:
        names = ("mask", "logprobs", "temperatures", "rl_weights", "advantages")
        assert {len(row[name]) for name in names} == {len(row["token_ids"])}
        assert [weight > 0 for weight in row["rl_weights"]] == row["mask"]


def test_prime_rl_temperatures_are_those_of_calls_from_the_token_before_an_answer(out: Path) -> None:
    rows = exported(Format.PRIME_RL, out)
    assert [row["temperatures"] for row in rows[:4]] == [
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.7, 0.7],
        [1.0, 0.5, 0.5, 0.5, 0.5],
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 0.7, 0.7],
        [1.0] * 6,
    ]


def test_versions_that_are_no_numbers_have_no_number(out: Path) -> None:
    built = TreeBuilder("e")
    built.admit(built.call("a", None, [1], [2, 3], versions=[("main", 0, 2)]), 0)
    folder = Folder()
    folder.add(built.tree(), score=1.0)
    for fmt in (Format.TRL, Format.VERL, Format.AREAL, Format.SLIME):
        export_trees(folder, fmt, out, force=True)
        [row] = load(fmt, out)
        match fmt:
            case Format.TRL:
                assert row["model_version"] is None
            case Format.VERL:
                assert row["extra_fields"]["min_global_steps"] is None
            case Format.AREAL:
                assert row["versions"] == [-1, -1, -1]
            case _:
                assert row["weight_versions"] == ["main"]


@pytest.mark.parametrize("fmt", ROWS)
def test_a_target_without_logprob_is_for_no_trainer(fmt: Format, out: Path) -> None:
    folder = Folder()
    for name in ("bare", "holed", "whole"):
        folder.add(straight(name), score=1.0)
    bare, holed = (pair[1] for pair in folder.pairs[:2])
    assert bare and holed
    bare.nodes[1].logprobs = None
    assert holed.nodes[1].logprobs is not None
    holed.nodes[1].logprobs[1] = float("nan")
    report = export_trees(folder, fmt, out)
    rows = load(fmt, out)
    if fmt in (Format.JSONL, Format.PARQUET):
        assert [row["behaviour_logprobs"][3:] for row in rows] == [[None, None], [-0.25, None], [-0.25, -0.5]]
    else:
        assert (len(rows), report.left_out) == (1, {"no_logprobs": 2})


@pytest.mark.parametrize("fmt", ROWS)
def test_a_path_that_brings_nothing_is_a_row_for_looking_only(fmt: Format, out: Path) -> None:
    tree = branching()
    tree.nodes[5].target = False
    tree.kept_targets -= 2
    folder = Folder()
    folder.add(tree, score=1.0)
    plain = fmt in (Format.JSONL, Format.PARQUET)
    assert export_trees(folder, fmt, out).rows == (3 if plain else 2)


@pytest.mark.parametrize("fmt", ROWS)
def test_nothing_to_train_is_an_empty_file(fmt: Format, out: Path) -> None:
    folder = Folder()
    folder.add(straight("e", []), score=1.0)
    report = export_trees(folder, fmt, out)
    assert load(fmt, out) == []
    assert report.left_out == {"no_targets": 1}
