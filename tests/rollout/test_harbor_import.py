"""`gyre log import-harbor`: which trial is which execution, what is recorded, once."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gyre.cli import output
from gyre.cli.main import main
from gyre.proxy import read_log
from gyre.proxy.calls import Identity
from gyre.proxy.errors import LogError
from gyre.proxy.log.check import check
from gyre.trainer.rollout.harbor_import import Import, State, import_job
from gyre.trainer.rollout.harbor_job import HarborError
from gyre.trainer.rollout.harbor_match import session_ids
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.store.read import read_trees
from tests.engines.fake import FakeEngine
from tests.log.builders import LogBuilder, Worker
from tests.proxy.running import RunningProxy
from tests.rollout.harbor_jobs import BEGUN, JobBuilder, exception, moment

SESSION = "0f3a1c2e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"


@pytest.fixture(autouse=True)
def fresh_manner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "manner", output.Manner())


@pytest.fixture
def log(tmp_path: Path) -> LogBuilder:
    return LogBuilder(tmp_path / "logs")


@pytest.fixture
def job(tmp_path: Path) -> JobBuilder:
    return JobBuilder(tmp_path / "jobs" / "first")


def recorded(log: LogBuilder, *names: str, session: str | None = None) -> None:
    """One call of each execution."""
    worker = log.worker(f"w-{names[0]}")
    for name in names:
        worker.call(f"c-{name}", execution=name, identity=Identity(name, "url", session_id=session))
    worker.close()


def events(log: LogBuilder) -> list[dict[str, Any]]:
    names = ("order", "worker", "at", "artifact")
    return [
        {key: value for key, value in row.items() if key not in names and value is not None}
        for row in read_log(log.root).executions.to_pylist()
    ]


def states(done: Import) -> dict[str, tuple[State, str | None]]:
    return {one.trial: (one.state, one.by) for one in done.trials}


def findings(done: Import) -> list[tuple[str, str]]:
    return [(finding.code, finding.message) for finding in done.findings]


def test_outcome_score_task_group_and_reason_are_recorded(log: LogBuilder, job: JobBuilder) -> None:
    recorded(log, "reverse-lines__a1", "rename-files__b2")
    job.trial("reverse-lines__a1", rewards={"reward": 1})
    error = exception("AgentTimeoutError", "900 s")
    place = job.trial("rename-files__b2", "org/rename-files", {"reward": 0.5, "others": 2}, error)
    (place / "artifacts").mkdir()
    done = import_job(log.root, job.folder)
    assert done.ok
    assert states(done) == dict.fromkeys(("reverse-lines__a1", "rename-files__b2"), (State.RECORDED, "name"))
    usual = {"execution_attempt": 0, "event": "scored"}
    assert events(log) == [
        usual
        | dict(execution_id="rename-files__b2", outcome="timed_out", score=0.5)
        | dict(task="org/rename-files", group="org/rename-files", reason="AgentTimeoutError: 900 s"),
        usual
        | dict(execution_id="reverse-lines__a1", outcome="completed", score=1.0)
        | dict(task="reverse-lines", group="reverse-lines"),
    ]
    artifacts = read_log(log.root).executions["artifact"].to_pylist()
    assert artifacts == [str(place / "artifacts"), str(job.folder / "reverse-lines__a1")]
    assert check(log.root).ok


def test_a_second_import_changes_nothing_and_a_new_result_only_itself(
    log: LogBuilder, job: JobBuilder
) -> None:
    recorded(log, "t__a", "t__b", "t__c")
    job.trial("t__a", rewards={"reward": 1})
    job.trial("t__b", error=exception("VerifierTimeoutError"))
    (job.trial("t__c") / "result.json").unlink()
    assert [one.execution_id for one in import_job(log.root, job.folder).written] == ["t__a", "t__b"]
    before = log.folder.segments()
    done = import_job(log.root, job.folder)
    assert states(done) == dict.fromkeys(("t__a", "t__b"), (State.UNCHANGED, "name"))
    assert (done.written, done.left, log.folder.segments()) == ([], ["t__c"], before)
    job.trial("t__b", rewards={"reward": 0})
    job.trial("t__c", rewards={"reward": 1})
    assert [one.execution_id for one in import_job(log.root, job.folder).written] == ["t__b", "t__c"]
    assert import_job(log.root, job.folder).written == []


def test_a_dry_run_writes_nothing(log: LogBuilder, job: JobBuilder) -> None:
    recorded(log, "t__a")
    job.trial("t__a", rewards={"reward": 1})
    done = import_job(log.root, job.folder, dry_run=True)
    assert (states(done), done.written, events(log)) == ({"t__a": (State.RECORDED, "name")}, [], [])


@pytest.mark.parametrize("execution", ["t__a", "t__a__agent"])
def test_the_name_of_the_trial_or_of_its_agents_session(
    log: LogBuilder, job: JobBuilder, execution: str
) -> None:
    recorded(log, execution)
    job.trial("t__a", rewards={"reward": 1})
    assert states(import_job(log.root, job.folder)) == {"t__a": (State.RECORDED, "name")}


def test_a_name_that_executions_cannot_have_is_found_as_the_example_writes_it(
    log: LogBuilder, job: JobBuilder
) -> None:
    recorded(log, "My-t-sk__a")
    job.trial("My täsk__a", rewards={"reward": 1})
    assert states(import_job(log.root, job.folder)) == {"My täsk__a": (State.RECORDED, "name")}


def test_a_session_that_harbor_named_under_an_execution_of_another_name(
    log: LogBuilder, job: JobBuilder
) -> None:
    recorded(log, "mine", session="t__a__agent")
    job.trial("t__a", rewards={"reward": 1})
    done = import_job(log.root, job.folder)
    assert (states(done), done.written[0].execution_id) == ({"t__a": (State.RECORDED, "session")}, "mine")


@pytest.mark.parametrize(
    ("file", "text", "session"),
    [
        (f"agent/sessions/projects/-app/{SESSION}.jsonl", "", SESSION),
        (f"agent/sessions/2026/01/31/rollout-2026-01-31T12-00-00-{SESSION}.jsonl", "", SESSION),
        ("agent/trajectory.json", f'{{"session_id": "{SESSION}"}}', SESSION),
        ("agent/opencode.txt", '{"sessionID":"ses_1a2B3c4D"}\n', "ses_1a2B3c4D"),
        (f"steps/one/agent/sessions/projects/-app/{SESSION}.jsonl", "", SESSION),
    ],
)
def test_the_session_that_the_harness_logged(
    log: LogBuilder, job: JobBuilder, file: str, text: str, session: str
) -> None:
    recorded(log, session, session=session)
    place = job.trial("t__a", rewards={"reward": 1})
    (place / file).parent.mkdir(parents=True, exist_ok=True)
    (place / file).write_text(text)
    done = import_job(log.root, job.folder)
    assert (states(done), done.written[0].execution_id) == ({"t__a": (State.RECORDED, "session")}, session)


def test_sessions_are_looked_for_where_they_stand_and_no_further(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    (agent / "late.txt").write_text("x" * 100_000 + "\n" + SESSION)
    (agent / "picture.png").write_text(SESSION)
    os.mkfifo(agent / "pipe.log")
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "stdout.txt").write_text(SESSION)
    assert session_ids(tmp_path, {SESSION}) == set()
    (agent / "early.txt").write_text(SESSION)
    assert session_ids(tmp_path, {SESSION}) == {SESSION}
    assert session_ids(tmp_path, ()) == set()


def test_several_sessions_of_one_trial_are_not_decided(log: LogBuilder, job: JobBuilder) -> None:
    for number in (1, 2):
        recorded(log, f"ses_{number}0000000", session=f"ses_{number}0000000")
    place = job.trial("t__a", rewards={"reward": 1})
    (place / "agent" / "log.txt").write_text("ses_10000000 ses_20000000")
    done = import_job(log.root, job.folder)
    assert states(done) == {"t__a": (State.UNDECIDED, None)}
    problem = "its sessions are several executions: `ses_10000000`, `ses_20000000`"
    assert findings(done) == [("undecided_trial", problem)]
    assert (done.ok, done.left) == (False, ["ses_10000000", "ses_20000000"])


def test_one_execution_of_a_whole_job_is_given_to_no_trial(log: LogBuilder, job: JobBuilder) -> None:
    worker = log.worker()
    for name in ("a", "b"):
        worker.call(name, execution="all", identity=Identity("all", "url", session_id=f"t__{name}__agent"))
        job.trial(f"t__{name}", rewards={"reward": 1})
    worker.close()
    done = import_job(log.root, job.folder)
    assert states(done) == dict.fromkeys(("t__a", "t__b"), (State.UNDECIDED, None))
    assert findings(done) == [("undecided_trial", "`all` fits several trials: t__a, t__b")] * 2


def test_what_has_no_counterpart_is_listed(log: LogBuilder, job: JobBuilder) -> None:
    recorded(log, "t__a", "left-1", "left-2", "judged")
    worker = log.worker()
    worker.event("scored", execution="judged", score=1.0)
    worker.close()
    job.trial("t__a", rewards={"reward": 1})
    job.trial("t__b", rewards={"reward": 0})
    error = exception("EnvironmentStartTimeoutError", "no image")
    job.trial("t__c", ran=False, graded=False, error=error)
    done = import_job(log.root, job.folder)
    assert [one.state for one in done.trials] == [State.RECORDED, State.UNMATCHED, State.UNMATCHED]
    assert findings(done) == [
        ("unmatched_trial", "no execution of the log has its name or session"),
        ("agent_not_started", "its agent was never started: EnvironmentStartTimeoutError: no image"),
    ]
    assert (done.ok, done.left) == (False, ["left-1", "left-2"])


def begun(worker: Worker, call_id: str, seconds: float, attempt: int = 0) -> None:
    """A call so many seconds after the trial began."""
    at = int((moment(BEGUN) + timedelta(seconds=seconds)).timestamp() * 1e9)
    columns = dict(started_ns=at, first_byte_ns=at, ended_ns=at, execution_attempt=attempt)
    worker.call(call_id, execution="t__a", **columns)


@pytest.mark.parametrize(
    ("retries", "earlier_attempt", "state"),
    [(1, 0, State.UNDECIDED), (0, 0, State.RECORDED), (1, None, State.RECORDED)],
)
def test_a_trial_that_was_tried_again_under_its_name(
    tmp_path: Path, log: LogBuilder, retries: int, earlier_attempt: int | None, state: State
) -> None:
    job = JobBuilder(tmp_path / "jobs" / "again", retries=retries)
    job.trial("t__a", rewards={"reward": 1})
    worker = log.worker()
    begun(worker, "c0", -60)
    # With attempts of their own the tries are told apart.
    begun(worker, "c1", 60, attempt=0 if earlier_attempt is not None else 1)
    worker.close()
    done = import_job(log.root, job.folder)
    assert [one.state for one in done.trials] == [state]
    if state == State.UNDECIDED:
        problem = "`t__a` has calls from before it began: Harbor tried it more than once"
        assert findings(done) == [("undecided_trial", problem)]
    else:
        assert done.written[0].attempt == (1 if earlier_attempt is None else 0)


def test_a_trial_that_grades_another_again_is_about_its_execution(tmp_path: Path, log: LogBuilder) -> None:
    recorded(log, "t__a")
    for name, rewards in (("t__a", {"reward": 0}), ("t__z", {"reward": 1})):
        source = {"source_trial": {"action": "regrade", "type": "local", "path": "/x/t__a"}}
        builder = JobBuilder(tmp_path / "jobs" / name)
        builder.trial(name, rewards=rewards, config=source if name == "t__z" else {})
        import_job(log.root, builder.folder)
    assert [event["score"] for event in events(log)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("group", "name"), [("{job}/{task}", "first/reverse-lines"), ("{agent} {model}", "codex m"), ("x", "x")]
)
def test_groups_are_named_as_one_wants(log: LogBuilder, job: JobBuilder, group: str, name: str) -> None:
    recorded(log, "t__a")
    job.trial("t__a", rewards={"reward": 1})
    import_job(log.root, job.folder, group=group)
    assert [event["group"] for event in events(log)] == [name]


@pytest.mark.parametrize("group", ["{trial}", "{task.__class__}", "{", "", "{}"])
def test_groups_of_something_else_are_refused(log: LogBuilder, job: JobBuilder, group: str) -> None:
    with pytest.raises(HarborError, match="names no group") as caught:
        import_job(log.root, job.folder, group=group)
    assert "{task}, {agent}, {model}, {job}" in caught.value.hint


def test_no_log(tmp_path: Path, job: JobBuilder) -> None:
    job.trial("t__a")
    with pytest.raises(LogError):
        import_job(tmp_path / "ghost", job.folder)


def test_beside_a_running_proxy_it_is_the_proxy_that_records(tmp_path: Path, job: JobBuilder) -> None:
    logs = tmp_path / "logs"
    with FakeEngine() as engine, RunningProxy(logs, engine) as proxy:
        proxy.chat("t__a")
        headers = {"x-session-id": "t__b__agent", "authorization": "Bearer any"}
        body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
        proxy.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
        proxy.rows(2)
        (logs / "proxy.json").write_text(json.dumps({"url": proxy.url, "pid": os.getpid()}))
        for name, reward in (("t__a", 1), ("t__b", 0)):
            job.trial(name, rewards={"reward": reward})
        done = import_job(logs, job.folder)
        assert [tuple(one) for one in done.written] == [("t__a", 0, "proxy"), ("t__b__agent", 0, "proxy")]
        assert import_job(logs, job.folder).written == []
        assert proxy.worker.executions.get("t__a").group == "reverse-lines"
    assert [state for state, _ in states(import_job(logs, job.folder)).values()] == [State.UNCHANGED] * 2


def test_trees_know_it(tmp_path: Path, log: LogBuilder, job: JobBuilder) -> None:
    recorded(log, "t__a", "t__b")
    for name, reward in (("t__a", 1), ("t__b", 0)):
        job.trial(name, rewards={"reward": reward})
    import_job(log.root, job.folder)
    build_trees(log.root, tmp_path / "trees")
    rows = read_trees(tmp_path / "trees").executions()
    assert [(row.execution_id, row.score, row.group) for row in rows] == [
        ("t__a", 1.0, "reverse-lines"),
        ("t__b", 0.0, "reverse-lines"),
    ]


def command(*arguments: object, code: int = 0) -> None:
    try:
        main(["log", "import-harbor", *map(str, arguments)])
    except SystemExit as end:
        assert (end.code or 0) == code
    else:
        assert code == 0


def test_the_command(log: LogBuilder, job: JobBuilder, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(log, "t__a", *(f"left-{number:02}" for number in range(22)))
    job.trial("t__a", rewards={"reward": 1})
    command(log.root, job.folder, "--dry-run")
    shown = capsys.readouterr()
    assert "t__a" in shown.out and "recorded" in shown.out
    assert "22 executions without a trial or score: left-00, " in shown.err
    assert "left-19 and 2 more\nnothing was recorded: a dry run\n" in shown.err
    command(log.root, job.folder)
    assert capsys.readouterr().err.endswith("\n1 recorded\n")


def test_the_command_as_json_and_with_what_is_wrong(
    log: LogBuilder, job: JobBuilder, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded(log, "t__a")
    job.trial("t__a", rewards={"speed": 2, "size": 3})
    job.trial("t__b", rewards={"speed": 1, "size": 0})
    command(log.root, job.folder, "--json", "--reward", "size", "--group", "{job}", code=1)
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    said = dict(execution="t__a", by="name", task="reverse-lines", group="first", outcome="completed")
    nothing = dict.fromkeys(("by", "execution", "task", "group", "outcome", "score", "reason"))
    assert document["trials"] == [
        {"trial": "t__a", "state": "recorded", "score": 3.0, "reason": None} | said,
        {"trial": "t__b", "state": "unmatched"} | nothing,
    ]
    assert document["written"] == [{"execution_id": "t__a", "attempt": 0, "by": "command"}]
    assert (document["schema"], document["without_trial"]) == (1, [])
    (finding,) = document["findings"]
    assert shown.err == f"error: {finding['where']}: {finding['message']}\n"


def test_the_command_on_no_job(log: LogBuilder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(log.root, tmp_path, code=1)
    assert capsys.readouterr().err.startswith(f"error: no trials of Harbor in `{tmp_path}`\nhint: ")
