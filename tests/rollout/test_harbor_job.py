"""Harbor's job folders: what each trial says, and what broken ones do to the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy.executions import ExecutionOutcome as Outcome
from gyre.trainer.rollout.harbor_job import HarborError, Judged, Trial, read_job
from tests.rollout.harbor_jobs import BEGUN, TIMES, JobBuilder, exception, moment


@pytest.fixture
def job(tmp_path: Path) -> JobBuilder:
    return JobBuilder(tmp_path / "jobs" / "first")


def one(job: JobBuilder, reward: str = "reward", **fields: Any) -> Trial:
    job.trial("t__1", **fields)
    (trial,) = read_job(job.folder, reward).trials
    return trial


def judged(job: JobBuilder, **fields: Any) -> Judged:
    return one(job, **fields).judged


def test_what_a_trial_is(job: JobBuilder) -> None:
    trial = one(job, rewards={"reward": 1.0}, task="org/reverse-lines")
    assert (trial.name, trial.task, trial.agent, trial.model) == ("t__1", "org/reverse-lines", "codex", "m")
    assert (trial.ran, trial.started, trial.graded) == (True, moment(BEGUN), None)
    assert trial.judged == Judged(Outcome.COMPLETED, 1.0)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rewards": {"reward": 0}}, Judged(Outcome.COMPLETED, 0.0)),
        ({"rewards": {"accuracy": 0.5}}, Judged(Outcome.COMPLETED, 0.5)),
        ({"rewards": {"a": 1, "reward": 0.25}}, Judged(Outcome.COMPLETED, 0.25)),
        (
            {"rewards": {"reward": 0.5}, "error": exception("AgentTimeoutError", "after\n 900 s")},
            Judged(Outcome.TIMED_OUT, 0.5, "AgentTimeoutError: after 900 s"),
        ),
        (
            {"rewards": {"reward": 1}, "error": exception("NonZeroAgentExitCodeError", "")},
            Judged(Outcome.FAILED, 1.0, "NonZeroAgentExitCodeError"),
        ),
        (
            {"rewards": {"reward": 0}, "error": exception("ApiOverloadedError"), "reward_valid": False},
            Judged(
                Outcome.FAILED,
                None,
                "ApiOverloadedError: it went wrong; its reward does not count in Harbor either",
            ),
        ),
        (
            {"error": exception("VerifierTimeoutError", "600 s")},
            Judged(Outcome.SCORER_FAILED, None, "VerifierTimeoutError: 600 s"),
        ),
        (
            {"error": exception("AgentTimeoutError", "900 s")},
            Judged(Outcome.SCORER_FAILED, None, "the verifier gave no reward after AgentTimeoutError: 900 s"),
        ),
        ({}, Judged(Outcome.SCORER_FAILED, None, "the verifier gave no reward")),
        (
            {"rewards": {}},
            Judged(Outcome.SCORER_FAILED, None, "the rewards are no JSON object of names and numbers"),
        ),
        (
            {"rewards": {"a": 1, "b": 2}},
            Judged(Outcome.SCORER_FAILED, None, "none of the rewards `a`, `b` is called `reward`"),
        ),
        (
            {"rewards": {"reward": "high"}},
            Judged(Outcome.SCORER_FAILED, None, "the reward `reward` is no number"),
        ),
        (
            {"graded": False, "error": exception("AgentTimeoutError", "900 s")},
            Judged(Outcome.TIMED_OUT, None, "AgentTimeoutError: 900 s"),
        ),
        ({"graded": False}, Judged(Outcome.COMPLETED, None, "it was not verified")),
        (
            {"rewards": {"reward": 1}, "error": exception("CancelledError", "")},
            Judged(Outcome.RUN_TIMEOUT, None, "CancelledError"),
        ),
        (
            {"ran": False, "graded": False, "error": exception("EnvironmentStartTimeoutError", "no image")},
            Judged(Outcome.FAILED, None, "EnvironmentStartTimeoutError: no image"),
        ),
    ],
)
def test_how_it_ended_and_what_it_is_worth(job: JobBuilder, fields: dict[str, Any], expected: Judged) -> None:
    assert judged(job, **fields) == expected


def test_the_reward_that_counts_can_be_named(job: JobBuilder) -> None:
    fields: dict[str, Any] = {"rewards": {"a": 1, "b": 2}}
    assert judged(job, reward="b", **fields).score == 2.0
    assert judged(job, reward="c", **fields).outcome == Outcome.SCORER_FAILED
    assert judged(job, reward="c", rewards={"a": 1}).outcome == Outcome.SCORER_FAILED


def test_steps_have_errors_of_their_own(job: JobBuilder) -> None:
    steps = [
        {"step_name": "a", "agent_execution": TIMES, "verifier": TIMES},
        {"step_name": "b", "exception_info": exception("AgentTimeoutError", "60 s"), "verifier": TIMES},
    ]
    trial = one(job, ran=False, graded=False, rewards={"reward": 0.5}, step_results=steps)
    assert (trial.ran, trial.judged) == (True, Judged(Outcome.TIMED_OUT, 0.5, "AgentTimeoutError: 60 s"))
    assert judged(job, graded=False, step_results=steps).outcome == Outcome.SCORER_FAILED


def test_a_trial_that_only_grades_again_names_the_other(job: JobBuilder) -> None:
    source = {"source_trial": {"action": "regrade", "type": "local", "path": "/jobs/old/t__0/"}}
    assert one(job, config=source).graded == "t__0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Input data was truncated"),
        ("{", "Input data was truncated"),
        ("[]", "Expected `object`, got `array`"),
        ('{"trial_name": "x"}', "missing required field `task_name`"),
        (
            '{"task_name": "a", "trial_name": "x", "verifier_result": 3}',
            "Expected `object | null`, got `int`",
        ),
        ('{"task_name": "a", "trial_name": "x", "started_at": "soon"}', "Invalid RFC3339"),
    ],
)
def test_a_broken_trial_is_a_finding_and_the_rest_goes_on(job: JobBuilder, text: str, said: str) -> None:
    for name in ("a__1", "b__1", "c__1"):
        job.trial(name, rewards={"reward": 1})
    (job.folder / "b__1" / "result.json").write_text(text)
    found = read_job(job.folder)
    assert [trial.name for trial in found.trials] == ["a__1", "c__1"]
    (finding,) = found.findings
    assert (finding.severity, finding.code) == ("error", "broken_trial")
    assert (finding.where, said in finding.message) == (str(job.folder / "b__1"), True)


def test_a_result_that_is_a_folder(job: JobBuilder) -> None:
    path = job.trial("a__1") / "result.json"
    path.unlink()
    path.mkdir()
    (finding,) = read_job(job.folder).findings
    assert finding.message == "`result.json`: Is a directory"


def test_trials_that_run_and_other_folders(job: JobBuilder) -> None:
    (job.trial("a__1") / "result.json").unlink()
    (job.folder / "notes").mkdir()
    found = read_job(job.folder)
    assert found.trials == []
    assert [(finding.severity, finding.code) for finding in found.findings] == [("note", "unfinished_trial")]


def test_a_trial_that_is_there_twice(job: JobBuilder) -> None:
    job.trial("a__1", rewards={"reward": 1})
    job.trial("a__1", rewards={"reward": 0}, folder="copy of a__1")
    found = read_job(job.folder)
    assert [trial.judged.score for trial in found.trials] == [1.0]
    assert found.findings[0].message == "another folder has the trial `a__1`"


def test_a_single_trial_is_a_job_of_one(job: JobBuilder) -> None:
    place = job.trial("a__1", rewards={"reward": 1})
    assert [trial.name for trial in read_job(place).trials] == ["a__1"]


@pytest.mark.parametrize("text", [None, "", '{"stats": {"n_retries": "x"}}', '{"stats": {}}'])
def test_a_job_without_a_result_of_its_own(job: JobBuilder, text: str | None) -> None:
    job.trial("a__1", rewards={"reward": 1})
    (job.folder / "result.json").unlink() if text is None else (job.folder / "result.json").write_text(text)
    assert (read_job(job.folder).retries, len(read_job(job.folder).trials)) == (0, 1)


def test_a_naive_time_is_local(job: JobBuilder) -> None:
    trial = one(job, started_at="2026-01-31T12:00:00")
    assert trial.started is not None and trial.started.tzinfo is not None


def test_what_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(HarborError, match="is no folder"):
        read_job(tmp_path / "ghost")
    (tmp_path / "result.json").write_text(json.dumps({"stats": {}}))
    with pytest.raises(HarborError, match="no trials of Harbor in") as caught:
        read_job(tmp_path)
    assert "jobs/" in caught.value.hint
