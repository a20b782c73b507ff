"""`gyre train status`: a live run, seen from another terminal."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gyre.cli.main import main
from gyre.cli.train_rows import rows
from gyre.trainer.live.assignment import Counts
from gyre.trainer.live.board import Board
from gyre.trainer.live.status import Phase, Status, StatusFile
from tests.terminal import in_terminal
from tests.trainer.live.told import START, report, status


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


def test_a_run_that_only_lives_on_says_nothing_new(tmp_path: Path) -> None:
    told = Board(tmp_path, batches=1)
    written(tmp_path, told.status(Counts()))
    command = [sys.executable, "-m", "gyre.cli.main", "train", "status", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        for _ in range(5):  # it looks once a second
            time.sleep(0.5)
            written(tmp_path, told.status(Counts()))
        told.enter(Phase.ENDED)
        written(tmp_path, told.status(Counts()))
        assert [json.loads(line)["phase"] for line in process.stdout] == ["ended"]


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
        try:
            assert process.stdout
            process.stdout.readline()
            process.terminate()
            assert process.communicate(timeout=30)[1].strip() == ""
        finally:
            process.kill()
    assert process.returncode == 143
