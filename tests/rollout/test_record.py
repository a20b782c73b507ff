"""What is said of executions reaches the log: through the proxy, beside it, after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gyre.proxy import read_log
from gyre.proxy.allowance import Allowance
from gyre.proxy.errors import LogError, UpstreamError
from gyre.proxy.executions import ExecutionEvent, ExecutionOutcome
from gyre.proxy.log.check import check
from gyre.proxy.log.folder import Folder
from gyre.proxy.log.live import TOKEN_ENV
from gyre.proxy.log.reading.before import commands_before
from gyre.proxy.log.sealing.seal import seal
from gyre.trainer.rollout.control import Control, execution_route
from gyre.trainer.rollout.place import BusyError
from gyre.trainer.rollout.record import Calls, Record, Standing, append, calls_in
from gyre.trainer.rollout.state import Event
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.log.builders import LogBuilder
from tests.proxy.processes import ProxyProcess
from tests.proxy.running import RunningProxy
from tests.rollout.harnesses import Stage, events_of, said

ENDED = Event(
    event=ExecutionEvent.ENDED, attempt=0, outcome=ExecutionOutcome.FAILED, reason="why", artifact="w"
)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as stage:
        yield stage


def test_a_new_name_begins_with_attempt_0(stage: Stage) -> None:
    assert stage.record.begin("e1", "t", "g", True) == Standing(0, 0, 0.0)
    assert stage.events() == [
        {"execution_attempt": 0, "event": "started", "task": "t", "group": "g", "evaluation": True}
    ]


class Counting(Control):
    """Says how often the proxy was asked."""

    asked = 0

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, patience_s: float = 0.0
    ) -> dict[str, Any] | None:
        self.asked += 1
        return super().ask(method, path, body, patience_s=patience_s)


def test_a_new_name_takes_one_request(stage: Stage) -> None:
    counting = Counting(stage.proxy.url)
    Record(counting).begin("e1", "t", "g", True)
    assert counting.asked == 1


def test_arguments_are_restored_for_those_who_write_them_anew(stage: Stage) -> None:
    stage.record.begin("e1", None, None, restores=True)
    stage.record.begin("e2", None, None)
    shown = [stage.record.control.ask("GET", f"/gyre/v1/executions/{name}") for name in ("e1", "e2")]
    assert [view and view["restore_arguments"] for view in shown] == [True, None]


def test_a_begin_that_was_broken_off_is_taken_up(stage: Stage) -> None:
    """The proxy has heard that an attempt starts, and went away before the rest of it."""
    stage.record.begin("e1", "t", None)
    stage.proxy.chat("e1")
    stage.record.deliver("e1", ENDED)
    stage.control.ask("POST", f"{execution_route('e1')}/events", {"event": "started"})
    assert stage.record.begin("e1", "t", None, ended=0) == Standing(1, 1, 0.0)
    stage.proxy.chat("e1")
    with pytest.raises(BusyError):
        stage.record.begin("e1", "t", None, ended=0)


def test_a_name_that_ended_begins_its_next_attempt(stage: Stage) -> None:
    stage.record.begin("e1", "t", None)
    stage.proxy.chat("e1")
    stage.record.deliver("e1", ENDED)
    assert stage.record.begin("e1", "t", None) == Standing(1, 1, 0.0)
    assert [(attempt, event) for attempt, event, *_ in said(stage.events())] == [
        (0, "started"),
        (0, "ended"),
        (1, "started"),
        (1, "updated"),
    ]


def test_an_event_is_written_as_it_is(stage: Stage) -> None:
    stage.record.begin("e1", None, None)
    details = {"exit_code": 3, "words": "\u6f22"}
    stage.record.deliver(
        "e1", Event(**{name: getattr(ENDED, name) for name in ENDED.__struct_fields__} | {"details": details})
    )
    ended = stage.events()[1]
    assert json.loads(ended.pop("details")) == details
    assert ended == {
        "execution_attempt": 0, "event": "ended", "outcome": "failed", "reason": "why", "artifact": "w"
    }  # fmt: skip


def test_calls_are_counted_by_attempt(tmp_path: Path) -> None:
    answers = [Answer(), Answer(status=429, text="slow down"), Answer()]
    with Stage(tmp_path, script=answers) as stage:
        first = stage.record.begin("e1", None, None)
        assert stage.record.calls("e1", first) == Calls(0, 0)
        stage.proxy.chat("e1")
        stage.proxy.chat("e1")
        counted = stage.record.calls("e1", first)
        assert counted and (counted.made, counted.answered) == (2, 1)
        assert counted.error and "429" in counted.error
        stage.record.deliver("e1", ENDED)
        second = stage.record.begin("e1", None, None)
        stage.proxy.chat("e1")
        assert stage.record.calls("e1", second) == Calls(1, 1)
        assert stage.record.calls("e1", first) == counted


def test_calls_of_an_attempt_that_outlived_its_proxy_are_in_the_log(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        with RunningProxy(tmp_path / "logs", engine) as first:
            record = Record(Control(first.url, first.logs), patience_s=0)
            since = record.begin("e1", None, None, allowance=Allowance(calls=2))
            counted = [first.chat("e1").status_code for _ in range(3)]
            known = record.calls("e1", since)
        with RunningProxy(tmp_path / "logs", engine) as second:
            record = Record(Control(second.url, second.logs), patience_s=0)
            later = record.calls("e1", since)
    assert counted == [200, 200, 403]
    assert known and (known.made, known.answered, known.lost) == (3, 2, False)
    assert known.limit == "its limit of 2 calls"
    assert later == replace(known, cut=True)


def test_a_proxy_that_missed_an_end_is_told_of_it(stage: Stage) -> None:
    stage.record.begin("e1", None, None)
    stage.proxy.chat("e1")
    append(stage.proxy.logs, "e1", ENDED)  # just after the proxy had read its log
    assert stage.record.begin("e1", None, None, ended=0).attempt == 1
    assert stage.record.begin("e2", None, None, ended=1).attempt == 2


def test_without_its_log_the_proxy_is_asked_for_the_number_of_calls(stage: Stage) -> None:
    record = Record(Control(stage.proxy.url))
    stage.proxy.chat("e1")
    record.deliver("e1", ENDED)
    since = record.begin("e1", None, None)
    stage.proxy.chat("e1")
    assert record.calls("e1", since) == Calls(1, 1)


class Views(Control):
    """A proxy that says so many open calls, one answer after the other."""

    def __init__(self, *open_calls: int) -> None:
        super().__init__("http://proxy")
        self.left = list(open_calls)

    def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, patience_s: float = 0.0
    ) -> dict[str, Any] | None:
        return {"open": self.left.pop(0)}


def test_open_calls_are_waited_for() -> None:
    views = Views(2, 1, 0, 7)
    Record(views).settle("e1")
    assert views.left == [7]


def test_a_log_that_is_gone_says_nothing_of_calls(tmp_path: Path) -> None:
    assert calls_in(tmp_path / "none", "e1", 0) is None


def test_when_the_proxy_is_gone_the_event_goes_into_its_log(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.record.begin("e1", None, None)
        stage.proxy.chat("e1")
    stage.record.deliver("e1", ENDED)
    stage.record.deliver("e1", Event(event=ExecutionEvent.SCORED, attempt=0, score=0.5, details={"tries": 1}))
    logs = stage.proxy.logs
    assert said(events_of(logs, "e1")) == [
        (0, "started", None, None),
        (0, "ended", "failed", None),
        (0, "scored", None, 0.5),
    ]
    assert check(logs).ok
    seal(logs)
    assert len(events_of(logs, "e1")) == 3 and read_log(logs).problems == []


@pytest.mark.slow
def test_a_proxy_that_starts_after_that_knows_of_the_end(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        with RunningProxy(tmp_path / "logs", engine) as first:
            record = Record(Control(first.url, first.logs), patience_s=0)
            record.begin("e1", None, None)
            first.chat("e1")
        record.deliver("e1", ENDED)
        with ProxyProcess(tmp_path, engine.url) as second:
            record = Record(Control(first.url, second.logs), patience_s=0)  # it has moved
            assert record.begin("e1", None, None).attempt == 1
            assert record.control.url == second.url


@pytest.mark.slow
def test_an_attempt_that_a_new_proxy_has_seen_nothing_of_is_ended_as_that_attempt(tmp_path: Path) -> None:
    with FakeEngine() as engine:
        with ProxyProcess(tmp_path, engine.url) as first:
            record = Record(Control(first.url, first.logs), patience_s=0)
            record.begin("e1", None, None)
            record.deliver("e1", ENDED)
            assert record.begin("e1", None, None).attempt == 1
            first.process.kill()
        with ProxyProcess(tmp_path, engine.url):
            record.deliver("e1", Event(event=ExecutionEvent.TIMED_OUT, attempt=1))
    assert (1, "timed_out", "timed_out", None) in said(events_of(first.logs, "e1"))


def test_an_event_of_an_attempt_before_the_last_goes_beside_the_proxy(stage: Stage) -> None:
    stage.record.begin("e1", None, None)
    stage.record.deliver("e1", ENDED)
    stage.record.begin("e1", None, None)
    stage.record.deliver("e1", Event(event=ExecutionEvent.SCORED, attempt=0, score=1.0))
    assert said(stage.events())[-1] == (0, "scored", None, 1.0)
    remote = Record(Control(stage.proxy.url), patience_s=0)
    with pytest.raises(UpstreamError, match="does not know attempt 0 of `e1` any more"):
        remote.deliver("e1", Event(event=ExecutionEvent.SCORED, attempt=0, score=1.0))


def test_an_event_stands_after_all_that_the_log_has_also_when_clocks_ran_back(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path / "logs")
    builder.clock = 10**19 // 2
    worker = builder.worker()
    worker.call("c1", execution="e1")
    worker.close()
    append(builder.root, "e1", ENDED)
    assert [row["event"] for row in read_log(builder.root).executions.to_pylist()] == ["ended"]
    log = read_log(builder.root)
    assert log.executions["order"][0].as_py() > log.calls["order"][0].as_py()


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot write to"):
        append(tmp_path / "file" / "logs", "e1", ENDED)


def test_without_proxy_and_log_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match="no proxy answers at"):
        Record(Control("http://127.0.0.1:1"), patience_s=0).deliver("e1", ENDED)


def test_the_token_is_shown_and_harnesses_have_keys_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_ENV, "secret")
    with Stage(tmp_path) as stage:
        assert stage.record.begin("e1", None, None).attempt == 0
        key = stage.control.key("e1")
        assert key.startswith("gyre-x-e1~") and "secret" not in key
        for execution, status in (("e1", 200), ("e2", 401)):
            shown = {"authorization": f"Bearer {key}"}
            assert stage.proxy.chat(execution, headers=shown).status_code == status
        steered = stage.proxy.post(
            f"{stage.proxy.url}/gyre/v1/executions/e1/events", json={"event": "ended"}, headers=shown
        )
        assert steered.status_code == 401
        state = stage.run(stage.agent("call()"), name="e2")
        assert state.outcome == "completed"
        monkeypatch.delenv(TOKEN_ENV)
        stranger = Record(Control(stage.proxy.url), patience_s=0)
        with pytest.raises(UpstreamError, match="401") as refused:
            stranger.begin("e3", None, None)
    assert TOKEN_ENV in refused.value.hint
    assert stranger.control.key("e3") == "gyre-x-e3"


def test_the_model_of_the_engine_is_asked_for(tmp_path: Path) -> None:
    listed = b'{"object": "list", "data": [{"id": "a", "max_model_len": 4096}, {"id": "b"}]}'
    with Stage(tmp_path) as stage:
        assert stage.control.model().name == "fake"
        stage.engine.routes["/v1/models"] = Answer(body=listed)
        assert stage.control.model("a").context == 4096
        assert (stage.control.model("b").context, stage.control.model("c").context) == (None, None)
        with pytest.raises(ValueError, match="several models: `a`, `b`"):
            stage.control.model()
        for nothing in (b'{"data": []}', b'{"data": null}', b'{"data": [{}, 5]}', b"{}"):
            stage.engine.routes["/v1/models"] = Answer(body=nothing)
            with pytest.raises(UpstreamError, match="does not say its models"):
                stage.control.model()


def test_answers_that_only_the_log_knows_of_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    """Whoever ran it left no `execution.json`, and its proxy was started anew."""
    with FakeEngine() as engine:
        with RunningProxy(tmp_path / "logs", engine) as first:
            Record(Control(first.url, first.logs), patience_s=0).begin("e1", None, None)
            assert first.chat("e1").status_code == 200
        with RunningProxy(tmp_path / "logs", engine) as second:
            for command in commands_before(Folder(second.logs)):  # as a proxy does when it starts
                second.worker.apply(command)
            record = Record(Control(second.url, second.logs), patience_s=0)
            with pytest.raises(BusyError, match="`e1` are recorded already"):
                record.begin("e1", None, None)
