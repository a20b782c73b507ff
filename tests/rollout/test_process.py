"""A program under its supervisor: how it ends, what of its output is kept, and that nothing of it is left."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from gyre.elastic.process import reaper
from gyre.elastic.process.supervised import Program, Report, StartError, Supervised
from gyre.trainer.rollout.place import BusyError, locked
from tests.proxy.processes import wait_for
from tests.rollout.harnesses import alive

MARK = "GYRE_TEST"


def shell(folder: Path, text: str, **more: Any) -> Program:
    """`text` in a shell; each process of it has a mark of its own, see `alive`."""
    env = {"PATH": os.environ["PATH"], MARK: secrets.token_hex(8)}
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    return Program(argv=["sh", "-c", text], env=env, cwd=folder, stdout=out, stderr=err, **more)


def finished(program: Program, seconds: float = 20) -> Report:
    with Supervised(program) as running:
        report = running.wait(seconds)
    assert report is not None
    assert alive(program.env[MARK]) == []
    return report


def test_a_program_has_its_folder_its_variables_its_input_and_its_own_session(tmp_path: Path) -> None:
    (tmp_path / "told").write_text("hello")
    text = 'cat; echo; pwd; echo "$GYRE_TEST" >&2; exit 3'
    program = shell(tmp_path, text, stdin=tmp_path / "told")
    report = finished(program)
    assert (report.code, report.signal, report.lost) == (3, None, False)
    assert (tmp_path / "stdout.txt").read_text() == f"hello\n{tmp_path}\n"
    assert (tmp_path / "stderr.txt").read_text() == program.env[MARK] + "\n"
    assert report.stdout.bytes == len(f"hello\n{tmp_path}\n")


def test_its_input_is_empty_and_our_descriptors_are_not_its(tmp_path: Path) -> None:
    program = shell(tmp_path, "cat; ls /proc/self/fd")
    with (tmp_path / "lock").open("w") as lock, Supervised(program, lock.fileno()) as running:
        report = running.wait(20)
    assert report and report.code == 0
    assert (tmp_path / "stdout.txt").read_text().split() == ["0", "1", "2", "3"]  # 3 is the list itself


def test_a_signal_is_told_from_an_exit_code(tmp_path: Path) -> None:
    report = finished(shell(tmp_path, "kill -SEGV $$"))
    assert (report.code, report.signal) == (None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-program"], "cannot start `no-such-program`: .*No such file"),
        (["./data"], "cannot start `./data`: .*Permission denied"),
        (["./script"], "cannot start `./script`: .*Exec format error"),
        (["true", "x" * 200_000], "cannot start `true`: .*Argument list too long"),
    ],
)
def test_what_cannot_be_started_says_why(tmp_path: Path, argv: list[str], why: str) -> None:
    (tmp_path / "data").write_text("data")
    (tmp_path / "script").write_text("no program")
    (tmp_path / "script").chmod(0o755)
    program = shell(tmp_path, "")
    with pytest.raises(StartError, match=why):
        Supervised(
            Program(argv=argv, env=program.env, cwd=tmp_path, stdout=program.stdout, stderr=program.stderr)
        )


def test_a_folder_that_is_gone_says_so(tmp_path: Path) -> None:
    program = shell(tmp_path, "true")
    with pytest.raises(StartError, match="No such file or directory"):
        Supervised(
            Program(
                argv=["true"], env={}, cwd=tmp_path / "gone", stdout=program.stdout, stderr=program.stderr
            )
        )


def test_stop_lets_a_program_end_by_itself(tmp_path: Path) -> None:
    text = "trap 'echo bye > bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"
    with Supervised(shell(tmp_path, text)) as running:
        wait_for(lambda: (tmp_path / "stdout.txt").read_text() == "up\n")
        assert running.wait(0) is None
        running.stop()
        report = running.wait(20)
    assert report and report.code == 5
    assert (tmp_path / "bye").read_text() == "bye\n"


def test_sigterm_comes_once_to_each_process(tmp_path: Path) -> None:
    text = "trap 'echo term >> terms; n=1' TERM; echo up; while [ -z $n ]; do sleep 0.05; done; sleep 0.3"
    with Supervised(shell(tmp_path, text)) as running:
        wait_for(lambda: (tmp_path / "stdout.txt").read_text() == "up\n")
        running.stop()
        assert running.wait(20)
    assert (tmp_path / "terms").read_text() == "term\n"


def test_one_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    program = shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.05; done", grace_s=0.2)
    with Supervised(program) as running:
        wait_for(lambda: (tmp_path / "stdout.txt").read_text() == "up\n")
        running.stop()
        report = running.wait(20)
    assert report and report.signal == signal.SIGKILL
    assert alive(program.env[MARK]) == []


DAEMON = "setsid sh -c 'trap \"\" TERM; echo daemon > up; setsid sleep 1000 & while :; do sleep 0.1; done' &"


def test_daemons_in_sessions_of_their_own_end_with_it(tmp_path: Path) -> None:
    text = f"({DAEMON}) ; while [ ! -e up ]; do sleep 0.05; done; exit 0"
    report = finished(shell(tmp_path, text, grace_s=0.2))
    assert report.code == 0
    assert report.left >= 1
    assert (report.immortal, (tmp_path / "up").read_text()) == (0, "daemon\n")


def test_daemons_end_when_it_is_stopped(tmp_path: Path) -> None:
    program = shell(tmp_path, f"({DAEMON}); exec sleep 1000", grace_s=0.2)
    with Supervised(program) as running:
        wait_for((tmp_path / "up").exists)
        running.stop()
        report = running.wait(20)
    assert report and report.signal == signal.SIGTERM
    assert alive(program.env[MARK]) == []


def test_leaving_the_block_ends_it(tmp_path: Path) -> None:
    program = shell(tmp_path, "exec sleep 1000")
    with pytest.raises(KeyError), Supervised(program):
        raise KeyError
    assert alive(program.env[MARK]) == []


def test_of_a_flood_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    text = "echo begin; yes 0123456 | head -c 20000000; echo end; yes e | head -c 3000000 >&2"
    report = finished(shell(tmp_path, text, output_limit=200_000))
    kept = (tmp_path / "stdout.txt").read_bytes()
    assert report.code == 0
    assert report.stdout.bytes == 20_000_010
    assert kept.startswith(b"begin\n0123456\n") and kept.endswith(b"\n0123456\nend\n")
    assert f"[{report.stdout.dropped} bytes are not kept]".encode() in kept
    assert 199_000 < len(kept) < 200_100
    assert report.stdout.bytes - report.stdout.dropped == 200_000
    assert (tmp_path / "stderr.txt").stat().st_size < 200_100


def test_an_output_of_just_the_limit_is_whole(tmp_path: Path) -> None:
    report = finished(shell(tmp_path, "yes 0123456 | head -c 100000", output_limit=100_000))
    assert (report.stdout.bytes, report.stdout.dropped) == (100_000, 0)
    assert (tmp_path / "stdout.txt").read_text() == "0123456\n" * 12_500


def test_a_file_beyond_the_limit_cannot_be_written(tmp_path: Path) -> None:
    report = finished(shell(tmp_path, "exec head -c 3000000 /dev/zero > large", file_limit=1 << 20))
    assert report.signal == signal.SIGXFSZ
    assert (tmp_path / "large").stat().st_size == 1 << 20


def test_whoever_kills_the_supervisor_is_found_and_ended(tmp_path: Path) -> None:
    program = shell(
        tmp_path, f"{DAEMON} while [ ! -e up ]; do sleep 0.05; done; kill -9 $PPID; exec sleep 1000"
    )
    report = finished(program)
    assert (report.lost, report.code) == (True, None)


def nurseries() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [child for child in found if reaper.__file__ in child.cmdline()]


def test_supervisors_come_from_one_process_and_outlive_it(tmp_path: Path) -> None:
    text = "echo up; while [ ! -e go ]; do sleep 0.05; done"
    with Supervised(shell(tmp_path, text)) as running:
        wait_for(lambda: (tmp_path / "stdout.txt").read_text() == "up\n")
        (nursery,) = nurseries()
        nursery.kill()
        nursery.wait()
        (tmp_path / "go").write_text("")
        report = running.wait(20)
    assert report and (report.code, report.lost) == (0, False)
    assert finished(shell(tmp_path, "exit 4")).code == 4
    assert len(nurseries()) == 1


def test_many_at_once_do_not_mix(tmp_path: Path) -> None:
    def run(number: int) -> int | None:
        folder = tmp_path / str(number)
        folder.mkdir()
        assert finished(shell(folder, f"echo {number}; exit {number}")).code == number
        return int((folder / "stdout.txt").read_text())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(40))) == list(range(40))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    finished(shell(tmp_path, "true"))
    before = psutil.Process().num_fds()
    for _ in range(3):
        finished(shell(tmp_path, "true"))
        with pytest.raises(StartError):
            Supervised(replace(shell(tmp_path, ""), argv=["no-such-program"]))
    assert psutil.Process().num_fds() == before


STARTER = """
import sys, time
from pathlib import Path
from gyre.trainer.rollout.place import locked
from gyre.trainer.rollout.place import BusyError, locked
from gyre.elastic.process.supervised import Program, Supervised
folder, mark = Path(sys.argv[1]), sys.argv[2]
text = "trap '' TERM; setsid sleep 1000 & while :; do sleep 0.05; done"
program = Program(argv=["sh", "-c", text], env={"PATH": sys.argv[3], "GYRE_TEST": mark}, cwd=folder,
                  stdout=folder / "o", stderr=folder / "e", grace_s=3)
with locked(folder, "it") as lock:
    running = Supervised(program, lock)
    print("up", flush=True)
    time.sleep(1000)
"""


@pytest.mark.slow
def test_when_we_are_killed_the_program_ends_too_and_until_then_nobody_takes_its_place(
    tmp_path: Path,
) -> None:
    mark = secrets.token_hex(8)
    command = [sys.executable, "-c", STARTER, str(tmp_path), mark, os.environ["PATH"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
        assert starter.stdout and starter.stdout.readline() == b"up\n"
        wait_for(lambda: len(alive(mark)) >= 3)  # the starter, the program, its daemon
        starter.kill()
    with pytest.raises(BusyError), locked(tmp_path, "it"):
        pass
    with locked(tmp_path, "it", 30):
        assert alive(mark) == []
