"""`gyre log score`: into a log nobody writes, into one that a proxy writes, killed anywhere."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gyre.cli import log_score, output
from gyre.cli.main import main
from gyre.proxy import read_log
from gyre.proxy.calls import CallRecord
from gyre.proxy.errors import LogError, ScoreError, UpstreamError
from gyre.proxy.log.check import check
from gyre.proxy.log.reading.scan import Damage, scan
from gyre.proxy.log.record.journal import is_live, open_new
from gyre.proxy.log.score import write_scores
from gyre.proxy.log.sealing.seal import seal
from gyre.proxy.scores import OUTCOMES, Scored
from tests.engines.fake import FakeEngine
from tests.log.builders import LogBuilder, growing_run
from tests.proxy.running import RunningProxy


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    builder = LogBuilder(tmp_path / "logs")
    worker = builder.worker()
    growing_run(worker, 2, execution="solve-7")
    worker.call("c2", execution="solve-8", execution_attempt=1)
    worker.event("ended", execution="solve-7", outcome="completed")
    worker.die()
    return builder


def events(root: Path) -> list[dict[str, Any]]:
    return [row for row in read_log(root).executions.to_pylist() if row["event"] in ("scored", "updated")]


def said(root: Path) -> list[dict[str, Any]]:
    """Without what differs from run to run, and without what is null."""
    names = ("order", "worker", "at")
    return [{k: v for k, v in row.items() if k not in names and v is not None} for row in events(root)]


def score(*arguments: str, code: int = 0) -> None:
    try:
        main(["log", "score", *arguments])
    except SystemExit as end:
        assert (end.code or 0) == code


def test_everything_that_can_be_said_is_in_the_log(log: LogBuilder) -> None:
    options = "--score 0.5 --artifact work/7 --outcome timed_out --group g --task t --reason slow"
    score(str(log.root), "--execution", "solve-7", *options.split())
    expected = dict(execution_id="solve-7", execution_attempt=0, event="scored", outcome="timed_out")
    expected |= dict(task="t", group="g", artifact="work/7", reason="slow")
    assert said(log.root) == [expected | {"score": 0.5}]


def test_a_score_lasts_through_seals_and_the_last_one_stands_last(log: LogBuilder) -> None:
    score(str(log.root), "-x", "solve-7", "--score", "0")
    seal(log.root)
    score(str(log.root), "-x", "solve-7", "--score", "1")
    report = seal(log.root)
    assert (report.executions, report.problems) == (1, [])
    assert [row["score"] for row in events(log.root)] == [0, 1]
    assert check(log.root).ok


def test_a_score_stands_after_the_end_of_an_execution_whose_clock_ran_ahead(log: LogBuilder) -> None:
    log.clock = time.time_ns() + 10**15
    worker = log.worker("ahead")
    worker.event("ended", execution="solve-7")
    worker.close()
    score(str(log.root), "-x", "solve-7", "--score", "1")
    assert read_log(log.root).executions["event"].to_pylist()[-1] == "scored"


def test_the_segment_is_closed_in_order_and_read_without_remarks(log: LogBuilder) -> None:
    before = set(log.folder.segments())
    score(str(log.root), "-x", "solve-7", "--score", "1")
    (segment,) = set(log.folder.segments()) - before
    assert not is_live(segment)
    assert [type(record).__name__ for record in scan(segment, Damage())] == ["ExecutionRecord", "CloseRecord"]
    assert read_log(log.root).problems == []


def test_the_last_attempt_is_meant_unless_one_is_named(log: LogBuilder) -> None:
    score(str(log.root), "-x", "solve-8", "--score", "1")
    score(str(log.root), "-x", "solve-8", "--score", "0", "--attempt", "0")
    assert [row["execution_attempt"] for row in events(log.root)] == [1, 0]


def test_a_group_alone_is_an_update(log: LogBuilder) -> None:
    score(str(log.root), "-x", "solve-7", "--group", "g")
    assert said(log.root) == [
        {"execution_id": "solve-7", "execution_attempt": 0, "event": "updated", "group": "g"}
    ]


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["-x", "solve-77", "--score", "1"], "no execution `solve-77`", "did you mean `solve-7`?"),
        (["-x", "other", "--score", "1"], "no execution `other`", "gyre log calls"),
        (["-x", "solve-8", "--score", "1", "--attempt", "4"], "no attempt 4", "its last is 1"),
        (["-x", "solve-7", "--score", "nan"], "no finite number", ""),
        (["-x", "solve-7", "--score", "-inf"], "no finite number", ""),
        (["-x", "solve-7", "--reason", "x"], "nothing is said of `solve-7`", "give a score"),
    ],
)
def test_what_is_wrong_writes_nothing(
    log: LogBuilder, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
) -> None:
    before = log.folder.segments()
    score(str(log.root), *arguments, code=1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"error: {error}" in shown.err or error in shown.err.splitlines()[0]
    assert hint in shown.err
    assert log.folder.segments() == before


@pytest.mark.parametrize(
    "arguments",
    [["--score", "1"], ["-x", "a", "--file", "s.csv"], ["--file", "s.csv", "--score", "1"], ["--score", "x"]],
)
def test_wrong_usage_is_exit_code_2(log: LogBuilder, arguments: list[str]) -> None:
    score(str(log.root), *arguments, code=2)


def test_many_at_once(log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("execution,attempt,score,outcome\nsolve-7,,0.5,\nsolve-8,0,,no_artifact\nsolve-8,,1,\n")
    score(str(log.root), "--file", str(file), "--json")
    rows = [(e["execution_id"], e["execution_attempt"], e["score"], e["outcome"]) for e in events(log.root)]
    assert rows == [
        ("solve-7", 0, 0.5, None),
        ("solve-8", 0, None, "no_artifact"),
        ("solve-8", 1, 1.0, None),
    ]
    assert json.loads(capsys.readouterr().out) == {
        "schema": 1,
        "written": [
            {"execution_id": "solve-7", "attempt": 0, "by": "command"},
            {"execution_id": "solve-8", "attempt": 0, "by": "command"},
            {"execution_id": "solve-8", "attempt": 1, "by": "command"},
        ],
    }


def test_one_misspelt_name_among_many_writes_nothing(log: LogBuilder) -> None:
    with pytest.raises(ScoreError, match="`solve-9`"):
        write_scores(log.root, [Scored("solve-7", score=1.0), Scored("solve-9", score=1.0)])
    assert events(log.root) == []


def test_the_outcomes_of_the_command_line_are_those_of_the_log() -> None:
    assert tuple(log_score.Outcome) == OUTCOMES


def test_a_running_proxy_that_knows_the_execution_is_told(tmp_path: Path) -> None:
    with FakeEngine() as engine, RunningProxy(tmp_path, engine) as proxy:
        proxy.chat("e1")
        announce(proxy)
        written = write_scores(tmp_path, [Scored("e1", score=0.5, group="g", task="t", reason="ok")])
        assert written == [("e1", 0, "proxy")]
        status = proxy.worker.executions.get("e1")
        assert (status.group, status.task) == ("g", "t")
        found = [(e.event, e.score, e.group, e.reason, e.worker) for e in events_of(proxy)]
        assert found == [
            ("started", None, "g", None, proxy.worker.name),
            ("scored", 0.5, None, "ok", proxy.worker.name),
        ]
        assert write_scores(tmp_path, [Scored("e1", group="h")]) == [("e1", 0, "proxy")]
        assert status.group == "h"


def test_beside_a_running_proxy_others_are_scored_in_a_segment_of_their_own(
    log: LogBuilder, tmp_path: Path
) -> None:
    with FakeEngine() as engine, RunningProxy(log.root, engine) as proxy:
        proxy.chat("e1")
        announce(proxy)
        scores = [
            Scored("solve-7", score=1.0),
            Scored("e1", score=0.0),
            Scored("solve-8", attempt=0, score=0.5),
        ]
        assert {one.execution_id: one.by for one in write_scores(log.root, scores)} == {
            "solve-7": "command",
            "e1": "proxy",
            "solve-8": "command",
        }
        assert len(events(log.root)) == 3


def test_a_proxy_that_refuses_is_an_error(log: LogBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "secret")
    with FakeEngine() as engine, RunningProxy(log.root, engine) as proxy:
        announce(proxy)
        monkeypatch.delenv("GYRE_PROXY_TOKEN")
        with pytest.raises(UpstreamError, match="answers 401") as caught:
            write_scores(log.root, [Scored("solve-7", score=1.0)])
    assert "GYRE_PROXY_TOKEN" in caught.value.hint
    assert events(log.root) == []


def test_another_server_at_the_address_of_a_dead_proxy_is_not_asked_twice(log: LogBuilder) -> None:
    with FakeEngine() as engine:
        log.folder.proxy_file.write_text(json.dumps({"url": engine.url, "pid": os.getpid()}))
        assert write_scores(log.root, [Scored("solve-7", score=1.0)]) == [("solve-7", 0, "command")]


def announce(proxy: RunningProxy) -> None:
    """As `gyre proxy` does when it is up."""
    (proxy.logs / "proxy.json").write_text(json.dumps({"schema": 1, "url": proxy.url, "pid": os.getpid()}))


def events_of(proxy: RunningProxy) -> list[Any]:
    return [record for record in proxy.records() if type(record).__name__ == "ExecutionRecord"]


def test_a_disk_that_is_full_leaves_no_half_of_a_score(log: LogBuilder) -> None:
    def full(path: Path) -> int:
        os.close(open_new(path))
        return os.open("/dev/full", os.O_WRONLY)

    before = log.folder.segments()
    with pytest.raises(LogError, match="No space left"):
        write_scores(log.root, [Scored("solve-7", score=1.0)], opener=full)
    assert log.folder.segments() == before


def test_a_folder_that_cannot_be_written_is_named(log: LogBuilder) -> None:
    def refused(_: Path) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(LogError, match="Permission denied"):
        write_scores(log.root, [Scored("solve-7", score=1.0)], opener=refused)


PROGRAM = """
import os, sys
left = int(sys.argv[2])

def dying(function):
    def wrapper(*args, **kwargs):
        global left
        left -= 1
        if left < 0:
            os._exit(9)
        return function(*args, **kwargs)
    return wrapper

from gyre.proxy.log.score import write_scores
from gyre.proxy.scores import Scored
os.open, os.write, os.fsync, os.close = map(dying, (os.open, os.write, os.fsync, os.close))
write_scores(sys.argv[1], [Scored("solve-7", score=1.0), Scored("solve-8", score=0.0)])
"""


def test_killed_anywhere_it_has_written_all_or_nothing(log: LogBuilder) -> None:
    step = code = 0
    while True:
        code = subprocess.run([sys.executable, "-c", PROGRAM, str(log.root), str(step)]).returncode
        assert code in (0, 9)
        assert len(events(log.root)) % 2 == 0
        assert check(log.root).ok
        seal(log.root)
        if code == 0:
            break
        step += 1
    assert step >= 4
    assert len(events(log.root)) >= 2
    assert [type(r) for p in log.folder.segments() for r in scan(p, Damage())].count(CallRecord) == 0
