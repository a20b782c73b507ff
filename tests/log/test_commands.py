"""`gyre log ...`: data on stdout, talk on stderr, one JSON document with `--json`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gyre.cli.log import _time, app
from gyre.proxy.errors import UpstreamError
from gyre.proxy.log.reading.follow import Follower
from gyre.proxy.log.reading.read import read_log
from tests.log.builders import LogBuilder, growing_run

RUNNER = CliRunner()


@pytest.fixture
def builder(tmp_path: Path) -> LogBuilder:
    builder = LogBuilder(tmp_path / "logs")
    worker = builder.worker()
    growing_run(worker, 3)
    worker.call("odd", None, None, execution="e2", outcome="timeout", error="too slow")
    worker.intent("lost", execution="e2")
    worker.die()
    return builder


def run(builder: LogBuilder, command: str, *arguments: str, code: int = 0) -> str:
    result = RUNNER.invoke(app, [command, str(builder.root), *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def ask(builder: LogBuilder, command: str, *arguments: str, code: int = 0) -> Any:
    document = json.loads(run(builder, command, *arguments, "--json", code=code))
    assert document["schema"] == 1
    return document


def test_calls_lists_the_newest(builder: LogBuilder) -> None:
    assert "e1-00002" in run(builder, "calls")
    document = ask(builder, "calls", "--limit", "2")
    assert document["total"] == 5
    assert [row["call_id"] for row in document["calls"]] == ["odd", "lost"]
    row = ask(builder, "calls", "--execution", "e1")["calls"][1]
    assert (row["prompt_tokens"], row["prompt_shared"], row["output_tokens"], row["seconds"]) == (
        90,
        50,
        10,
        1,
    )


def test_calls_can_be_filtered(builder: LogBuilder) -> None:
    assert [r["call_id"] for r in ask(builder, "calls", "--outcome", "timeout")["calls"]] == ["odd"]
    named = ask(builder, "calls", "-x", "e2", "-x", "nobody")["calls"]
    assert [row["call_id"] for row in named] == ["odd", "lost"]


def test_show_has_all_of_one_call(builder: LogBuilder) -> None:
    text = run(builder, "show", "e1-00002")
    assert "e1 turn 2" in text
    (row,) = ask(builder, "show", "e1-00002")["rows"]
    truth = builder.truth["e1-00002", 0, 0]
    assert row["prompt_ids"] == truth.prompt
    assert [message.encode() for message in row["messages"]] == truth.messages
    assert row["finish_reason"] == "stop"


def test_show_of_an_unknown_call_says_so(builder: LogBuilder) -> None:
    result = RUNNER.invoke(app, ["show", str(builder.root), "nobody"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "error: no call `nobody`" in result.stderr
    assert "hint:" in result.stderr


def test_tail_prints_the_newest_lines(builder: LogBuilder) -> None:
    lines = run(builder, "tail", "-n", "2", "--json").splitlines()
    assert [json.loads(line)["call_id"] for line in lines] == ["odd", "lost"]
    assert len(run(builder, "tail").splitlines()) == 5


def test_a_follower_sees_each_new_call_once_even_when_it_is_sealed_at_once(builder: LogBuilder) -> None:
    from gyre.proxy.log.sealing.seal import seal

    with Follower(builder.root) as follower:
        assert len(follower.poll()) == 4
        worker = builder.worker("new")
        worker.call("x1")
        assert [record.call_id for record in follower.poll()] == ["x1"]
        worker.call("x2")
        worker.die()
        seal(builder.root)
        assert [record.call_id for record in follower.poll()] == ["x2"]
        assert follower.poll() == []


def test_sql_answers(builder: LogBuilder) -> None:
    query = "SELECT execution_id, count(*) AS n FROM calls GROUP BY ALL ORDER BY ALL"
    document = ask(builder, "sql", query)
    assert (document["columns"], document["rows"]) == (["execution_id", "n"], [["e1", 3], ["e2", 2]])
    assert "e2" in run(builder, "sql", query)


def test_wrong_sql_is_an_error_without_a_traceback(builder: LogBuilder) -> None:
    result = RUNNER.invoke(app, ["sql", str(builder.root), "SELECT nothing FROM calls"])
    assert result.exit_code == 1
    assert "error: DuckDB:" in result.stderr
    assert "Traceback" not in result.output


def test_check_counts_and_fails_on_errors(builder: LogBuilder, tmp_path: Path) -> None:
    document = ask(builder, "check")
    assert document["ok"]
    assert document["counts"]["interrupted"] == 1
    assert "prompts" in run(builder, "check")
    listed = tmp_path / "ids"
    listed.write_text("e1-00000\nnever\n")
    document = ask(builder, "check", "--answered", str(listed), code=1)
    assert [finding["where"] for finding in document["findings"]] == ["never"]
    assert "never" in run(builder, "check", "--answered", str(listed), code=1)


def test_seal_without_a_proxy_seals_itself(builder: LogBuilder) -> None:
    builder.folder.proxy_file.write_text(json.dumps({"url": "http://127.0.0.1:9", "pid": 2**22 + 1}))
    document = ask(builder, "seal")
    assert (document["sealed_by"], document["calls"], document["interrupted"]) == ("command", 5, 1)
    assert "segments" in run(builder, "seal")


def test_prune_says_what_went(builder: LogBuilder) -> None:
    document = ask(builder, "prune", "--execution", "e1", "--dry-run")
    assert (document["executions"], document["dry_run"]) == ([], True)
    run(builder, "seal")
    document = ask(builder, "prune", "--execution", "e1", "--dry-run")
    assert document["executions"] == ["e1"]
    assert "bytes freed" in run(builder, "prune", "--before", "0d", "-x", "e1")
    assert set(read_log(builder.root).calls["execution_id"].to_pylist()) == {"e2"}


def test_ages_and_dates_are_understood() -> None:
    assert _time("2026-01-31").isoformat() == "2026-01-31T00:00:00+00:00"
    assert (_time("1h") - _time("2h")).total_seconds() == pytest.approx(3600, abs=5)
    assert RUNNER.invoke(app, ["prune", ".", "--before", "soon"]).exit_code != 0


class Proxy(BaseHTTPRequestHandler):
    """What a running proxy answers; remembers what it was asked."""

    asked: list[tuple[str, str | None]] = []  # noqa: RUF012
    status = 200

    def do_POST(self) -> None:
        self.asked.append((self.path, self.headers.get("x-gyre-token")))
        report = {name: 1 for name in ("segments", "calls", "messages", "executions")}
        report |= {"interrupted": 0, "duplicates": 0}
        data = json.dumps({"reports": [report | {"problems": []}, report | {"problems": []}]}).encode()
        self.send_response(self.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(builder: LogBuilder) -> Iterator[type[Proxy]]:
    Proxy.asked, Proxy.status = [], 200
    server = HTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    builder.folder.proxy_file.write_text(json.dumps({"url": url, "pid": os.getpid()}))
    yield Proxy
    server.shutdown()
    server.server_close()
    thread.join()


def test_seal_asks_a_running_proxy(
    builder: LogBuilder, proxy: type[Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYRE_PROXY_TOKEN", "secret")
    document = ask(builder, "seal")
    assert (document["sealed_by"], document["calls"]) == ("proxy", 2)
    assert proxy.asked == [("/gyre/v1/log/seal", "secret")]
    assert len(builder.folder.segments()) == 1


def test_a_proxy_that_refuses_is_an_error_with_a_hint(builder: LogBuilder, proxy: type[Proxy]) -> None:
    proxy.status = 401
    with pytest.raises(UpstreamError, match="answers 401") as caught:
        run(builder, "seal")
    assert "GYRE_PROXY_TOKEN" in caught.value.hint


def test_prune_tells_a_running_proxy_to_forget(builder: LogBuilder, proxy: type[Proxy]) -> None:
    ask(builder, "prune", "--execution", "e1")
    assert [path for path, _ in proxy.asked] == ["/gyre/v1/log/forget"]
