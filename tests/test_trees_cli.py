"""`gyre-trees` as a user types it, on small logs; what it prints where, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gyre.cli import main as gyre
from gyre.cli import output, trees
from gyre.cli.trees_show import Worth, print_tree
from gyre.proxy.log.sealing.seal import seal
from gyre.treebuilder.export.source import Format
from gyre.treebuilder.options import CAP, Options, Rule
from gyre.treebuilder.trees import CallKey, Cause, Disagreement
from tests.log.builders import LogBuilder, growing_run, message
from tests.trees.made import Made, typical


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())
    monkeypatch.delenv("GYRE_DEBUG", raising=False)


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    builder = LogBuilder(tmp_path / "logs")
    worker = builder.worker()
    growing_run(worker, 4, execution="solve-1")
    growing_run(worker, 3, execution="solve-2", seed=1)
    worker.event("scored", execution="solve-1", score=1.0, group="g")
    worker.event("scored", execution="solve-2", outcome="no_artifact", group="g")
    worker.die()
    return builder


@pytest.fixture
def folder(log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run("build", log.root, "-o", tmp_path / "trees") == 0
    capsys.readouterr()
    return tmp_path / "trees"


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as end:
        trees.main([str(argument) for argument in arguments])
    return int(end.value.code or 0)


def ask(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> Any:
    assert run(*arguments, "--json") == code
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == 1
    return document


def broken(log: LogBuilder) -> None:
    worker = log.worker("w9")
    worker.call("odd", execution="broken", logprobs=b"")
    worker.die()


def test_build_says_what_it_built(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("build", log.root, "-o", tmp_path / "trees") == 0
    shown = capsys.readouterr()
    for text in ("built now", "calls", "targets", "kept share"):
        assert text in shown.out
    assert "error" not in shown.err
    document = ask(capsys, "build", log.root, "-o", tmp_path / "trees")
    assert (document["rebuilt"], document["report"]["executions"]["total"], document["ok"]) == (0, 2, True)


def test_what_cannot_be_built_is_named_and_the_others_are_built(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(log)
    assert run("build", log.root, "-o", tmp_path / "trees") == 1
    shown = capsys.readouterr()
    assert "`broken`" in shown.err and "`odd`" in shown.err
    assert "broken" not in shown.out
    document = ask(capsys, "build", log.root, "-o", tmp_path / "trees", code=1)
    assert [skipped["execution_id"] for skipped in document["report"]["skipped"]] == ["broken"]
    assert run("show", tmp_path / "trees", "solve-1") == 0
    assert run("show", tmp_path / "trees", "broken") == 1
    assert "could not be rebuilt" in capsys.readouterr().err


def test_quiet_still_says_why_it_failed(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seal(log.root)
    [path] = (log.root / "calls").iterdir()
    path.write_bytes(b"PAR1")
    capsys.readouterr()
    assert run("build", log.root, "-o", tmp_path / "trees", "--quiet") == 1
    assert capsys.readouterr().err.startswith(f"error: {path}: cannot be read")


def test_strict_stops_at_the_first(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken(log)
    assert run("build", log.root, "-o", tmp_path / "trees", "--strict") == 1
    assert "error: " in capsys.readouterr().err


def test_show_is_a_tree_a_person_can_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", folder, "solve-1") == 0
    text = capsys.readouterr().out
    assert text.startswith("solve-1  score 1 · advantage +")
    assert "main #0  start" in text
    assert "40 targets, all kept" in text
    assert "\x1b" not in text
    assert run("show", folder, "solve-1", "--calls") == 0
    assert "solve-1-00003" in capsys.readouterr().out


def test_show_fits_the_width_it_is_given(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", folder, "solve-1", "--calls", "--width", "60") == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


PICTURE = """\
e1  score 0.5 · advantage +0.700 · timed_out · task t · group g
9 calls · 5 contexts · 897 prompt tokens, 70% shared · 387 in the tree · 114 sampled · 106 targets, 98 kept
not trained: 8 greedy
left out: 8 cap:main

main #0  start  4 calls · 178 tokens · 75% shared · 60 targets, all kept · trajectory 0 · 1 stub
  reasoning_stripped: 1 call, at token 115
  1 try beside the one that was kept
  not trained: greedy, 1 call
  headers say compaction, tokens reasoning_stripped: c3
├── sub #1  delegation (blocking) from #0  2 calls · 54 tokens · 49% shared · 8 targets, all kept \
· trajectory 2
└── main_summary #2  compaction (summary, suffix_prompt) from #0  1 call · 212 tokens · 93% shared · \
30 targets, all kept · trajectory 1
main #3  compaction (restart, kept_tail) after #0  1 call · 64 tokens · 0% shared · 4 targets, none kept
unknown #4  unknown  1 call · 19 tokens · 0% shared · 4 targets, none kept
  quarantined: a side call or a sub-agent
"""


def test_the_picture_of_a_typical_execution(capsys: pytest.CaptureFixture[str]) -> None:
    made = typical()
    tree = made.tree()
    tree.disagreements = [Disagreement(CallKey("c3"), "compaction", "reasoning_stripped")]
    summary = made.summary(score=0.5, outcome="timed_out", task="t", group="g")
    print_tree(summary, tree, Worth(0.7, None), calls=False, width=None)
    assert capsys.readouterr().out == PICTURE


def test_with_its_calls_a_context_stands_below_the_call_it_came_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = typical()
    print_tree(made.summary(), made.tree(), Worth(None, "no_score"), calls=True, width=None)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "e1  no score · not trained: no_score"
    at = next(number for number, line in enumerate(lines) if "c2  continuation" in line)
    assert lines[at] == "├── c2  continuation  130 (120 shared) + 20  20 targets  ids: as made for c2"
    assert lines[at + 1].startswith("│   └── sub #1  delegation")


def test_both_sides_of_a_prefix_break_are_shown_as_ids_or_as_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = typical()
    tree = made.tree()
    link = next(link for link in tree.links if link.cause is Cause.REASONING_STRIPPED)
    link.break_before, link.break_after = np.array([5, 6], np.int32), np.array([7], np.int32)
    print_tree(made.summary(), tree, Worth(None, None), calls=True, width=None)
    assert "at token 115: [5 6] became [7]" in capsys.readouterr().out
    words = {5: "<think>", 6: "hm", 7: "Done"}
    print_tree(
        made.summary(),
        tree,
        Worth(None, None),
        calls=True,
        width=None,
        spell=lambda ids: repr(" ".join(words[int(i)] for i in ids)),
    )
    assert "at token 115: '<think> hm' became 'Done'" in capsys.readouterr().out


def test_a_break_that_costs_has_a_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogBuilder(tmp_path / "stripped")
    worker = log.worker()
    answer = b'{"role":"assistant","content":"done","reasoning_content":"hm"}'
    worker.call("a", [1, 2], [3, 4, 5], [message("go")], response=answer)
    history = [message("go"), message("done", "assistant"), message("more")]
    worker.call("b", [1, 2, 5, 9], [6], history, parent=("a", 0, 0))
    worker.die()
    assert run("build", log.root, "-o", tmp_path / "t") == 0
    assert "note: 1 call reasoning_stripped: the template" in capsys.readouterr().err


def test_what_was_built_from_texts_claims_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    made = Made(exact=False)
    made.call("c1", trained=False)
    print_tree(made.summary(), made.tree(), Worth(None, "no_score"), calls=False, width=None)
    shown = capsys.readouterr().out
    assert "never trained" in shown and "blocks" in shown
    assert "tokens" not in shown and "targets" not in shown


def test_show_has_all_of_it_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "show", folder, "solve-2", "--calls")
    assert document["execution"]["outcome"] == "no_artifact"
    assert document["advantage"] < 0
    assert document["not_trained"] is None
    (context,) = document["contexts"]
    assert (context["role"], context["cause"], context["calls"], context["slots"]) == (
        "main",
        "start",
        3,
        [0],
    )
    assert [link["cause"] for link in context["links"]] == ["start", "continuation", "continuation"]


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["solve-11"], "no execution `solve-11`", "did you mean `solve-1`?"),
        (["other"], "no execution `other`", "gyre-trees stats"),
        (["solve-1", "--attempt", "3"], "`solve-1` has no attempt 3", "it has 0"),
    ],
)
def test_show_of_what_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
) -> None:
    assert run("show", folder, *arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert error in shown.err and hint in shown.err


def test_attempts_are_apart_and_the_last_is_shown(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = log.worker("w2")
    worker.call("again", execution="solve-1", execution_attempt=1, messages=[message("anew")])
    worker.die()
    run("build", log.root, "-o", tmp_path / "trees")
    capsys.readouterr()
    assert ask(capsys, "show", tmp_path / "trees", "solve-1")["execution"]["calls"] == 1
    first = ask(capsys, "show", tmp_path / "trees", "solve-1", "--attempt", "0")
    assert (first["execution"]["calls"], first["not_trained"]) == (4, "superseded")


def test_a_score_that_comes_later_is_found(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build = ("build", log.root, "-o", tmp_path / "trees")
    run(*build)
    with pytest.raises(SystemExit):
        gyre.main(["log", "score", str(log.root), "--execution", "solve-2", "--score", "3"])
    run(*build)
    capsys.readouterr()
    document = ask(capsys, "show", tmp_path / "trees", "solve-2")
    assert document["execution"]["score"] == 3
    assert document["advantage"] > 0


def test_a_file_of_scores_outweighs_the_log(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = tmp_path / "scores.csv"
    scores.write_text("execution,score\nsolve-2,7\n")
    assert run("build", log.root, "-o", tmp_path / "trees", "--scores", scores) == 0
    capsys.readouterr()
    assert ask(capsys, "show", tmp_path / "trees", "solve-2")["execution"]["score"] == 7
    scores.write_text("execution,scor\nsolve-2,7\n")
    assert run("build", log.root, "-o", tmp_path / "trees", "--scores", scores) == 1
    assert "did you mean `score`?" in capsys.readouterr().err


def test_scores_of_other_logs_are_told_in_a_few_lines(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = tmp_path / "scores.jsonl"
    names = ["solve-1", *(f"other-{number}" for number in range(1000))]
    scores.write_text("".join(f'{{"execution_id": "{name}", "score": 1}}\n' for name in names))
    assert run("build", log.root, "-o", tmp_path / "trees", "--scores", scores) == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 21 and any("980 more executions" in line for line in told)


def test_what_is_odd_is_told_in_a_few_lines(
    log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = log.worker("w3")
    for number in range(60):
        worker.call(f"c{number}", execution=f"odd-{number}", started_ns=9 * 10**18, ended_ns=10**18)
    worker.die()
    assert run("build", log.root, "-o", tmp_path / "trees") == 0
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 51 and "10 more" in told[-1] and "report.json" in told[-1]


def test_stats_adds_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "stats", folder)
    assert (document["executions"], document["calls"], document["targets"]) == (2, 7, 70)
    assert document["roles"]["main"]["kept_targets"] == 70
    assert document["groups"][0]["name"] == "g"
    assert sum(document["groups"][0]["advantages"].values()) == pytest.approx(0)
    assert run("stats", folder) == 0
    shown = capsys.readouterr().out
    assert "continuation" in shown and "kept share of targets" in shown


def test_verify_proves_a_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = ask(capsys, "verify", folder)
    assert document["ok"]
    assert run("verify", folder) == 0
    assert "the trees are what the log says" in capsys.readouterr().err


def test_verify_fails_where_the_log_says_otherwise(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = LogBuilder(tmp_path / "other")
    worker = other.worker()
    growing_run(worker, 4, execution="solve-1", seed=7)
    growing_run(worker, 3, execution="solve-2", seed=8)
    worker.die()
    assert run("verify", folder, "--logs", other.root) == 1
    assert "error" in capsys.readouterr().out


def test_without_its_log_a_build_is_not_called_proven(
    log: LogBuilder, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log.root.rename(log.root.with_name("moved"))
    assert run("verify", folder) == 0
    assert "no errors, but see the notes" in capsys.readouterr().err
    assert run("verify", folder, "--logs", log.root.with_name("moved")) == 0
    assert "the trees are what the log says" in capsys.readouterr().err


def test_diff_of_two_builds(
    log: LogBuilder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = tmp_path / "same"
    run("build", log.root, "-o", same, "--seed", "7")
    capsys.readouterr()
    document = ask(capsys, "diff", folder, same, "--exit-code")
    assert (document["differs"], document["same"]) == (False, 2)
    assert document["options"] == {"seed": {"before": 0, "after": 7}}
    worker = log.worker("w2")
    worker.call("new", execution="solve-3")
    worker.die()
    run("build", log.root, "-o", same)
    capsys.readouterr()
    assert run("diff", folder, same) == 0
    assert "only in the second: 1 execution: solve-3" in capsys.readouterr().out
    assert run("diff", folder, same, "--exit-code") == 1


def test_export_writes_what_is_trained(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = ask(capsys, "export", folder, "--to", "jsonl", "-o", tmp_path / "rows.jsonl")
    assert (document["executions"], document["targets"]) == (2, 70)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == document["rows"]
    assert run("export", folder, "--to", "jsonl", "-o", tmp_path / "rows.jsonl") == 1
    assert run("export", folder, "--to", "jsonl", "-o", tmp_path / "rows.jsonl", "--force") == 0


def test_gyre_trees_is_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", folder, "solve-1") == 0
    mine = capsys.readouterr().out
    with pytest.raises(SystemExit):
        gyre.main(["trees", "show", str(folder), "solve-1"])
    assert capsys.readouterr().out == mine


@pytest.mark.parametrize("command", ["show", "stats", "verify"])
def test_a_folder_without_trees_is_an_error_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert run(command, tmp_path, *(["x"] if command == "show" else [])) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and "hint: " in shown.err
    assert "Traceback" not in shown.err


def test_a_file_that_cannot_be_read_is_named(
    log: LogBuilder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder in its place stands for what the system may say against it, as for rights that lack."""
    for path in (folder / "gyre-trees.json", log.root / "gyre.json"):
        path.unlink()
        path.mkdir()
    for command in (("stats", folder), ("verify", folder), ("build", log.root, "-o", tmp_path / "new")):
        assert run(*command) == 1
        shown = capsys.readouterr()
        assert shown.err.startswith("error: `") and "json`: Is a directory" in shown.err
        assert "Traceback" not in shown.err and not shown.out


def test_trees_that_may_not_be_read_are_not_called_unfinished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbidden(path: Path) -> None:
        raise PermissionError(13, f"Failed to open local file '{path}'")

    monkeypatch.setattr(pq, "read_metadata", forbidden)
    assert run("stats", folder) == 1
    assert "part-00000.parquet" in capsys.readouterr().err


def test_an_export_of_nothing_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = LogBuilder(tmp_path / "bare")
    growing_run(worker := bare.worker(), 2)
    worker.die()
    run("build", bare.root, "-o", tmp_path / "trees")
    assert run("export", tmp_path / "trees", "--to", "trl", "-o", tmp_path / "rows") == 0
    assert "gyre log score" in capsys.readouterr().err


def test_counted_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.counting("building") as tell:
        tell(1, 2)
    assert capsys.readouterr().err == ""


def test_wrong_usage_is_exit_code_2(folder: Path) -> None:
    assert run("show", folder) == 2
    assert run("build", folder, "--select", "best") == 2
    assert run("export", folder, "--to", "word", "-o", "x") == 2
    assert run() == 2


def test_what_the_command_line_offers_is_what_there_is() -> None:
    assert tuple(trees.Rule) == tuple(Rule)
    assert tuple(trees.Format) == tuple(Format)
    assert Options() == Options(CAP, 0, Rule.QWENGYRE)
