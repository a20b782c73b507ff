"""Scorers: what they find, how they say a score, how they fail, what is left of them."""

from __future__ import annotations

import errno
import os
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gyre.proxy.executions import ExecutionOutcome
from gyre.trainer.rollout.room import FEWEST, LEAST, RoomError
from gyre.trainer.rollout.score import Command, TaskTests, Verdict, own_scorer, run_scorer
from gyre.trainer.rollout.task import load_task
from tests.proxy.processes import wait_for


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "out.txt").write_text("done\n")
    return folder


def command(text: str, work: Path, tries: int = 1, timeout_s: float = 20) -> Verdict:
    return run_scorer(Command(text), work, work.parent / "logs", timeout_s, tries)


def judged(script: str, work: Path, **env: str) -> Verdict:
    """By a task's tests with that `test.sh`."""
    folder = work.parent / "task-tests"
    folder.mkdir()
    (folder / "test.sh").write_text(script)
    (folder / "expected.txt").write_text("done\n")
    return run_scorer(TaskTests(folder, env), work, work.parent / "logs", 20, 1)


def kept(work: Path, name: str, number: int = 1) -> bytes:
    return (work.parent / "logs" / f"try-{number}" / name).read_bytes()


def failure(verdict: Verdict) -> str:
    assert (verdict.score, verdict.outcome) == (None, ExecutionOutcome.SCORER_FAILED)
    return verdict.reason


@pytest.mark.parametrize(
    ("printed", "score"),
    [
        ("1", 1.0),
        ("checking\\n0.25\\nall done", 0.25),
        ("0.1\\n 0.9 \\n", 0.9),
        ("-2.5e-1\\r", -0.25),
        (".5\\nscore: 0.7", 0.5),
        ("0\\n1_000\\n0x1\\n１", 0.0),
    ],
)
def test_the_last_line_that_is_a_number_is_the_score(work: Path, printed: str, score: float) -> None:
    verdict = command(f"printf '%b\\n' '{printed}'", work)
    assert (verdict.score, verdict.outcome, verdict.reason) == (score, None, "")
    assert (verdict.details["tries"], verdict.details["failures"]) == (1, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo all good", "the scorer printed no number and wrote no reward"),
        ("echo 0.5; echo nan", "the number it printed is nan, no finite number"),
        ("echo -inf", "the number it printed is -inf, no finite number"),
        ("echo 1e999", "the number it printed is inf, no finite number"),
        ("echo 1; echo went wrong >&2; exit 3", "the scorer failed: exit code 3: went wrong"),
        ("echo 1; kill -SEGV $$", "the scorer failed: signal 11: 1"),
        ("no-such-program-here", "the scorer failed: exit code 127"),
    ],
)
def test_a_command_that_fails(work: Path, text: str, said: str) -> None:
    assert failure(command(text, work)).startswith(said)


@pytest.mark.parametrize(
    ("file", "written", "score"),
    [
        ("reward.txt", " 0.5\\n", 0.5),
        ("reward.json", '{"reward": 0.75}', 0.75),
        ("reward.json", '{"quality": true}', 1.0),
        ("reward.json", '{"speed": 9, "reward": 0}', 0.0),
    ],
)
def test_rewards_in_a_file(work: Path, file: str, written: str, score: float) -> None:
    verdict = command(f"printf '{written}' > \"$GYRE_REWARD_DIR/{file}\"; echo 77", work)
    assert (verdict.score, verdict.outcome) == (score, None)


def test_json_outweighs_text_and_all_rewards_are_told(work: Path) -> None:
    script = 'cd "$GYRE_REWARD_DIR"; echo 0 > reward.txt; echo \'{"reward": 1, "lines": 3}\' > reward.json'
    verdict = judged(script, work)
    assert (verdict.score, verdict.details["rewards"]) == (1.0, {"reward": 1.0, "lines": 3.0})


@pytest.mark.parametrize(
    ("file", "written", "said"),
    [
        ("reward.txt", "", "`reward.txt` holds ``, no number"),
        ("reward.txt", "1 of 2", "`reward.txt` holds `1 of 2`, no number"),
        ("reward.txt", "NaN", "`reward.txt` is nan, no finite number"),
        ("reward.json", "{", "`reward.json` is no JSON"),
        ("reward.json", "1", "the rewards are no JSON object of names and numbers"),
        ("reward.json", "{}", "the rewards are no JSON object of names and numbers"),
        ("reward.json", '{"reward": "1"}', "the reward `reward` is no number"),
        ("reward.json", '{"reward": null}', "the reward `reward` is no number"),
        ("reward.json", '{"reward": NaN}', "the reward `reward` is nan, no finite number"),
        ("reward.json", f'{{"reward": 1{"0" * 400}}}', "the reward `reward` is inf, no finite number"),
        ("reward.json", "[" * 100_000, "`reward.json` is no JSON"),
        ("reward.json", '{"a": 1, "b": 2}', "none of the rewards `a`, `b` is called `reward`"),
    ],
)
def test_rewards_that_say_nothing(work: Path, tmp_path: Path, file: str, written: str, said: str) -> None:
    (tmp_path / "written").write_text(written)
    verdict = command(f'cp {tmp_path}/written "$GYRE_REWARD_DIR/{file}"', work)
    assert failure(verdict).startswith(said)


def test_a_reward_that_is_a_pipe_is_not_waited_for(work: Path) -> None:
    assert failure(command('mkfifo "$GYRE_REWARD_DIR/reward.txt"', work)).endswith("wrote no reward")


@pytest.mark.parametrize("name", ["stdout.txt", "stderr.txt"])
@pytest.mark.parametrize("replace", ["mkfifo", "ln -s ../../secret"])
def test_outputs_that_are_replaced_are_neither_followed_nor_waited_for(
    work: Path, tmp_path: Path, name: str, replace: str
) -> None:
    (tmp_path / "secret").write_text("0.75\n")
    assert failure(command(f"cd ..; rm {name}; {replace} {name}; kill -9 $$", work)) == (
        "the scorer failed: signal 9"
    )
    said = failure(command(f"cd ..; rm {name}; {replace} {name}", work))
    assert said == "the scorer printed no number and wrote no reward"


def test_rewards_of_somebody_else_are_not_its_own(work: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "reward.txt").write_text("1\n")
    script = f'rmdir "$GYRE_REWARD_DIR"; ln -s {tmp_path}/other "$GYRE_REWARD_DIR"'
    assert failure(command(script, work)) == "in the place of the folder for rewards is a link"
    script = f'ln -s {tmp_path}/other/reward.txt "$GYRE_REWARD_DIR/reward.txt"'
    assert failure(command(script, work)).endswith("wrote no reward")


def test_a_reward_that_is_too_large_is_not_read(work: Path) -> None:
    script = 'cd "$GYRE_REWARD_DIR"; truncate -s 64M reward.json'
    assert failure(command(script, work)) == "`reward.json` is larger than 1.91 MB"


def test_a_disk_without_room_for_the_copy_is_no_failure_of_the_scorer(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "large").write_bytes(b"x" * (1 << 20))
    free = SimpleNamespace(f_bavail=LEAST + (1 << 20) - 1, f_frsize=1, f_files=0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: free)
        with pytest.raises(RoomError, match="101 MB have to be"):
            command("echo 1", work)
        (work / "large").unlink()
        assert command("echo 1", work).score == 1


def test_a_disk_that_is_full_after_the_scorer_says_that_its_score_means_nothing(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [SimpleNamespace(f_bavail=room, f_frsize=1, f_files=0) for room in (LEAST - 1, 2 * LEAST)]
    monkeypatch.setattr(os, "statvfs", lambda _: free.pop())
    with pytest.raises(RoomError, match="the disk is full"):
        command("echo 1", work)
    assert not (work.parent / "logs" / "try-1" / "workspace").exists()


def test_a_disk_that_takes_no_more_files_is_full(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = SimpleNamespace(f_bavail=2 * LEAST, f_frsize=1, f_files=10**6, f_favail=FEWEST - 1)
    monkeypatch.setattr(os, "statvfs", lambda _: few)
    with pytest.raises(RoomError, match=rf"takes {FEWEST - 1} more files"):
        command("echo 1", work)


def test_a_scorer_that_fills_the_disk_is_ended(work: Path) -> None:
    (work / "large").write_bytes(b"x" * (1 << 20))
    script = "while true; do head -c 100000 /dev/zero > file-$((n = n + 1)); sleep 0.01; done"
    verdict = run_scorer(Command(script), work, work.parent / "logs", 60, 1, room=2 << 20)
    assert re.fullmatch(r"the scorer's files took [\d.]+ MB, more than 3[\d.]* MB", failure(verdict))
    assert not (work.parent / "logs" / "try-1" / "workspace").exists()
    script = "head -c 4000000 /dev/zero > file || echo 0.5"  # more than any one file may have
    assert run_scorer(Command(script), work, work.parent / "logs", 60, 1, room=2 << 20).score == 0.5


def test_a_copy_that_finds_the_disk_full_is_not_judged(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        command("echo 1", work)


def test_what_is_copied_when_the_run_is_stopped_is_not_judged(work: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    verdict = run_scorer(Command(f"touch {tmp_path}/ran; echo 1"), work, tmp_path / "logs", 20, stop=stop)
    assert (verdict.score, verdict.outcome, verdict.reason) == (None, None, "the scorer was stopped")
    assert not (tmp_path / "ran").exists()


def test_memory_and_processes_of_a_scorer_are_limited(work: Path) -> None:
    logs = work.parent / "logs"
    verdict = run_scorer(Command("ulimit -v"), work, logs, 20, memory=1 << 30)
    assert verdict.score == 1 << 20
    crowd = Command("trap 'exit 1' TERM; for one in 1 2 3 4; do sleep 300 & done; echo 1; wait")
    verdict = run_scorer(crowd, work, logs, 200, 1, processes=3)
    assert failure(verdict) == "the scorer had more than 3 processes"
    assert not verdict.looked


def test_what_a_task_tests_find(work: Path) -> None:
    script = 'cmp -s out.txt "$GYRE_TESTS_DIR/expected.txt" && [ "$PWD" = "$GYRE_WORKSPACE" ] && '
    script += '[ "$JUDGE" = small ] && echo 1 > "$GYRE_REWARD_DIR/reward.txt"'
    assert judged(script, work, JUDGE="small").score == 1.0


def test_the_exit_code_of_tests_says_nothing(work: Path) -> None:
    assert judged('echo 1 > "$GYRE_REWARD_DIR/reward.txt"; exit 1', work).score == 1.0


def test_tests_that_write_nothing_are_told_with_their_last_words(work: Path) -> None:
    said = failure(judged("#!/bin/sh\necho no python here >&2\nexit 2\n", work))
    assert said == "the scorer wrote no reward (exit code 2: no python here)"


def test_the_variables_of_a_task_come_from_outside(tmp_path: Path) -> None:
    files = {"task.toml": "[verifier.env]\nJUDGE = '${WHO}'\n", "instruction.md": "x", "tests/test.sh": "x"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    scorer = own_scorer(load_task(tmp_path), {"WHO": "me"})
    assert scorer == TaskTests(tmp_path / "tests", {"JUDGE": "me"})


def test_the_workspace_stays_as_it_was(work: Path) -> None:
    (work / "link").symlink_to("out.txt")
    (work / "locked").mkdir(mode=0o500)
    os.mkfifo(work / "pipe")
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in work.rglob("*"))
    verdict = command("rm out.txt; echo x > new.txt; mkdir -p a/b; chmod 0 a; readlink link && echo 1", work)
    assert (verdict.score, verdict.details["not_copied"]) == (1.0, 0)
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in work.rglob("*")) == before
    assert sorted(path.name for path in (work.parent / "logs" / "try-1").iterdir()) == [
        "rewards",
        "stderr.txt",
        "stdout.txt",
    ]


def test_a_second_try_sees_the_same_and_may_succeed(work: Path, tmp_path: Path) -> None:
    flag = tmp_path / "seen"
    text = f"test -e out.txt && rm out.txt && [ -e {flag} ] && echo 1 && exit 0; touch {flag}; exit 9"
    verdict = command(text, work, tries=2)
    assert (verdict.score, verdict.details["tries"]) == (1.0, 2)
    assert verdict.details["failures"] == ["the scorer failed: exit code 9"]


def test_what_fails_each_time_says_so_and_keeps_what_each_printed(work: Path) -> None:
    verdict = command("echo hm; exit 1", work, tries=3)
    assert failure(verdict) == "the scorer failed: exit code 1: hm (in each of 3 tries)"
    assert [kept(work, "stdout.txt", number) for number in (1, 2, 3)] == [b"hm\n"] * 3


def test_a_scorer_that_hangs_is_ended_with_all_that_it_started(work: Path, tmp_path: Path) -> None:
    text = f"setsid sleep 300 & echo $! > {tmp_path}/daemon; (trap '' TERM; sleep 300) & sleep 300"
    assert failure(command(text, work, timeout_s=1)) == "the scorer was not done after 1 s"
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))


def test_what_it_leaves_running_is_ended_and_not_waited_for(work: Path, tmp_path: Path) -> None:
    text = f"setsid sleep 300 & echo $! > {tmp_path}/daemon; echo 1"
    begun = time.monotonic()
    assert command(text, work).score == 1.0
    assert time.monotonic() - begun < 15
    assert not psutil.pid_exists(int((tmp_path / "daemon").read_text()))


def test_a_flood_is_cut_and_its_end_still_counts(work: Path) -> None:
    verdict = command("yes 0.5 | head -c 20000000; echo 0.75", work)
    assert verdict.score == 0.75
    assert len(kept(work, "stdout.txt")) < 1_100_000


def test_a_scorer_can_be_stopped(work: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    verdicts: list[Verdict] = []

    def score() -> None:
        text = f"echo $$ > {tmp_path}/begun; exec sleep 300"
        verdicts.append(run_scorer(Command(text), work, tmp_path / "logs", 200, stop=stop))

    thread = threading.Thread(target=score)
    thread.start()
    wait_for(lambda: (tmp_path / "begun").exists() and (tmp_path / "begun").read_text().strip())
    stop.set()
    thread.join(20)
    (verdict,) = verdicts
    assert (verdict.score, verdict.outcome, verdict.reason) == (None, None, "the scorer was stopped")
    assert not psutil.pid_exists(int((tmp_path / "begun").read_text()))


def test_a_supervisor_that_is_killed_is_one_failed_try(work: Path, tmp_path: Path) -> None:
    once = tmp_path / "once"
    text = f"[ -e {once} ] && echo 1 && exit 0; touch {once}; sleep 0.3; kill -9 $PPID; sleep 99"
    verdict = command(text, work, tries=2)
    assert (verdict.score, verdict.details["failures"]) == (1.0, ["somebody killed the scorer"])


def test_no_workspace(tmp_path: Path) -> None:
    said = failure(command("echo 1", tmp_path / "ghost", tries=2))
    assert said == f"{tmp_path / 'ghost'}: No such file or directory (in each of 2 tries)"


def test_variables_that_the_caller_adds(work: Path) -> None:
    env = {"GYRE_EXECUTION": "e-7", "GYRE_REWARD_DIR": "elsewhere"}
    text = 'echo "$GYRE_EXECUTION" > "$GYRE_REWARD_DIR/name"; echo 1'
    verdict = run_scorer(Command(text), work, work.parent / "logs", 20, env=env)
    assert verdict.score == 1.0
    assert kept(work, "rewards/name") == b"e-7\n"
