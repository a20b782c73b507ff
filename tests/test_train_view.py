"""What a person sees of a live run: in a terminal, in a log, and from another terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gyre.cli.main import main
from gyre.cli.train_rows import (
    batch_line,
    duration,
    evaluation_line,
    publication_line,
    rows,
    sparkline,
    status_line,
    times,
)
from gyre.cli.train_view import View, view
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.status import Phase, Status, StatusFile
from tests.trainer.live.told import evaluated, publication, report, trained

START = 1000.0


def status(run: Path = Path("runs/tiny")) -> Status:
    """In the middle of the third batch."""
    told = Board(run, batches=8, clock=lambda: START)
    told.evaluation(evaluated(0, pass_rate=0.25, version="0"))
    told.evaluation(evaluated(2, pass_rate=0.9, version="1"))
    told.evaluation(evaluated(4, pass_rate=0.75, version="2"))
    told.evaluation(evaluated(4, pass_rate=0.95, version="2", temperature=0.0))
    told.batch(report(0, groups=[trained(scores=(0.0, 0.0, 1.0, 0.0))]))
    told.batch(report(1))
    told.publication(publication(4, "2"))
    told.sampled(0)
    told.restarts("engine", 2)
    told.enter(Phase.TRAINING, batch=2)
    counts = Counts(running=7, waiting=1200, done=32, timed_out=3)
    return told.status(counts, groups_waiting=3, groups_ready=1)


def shown(of: Status, *, at: float = START, gone: bool = False) -> dict[str, str]:
    return dict(rows(of, at, gone=gone))


def test_where_a_run_stands_in_rows() -> None:
    assert shown(status(), at=START + 12) == {
        "run": "runs/tiny",
        "state": "training for 12 s · running for 12 s",
        "batch": "━━━━━━────────────────── 2 of 8 · 4 updates · version 2",
        "pass rate": "▃▃ 33% · 1 group with variance",
        "evaluation": "25% (version 0) → 75% (version 2) · best 90% (version 1)",
        "greedy evaluation": "95% (version 2)",
        "executions": "7 running · 1,200 waiting · 32 done · 3 timed out",
        "groups": "3 under way · 1 ready",
        "staleness": "0.5 publications, at most 1 · 2 updates, at most 4",
        "trees": "80% of targets kept · 40% of tokens saved",
        "time, last batch": "10 s: wait 60%, tree 5%, train 30%, publish 5%",
        "time, all batches": "20 s: wait 60%, tree 5%, train 30%, publish 5%",
        "restarted": "engine 2x",
    }


def test_a_run_that_has_only_begun_has_few_rows() -> None:
    new = Board(Path("runs/tiny"), batches=8, clock=lambda: START).status(Counts())
    assert list(shown(new)) == ["run", "state", "batch", "executions", "groups"]
    assert shown(new)["state"] == "starting for 0.0 s · running for 0.0 s"


def test_tokens_a_second_are_shown_once_they_are_known() -> None:
    assert shown(msgspec.structs.replace(status(), tokens_per_s=1234.5))["sampled"] == "1,234 tokens/s"


def test_a_run_that_says_nothing_is_told() -> None:
    assert "said nothing for 1m 40s" in shown(status(), at=START + 100)["state"]


def test_a_run_that_is_over_stands_still() -> None:
    ended = msgspec.structs.replace(status(), phase=Phase.ENDED, updated_at=START + 90)
    assert shown(ended, at=START + 10_000)["state"] == "ended after 1m 30s"


def test_a_process_that_is_gone_is_told_and_what_to_do() -> None:
    assert shown(status(), gone=True)["state"].startswith(f"gone: process {os.getpid()} ended while training")
    assert "--resume" in shown(status(), gone=True)["state"]


def test_why_a_run_failed_is_shown() -> None:
    told = Board(Path("runs/tiny"), batches=8)
    told.warn("the engine was started again")
    told.failed("the disk is full", "make room")
    found = shown(told.status(Counts()))
    assert (found["warning"], found["error"]) == ("the engine was started again", "the disk is full")
    assert found["hint"] == "make room"


def test_a_line_of_each_kind() -> None:
    assert batch_line(report(1), 20) == (
        "batch 2/20 · pass rate 33% · 8 executions · 2 timed out · 2 left out · variance in 1 of 2 groups · "
        "80% of targets kept · 40% of tokens saved · 10 s: wait 60%, tree 5%, train 30%, publish 5%"
    )
    assert publication_line(publication(1)) == "version 2 published after 1 update · 0.5 s · 3 open requests"
    assert evaluation_line(evaluated()) == (
        "evaluation of version 2, temperature 1 · pass rate 75% · 64 episodes · 12 s"
    )
    assert "greedy" in evaluation_line(evaluated(temperature=0.0))
    assert status_line(status()) == "batch 2/8 · training · pass rate 33% · 7 running · 1200 waiting"


def test_a_mean_score_is_told_where_it_says_more_than_the_pass_rate() -> None:
    partly = report(0, groups=[trained(scores=(0.5, 1.0))])
    assert "pass rate 50%, mean score 0.75" in batch_line(partly, 1)


def test_a_batch_of_which_nothing_was_left_has_a_line() -> None:
    nothing = report(0, groups=[trained(scores=(), outcomes={"failed": 4}, tokens=(0, 0))])
    assert batch_line(nothing, 1).startswith(
        "batch 1/1 · 4 executions · 1 left out · variance in 0 of 1 group"
    )
    assert batch_line(report(0, groups=[], seconds={}), 1).endswith("0.0 s")


@given(st.lists(st.none() | st.floats(0, 1), max_size=60))
def test_a_higher_rate_is_no_lower_bar(rates: list[float | None]) -> None:
    drawn = sparkline(rates)
    assert len(drawn) == len(rates)
    known = sorted((rate, bar) for rate, bar in zip(rates, drawn, strict=True) if rate is not None)
    assert [bar for _, bar in known] == sorted(bar for _, bar in known)
    assert all(bar == "·" for rate, bar in zip(rates, drawn, strict=True) if rate is None)


def test_the_ends_of_a_sparkline() -> None:
    assert sparkline([0.0, 1.0]) == "▁█"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0.0 s"), (1.24, "1.2 s"), (59.4, "59 s"), (59.6, "1m 00s"), (185, "3m 05s"), (7380, "2h 03m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_phases_that_took_no_time_are_left_out() -> None:
    assert times({"wait": 99.9, "tree": 0.01, "train": 0.09}) == "1m 40s: wait 100%"
    assert times({}) == "0.0 s"


def tell(to: View) -> None:
    to.tell("the engine was started again")
    to.status(status())
    to.batch(report(1), 20)
    to.publication(publication())
    to.evaluation(evaluated())


def test_a_log_gets_a_line_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    with view() as to:
        tell(to)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "the engine was started again",
        batch_line(report(1), 20),
        publication_line(publication()),
        evaluation_line(evaluated()),
    ]


IN_TERMINAL = """
from gyre.cli.train_view import view
from tests.test_train_view import tell
with view() as to:
    tell(to)
print("data")
"""


def in_terminal(*argv: str, at: str = "", then: Callable[[], None] = lambda: None) -> tuple[str, str]:
    """(stdout, what stood on the screen in the course of time) of a program whose stderr is a terminal.

    `then` is done once when `at` is seen.
    """
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"} | {"PYTHONUTF8": "1"}
    for name in ("NO_COLOR", "GYRE_NO_PROGRESS"):
        env.pop(name, None)
    root = Path(__file__).parents[1]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True, cwd=root)
    os.close(theirs)
    seen = bytearray()

    def read() -> None:
        waits = bool(at)
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other side is closed
                return
            if not part:
                return
            seen.extend(part)
            if waits and at in seen.decode(errors="replace"):
                waits = False
                then()

    reader = threading.Thread(target=read)
    reader.start()
    out, _ = process.communicate()
    reader.join()
    os.close(ours)
    return out, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())


def test_a_terminal_shows_a_table_below_what_is_said() -> None:
    out, screen = in_terminal(sys.executable, "-c", IN_TERMINAL)
    assert out == "data\n"
    last = screen[screen.rindex("runs/tiny") :]
    assert "7 running · 1,200 waiting · 32 done · 3 timed out" in last
    assert "25% (version 0) → 75% (version 2)" in last
    assert "the engine was started again" in screen.replace(last, "")
    assert evaluation_line(evaluated()) in screen
    assert "batch 2/20" not in screen  # the table has it


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["train", "status", *arguments])
    return int(end.value.code or 0)


def written(folder: Path, of: Status) -> Path:
    StatusFile(folder / "status.json").write(of)
    return folder


def test_the_status_of_a_run_is_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(written(tmp_path, status(tmp_path)))) == 0
    said = capsys.readouterr()
    for name, text in rows(status(tmp_path), START):
        assert name in said.out
        assert text in said.out or name == "state"
    assert said.err == ""


def test_the_status_of_a_run_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of = status(tmp_path)
    assert run(str(written(tmp_path, of)), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["running"], said["gone"]) == (1, True, False)
    assert said["executions"]["waiting"] == 1200
    assert {name: said[name] for name in msgspec.to_builtins(of)} == json.loads(msgspec.json.encode(of))


def test_the_status_of_a_run_that_was_killed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True)
    gone = msgspec.structs.replace(status(tmp_path), pid=int(process.stdout))
    assert run(str(written(tmp_path, gone))) == 0
    assert f"gone: process {gone.pid} ended while training" in capsys.readouterr().out
    assert run(str(tmp_path), "--json", "--watch") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["running"], said["gone"]) == (False, True)


@pytest.mark.parametrize(
    ("file", "message", "hint"),
    [
        (None, "there is no", "give the folder of a run"),
        ("notes.txt", "is not the folder of a live run", "`gyre train RUN.toml`"),
        ("metrics.jsonl", "is not the folder of a live run", "`gyre train --trees`"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str | None, message: str, hint: str
) -> None:
    folder = tmp_path / "run"
    if file:
        folder.mkdir()
        (folder / file).touch()
    assert run(str(folder)) == 1
    said = capsys.readouterr()
    assert said.out == ""
    error, told = said.err.splitlines()
    assert error.startswith("error: ") and message in error
    assert told.startswith("hint: ") and hint in told


def test_a_run_is_watched_until_it_ends(tmp_path: Path) -> None:
    """A document a line, whenever something is new."""
    told = Board(tmp_path, batches=1)
    written(tmp_path, told.status(Counts(running=1)))
    command = [sys.executable, "-m", "gyre.cli.main", "train", "status", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = json.loads(process.stdout.readline())
        told.batch(report(0))
        told.enter(Phase.ENDED)
        written(tmp_path, told.status(Counts(done=1)))
        *_, last = (json.loads(line) for line in process.stdout)
    assert process.returncode == 0
    assert (first["phase"], first["executions"]["running"]) == ("starting", 1)
    assert (last["phase"], last["batches_done"], last["running"]) == ("ended", 1, True)


def test_a_watched_run_moves_in_a_terminal_and_ends_as_a_table(tmp_path: Path) -> None:
    told = Board(tmp_path, batches=1)
    written(tmp_path, told.status(Counts(running=1)))

    def end() -> None:
        told.enter(Phase.ENDED)
        written(tmp_path, told.status(Counts(done=1)))

    command = [sys.executable, "-m", "gyre.cli.main", "train", "status", str(tmp_path), "--watch"]
    out, screen = in_terminal(*command, at="1 running", then=end)
    assert "starting for" in screen
    assert "ended after" in out and "1 done" in out


def test_whoever_stops_watching_stops_nothing_else(tmp_path: Path) -> None:
    written(tmp_path, Board(tmp_path, batches=1).status(Counts()))
    command = [sys.executable, "-m", "gyre.cli.main", "train", "status", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stderr
        process.stdout.readline()
        process.terminate()
        assert process.stderr.read().strip() == ""
    assert process.returncode == 143
