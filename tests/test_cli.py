"""The manners of the command line: what goes where, exit codes, errors."""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gyre.cli import output
from gyre.cli.main import main
from gyre.proxy.errors import EngineError, GyreError


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())
    monkeypatch.delenv("GYRE_DEBUG", raising=False)


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(args)
    return int(end.value.code or 0)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("gyre 0.")


def test_wrong_usage_is_exit_code_2() -> None:
    assert run("no-such-command") == 2
    assert run("engine", "--no-such-option") == 2
    assert run() == 2


def test_an_error_is_a_message_and_a_hint_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engine", "--host", "0.0.0.0") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert lines[0] == "error: the engine does not listen on `0.0.0.0`"
    assert lines[1].startswith("hint: ")
    assert len(lines) == 2


def test_an_argument_that_is_no_text_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engine", "--host", "\udcff") == 2
    assert capsys.readouterr().err.startswith("error: `\\udcff` is no UTF-8\nhint: ")


LATIN = "from gyre.cli import entry, output; import typer; app = typer.Typer();"
LATIN += "app.command()(lambda: output.print_table('', ('name',), [('\u6f22 caf\xe9',)]));"
LATIN += "entry.run(app, 'x', [])"


@pytest.mark.parametrize(
    ("encoding", "name"), [("ascii", "? caf?"), ("latin-1", "? café"), ("utf-8", "漢 café")]
)
def test_what_a_terminal_has_no_letter_for_is_a_question_mark(encoding: str, name: str) -> None:
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", LATIN], env=environment, capture_output=True, check=True)
    assert name in done.stdout.decode(encoding)


def test_a_closed_stdout_is_no_error() -> None:
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(LATIN)} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("engine", "--host", "0.0.0.0", "--verbose") == 1
    assert "Traceback" in capsys.readouterr().err


def test_gyre_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRE_DEBUG", "1")
    assert run("engine", "--host", "0.0.0.0") == 1
    assert "Traceback" in capsys.readouterr().err


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"path": Path("a/b"), "digest": b"\x01\xff", "ids": np.array([1, 2], np.int32)})
    assert json.loads(capsys.readouterr().out) == {"path": "a/b", "digest": "01ff", "ids": [1, 2]}


def test_a_json_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": [1, {"b": 2}]}, line=True)
    assert capsys.readouterr().out == '{"a":[1,{"b":2}]}\n'


def test_a_table_in_a_pipe_keeps_long_cells_whole(capsys: pytest.CaptureFixture[str]) -> None:
    name = "x" * 120
    output.print_table("calls", ["call", "tokens", "ok"], [[name, 12345, True], ["[red]b", None, False]])
    text = capsys.readouterr().out
    assert name in text
    assert "12,345" in text
    assert "[red]b" in text
    assert "yes" in text and "no" in text


def test_an_empty_table_has_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table("calls", ["call", "tokens"], [])
    assert "tokens" in capsys.readouterr().out


def test_remarks_go_to_stderr_and_quiet_silences_them(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("one")
    output.set_quiet(True)
    output.say("two")
    output.print_error(GyreError("three"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "one\nerror: three\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("sealing", total=2) as advance:
        advance(2)
    assert capsys.readouterr().err == ""


def test_log_lines_of_the_library_reach_stderr_once(capsys: pytest.CaptureFixture[str]) -> None:
    output.install_logging()
    output.install_logging()
    logging.getLogger("gyre.proxy.test").warning("backend `b1` is gone")
    assert capsys.readouterr().err.count("backend `b1` is gone") == 1


def test_errors_are_a_message_with_a_hint() -> None:
    error = EngineError("it broke", "repair it")
    assert (str(error), error.hint) == ("it broke", "repair it")
