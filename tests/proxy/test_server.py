"""`gyre proxy` with one worker, as a process of its own: start, graceful end, what it says."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gyre.cli.main import main
from gyre.proxy.errors import ConfigError
from gyre.proxy.log.folder import create_folder
from gyre.proxy.log.live import proxy_url
from gyre.proxy.log.reading.read import read_log
from gyre.proxy.process import born
from gyre.proxy.serve.address import announce, listen, url_of, withdraw
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer
from tests.proxy.processes import ProxyProcess, Stream, accepts, end, wait_for


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine(script=Answer(text="a slow answer in pieces", gap=0.2)) as engine:
        yield engine


def test_it_says_where_it_is_and_takes_that_back_at_its_end(tmp_path: Path, engine: FakeEngine) -> None:
    with ProxyProcess(tmp_path, engine.url) as proxy:
        assert f"proxy ready: {proxy.url}\n" in proxy.stderr
        assert f"OPENAI_BASE_URL={proxy.url}/x/my-run/v1\n" in proxy.stderr
        said = json.loads((proxy.logs / "proxy.json").read_text())
        pid = proxy.process.pid
        assert said == {"schema": 1, "url": proxy.url, "pid": pid, "born": born(pid)}
        assert proxy.chat().status_code == 200
        assert len(proxy.stderr.splitlines()) == 3
        assert end(proxy) == 0
        assert not (proxy.logs / "proxy.json").exists()
        assert proxy.process.stdout is not None and proxy.process.stdout.read() == ""


def test_a_graceful_end_finishes_open_streams_and_seals(tmp_path: Path, engine: FakeEngine) -> None:
    with ProxyProcess(tmp_path, engine.url) as proxy:
        stream = Stream(proxy)
        proxy.process.send_signal(signal.SIGINT)
        wait_for(lambda: not accepts(proxy.port), 3)
        assert proxy.process.wait(20) == 0
        stream.join(10)
        assert stream.text.endswith("data: [DONE]\n\n")
        assert list((proxy.logs / "journal").iterdir()) == []
        assert read_log(proxy.logs).calls["outcome"].to_pylist() == ["ok"]


def test_a_name_that_ended_before_a_restart_goes_on_with_its_next_attempt(
    tmp_path: Path, engine: FakeEngine
) -> None:
    for _ in range(2):
        with ProxyProcess(tmp_path, engine.url) as proxy:
            proxy.chat()
            event = httpx.post(f"{proxy.url}/gyre/v1/executions/e1/events", json={"event": "ended"})
            assert event.status_code == 200
            assert end(proxy) == 0
    assert read_log(proxy.logs).calls["execution_attempt"].to_pylist() == [0, 1]


def test_at_the_shutdown_limit_what_is_open_is_cut_and_recorded(tmp_path: Path) -> None:
    with (
        FakeEngine(script=Answer(text="never done", hang_after=2)) as engine,
        ProxyProcess(tmp_path, engine.url, config="shutdown_s = 0.5") as proxy,
    ):
        stream = Stream(proxy)
        assert end(proxy) == 0
        stream.join(10)
        assert stream.error is not None and "[DONE]" not in stream.text
        (row,) = read_log(proxy.logs).calls.to_pylist()
        assert (row["outcome"], row["error"]) == ("interrupted", "the proxy was stopped")


def test_a_kept_alive_connection_does_not_hold_up_the_end(tmp_path: Path, engine: FakeEngine) -> None:
    with ProxyProcess(tmp_path, engine.url) as proxy, httpx.Client(base_url=proxy.url) as client:
        assert client.get("/healthz").status_code == 200
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(10) == 0


def test_a_port_in_use_is_named(tmp_path: Path, engine: FakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError) as failed:
            ProxyProcess(tmp_path, engine.url, "--port", str(port)).__enter__()
    assert str(failed.value).splitlines() == [
        f"error: cannot listen on `127.0.0.1:{port}`: another process listens there",
        "hint: choose another `--port`, or 0 for a free one",
    ]


def test_more_calls_may_be_open_than_the_soft_limit_of_files(tmp_path: Path, engine: FakeEngine) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        proxy = ProxyProcess(tmp_path, engine.url).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with contextlib.ExitStack() as open_connections:
        open_connections.push(proxy.__exit__)
        for _ in range(400):
            open_connections.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
        assert proxy.get("/healthz")["status"] == "ok"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--logs", "x"], "error: no engine given"),
        (["--upstream", "http://a"], "error: no log folder given"),
        (["--upstream", "a", "--logs", "x"], "error: `a` is not the base URL of an engine"),
        (["--profile", "vllm", "--logs", "x"], "error: `--profile` says what `--upstream` is"),
        (["--config", "/no/such.toml"], "error: cannot read `/no/such.toml`"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_error_and_a_hint(
    capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["proxy", *options])
    assert ended.value.code == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(message)
    assert len(shown.err.splitlines()) <= 2 and shown.out == ""


def test_a_folder_of_a_newer_format_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "gyre.json").write_text('{"format": 99, "schema": 99}')
    with pytest.raises(RuntimeError, match="has log format 99"):
        ProxyProcess(tmp_path, "http://127.0.0.1:9").__enter__()


def test_problems_are_json_lines_where_asked_for(tmp_path: Path) -> None:
    program = (
        "import logging; from gyre.proxy.serve import logs; logs.install('json', logging.WARNING);"
        "logging.getLogger('gyre.proxy.x').warning('backend `%s` is gone', 'b1');"
        "logging.getLogger('gyre.proxy.x').info('silent'); logging.getLogger('elsewhere').error('silent')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, *others = done.stderr.splitlines()
    line = json.loads(first)
    assert (line["level"], line["logger"], line["message"]) == (
        "warning",
        "gyre.proxy.x",
        "backend `b1` is gone",
    )
    assert others == ["silent"]  # of the other library, which is not ours to format


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_the_url_is_one_that_a_client_here_can_use(host: str) -> None:
    with listen(host, 0) as listener:
        assert httpx.URL(url_of(listener)).port == listener.getsockname()[1]
        assert "0.0.0.0" not in url_of(listener)
        socket.create_connection(
            (httpx.URL(url_of(listener)).host, listener.getsockname()[1]), timeout=5
        ).close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1", "x" * 300])
def test_an_address_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ConfigError) as caught:
        listen(host, 0)
    assert host in caught.value.message


def test_a_process_that_has_the_number_of_a_dead_proxy_is_no_proxy(tmp_path: Path) -> None:
    folder = create_folder(tmp_path)
    announce(folder, "http://127.0.0.1:1")
    assert proxy_url(folder) == "http://127.0.0.1:1"
    told = json.loads(folder.proxy_file.read_text())
    folder.proxy_file.write_text(json.dumps(told | {"born": told["born"] + 1}))
    assert proxy_url(folder) is None
    folder.proxy_file.write_text(json.dumps({key: told[key] for key in ("url", "pid")}))  # of an older gyre
    assert proxy_url(folder) == "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "said", ["[]", "garbage", '{"url": "http://x", "pid": -1}', '{"url": "x", "pid": 1e99}']
)
def test_an_address_file_that_makes_no_sense_names_no_proxy(tmp_path: Path, said: str) -> None:
    folder = create_folder(tmp_path)
    folder.proxy_file.write_text(said)
    assert proxy_url(folder) is None


def test_the_address_file_of_a_later_proxy_is_left_alone(tmp_path: Path) -> None:
    folder = create_folder(tmp_path)
    announce(folder, "http://127.0.0.1:1")
    assert json.loads(folder.proxy_file.read_text())["pid"] == os.getpid()
    folder.proxy_file.write_text('{"schema": 1, "url": "http://127.0.0.1:2", "pid": 1}')
    withdraw(folder)
    assert folder.proxy_file.exists()
    folder.proxy_file.write_text("garbage")
    withdraw(folder)
    assert folder.proxy_file.exists()
    announce(folder, "http://127.0.0.1:1")
    withdraw(folder)
    assert not folder.proxy_file.exists()
