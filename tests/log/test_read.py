"""`read_log`: selections, snapshots while others write, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

import gyre.proxy
from gyre.proxy import read_log
from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.sealing.seal import seal
from tests.log.builders import LogBuilder, growing_run, message


def two_executions(root: Path, sealed: bool) -> LogBuilder:
    builder = LogBuilder(root)
    worker = builder.worker()
    for name in ("e1", "e2"):
        growing_run(worker, 4, execution=name)
        worker.event("ended", execution=name)
    worker.die()
    if sealed:
        seal(root)
    return builder


@pytest.mark.parametrize("sealed", [False, True])
def test_a_selection_of_executions_is_complete_in_itself(tmp_path: Path, sealed: bool) -> None:
    builder = two_executions(tmp_path, sealed)
    log = read_log(tmp_path, executions=["e2"])
    assert [key[0] for key in log.row_keys()] == [f"e2-{i:05d}" for i in range(4)]
    assert log.executions["execution_id"].to_pylist() == ["e2"]
    assert log.messages.num_rows == 5
    for key in log.row_keys():
        assert log.request_body(*key) == builder.truth[key].body


@pytest.mark.parametrize("sealed", [False, True])
def test_named_columns_come_in_the_order_given_and_prompts_still_rebuild(
    tmp_path: Path, sealed: bool
) -> None:
    builder = two_executions(tmp_path, sealed)
    log = read_log(tmp_path, columns=["outcome", "call_id"])
    assert log.calls.schema.names == ["outcome", "call_id"]
    ids = log.prompt_ids("e1-00003")
    assert ids is not None
    assert ids.tolist() == builder.truth["e1-00003", 0, 0].prompt
    assert ids.dtype.str == "<i4"


def test_a_message_first_sent_by_another_execution_is_found(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    worker = builder.worker()
    shared = [message("the same")]
    worker.call("a", messages=shared, execution="e1")
    worker.call("b", messages=shared, execution="e2")
    assert read_log(tmp_path, executions=["e2"]).message_list("b") == shared
    worker.die()
    seal(tmp_path)
    assert read_log(tmp_path, executions=["e2"]).message_list("b") == shared


def test_an_unknown_call_is_a_key_error(tmp_path: Path) -> None:
    two_executions(tmp_path, True)
    with pytest.raises(KeyError):
        read_log(tmp_path).prompt_ids("nobody")


def test_a_missing_message_is_named(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("c1", messages=[message("gone")], new_messages=[])
    with pytest.raises(CorruptLogError, match=r"call `c1`: its message '[0-9a-f]{32}' is not in the log"):
        read_log(tmp_path).message_list("c1")


def test_outputs_are_views_and_null_without_ids(tmp_path: Path) -> None:
    worker = LogBuilder(tmp_path).worker()
    worker.call("ids", output=[4, 5])
    worker.call("text", None, None)
    log = read_log(tmp_path)
    output = log.output_ids("ids")
    assert output is not None
    assert output.tolist() == [4, 5]
    assert (log.output_ids("text"), log.prompt_ids("text")) == (None, None)


def test_readers_see_every_row_exactly_once_while_segments_are_sealed(tmp_path: Path) -> None:
    builder = LogBuilder(tmp_path)
    counts: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def watch() -> None:
        try:
            while not done.is_set():
                ids = read_log(tmp_path, columns=["call_id"]).calls["call_id"].to_pylist()
                assert len(ids) == len(set(ids))
                counts.append(len(ids))
        except BaseException as problem:
            failures.append(problem)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for i in range(15):
        worker = builder.worker(f"w{i}")
        worker.call(f"a{i}")
        worker.call(f"b{i}")
        worker.die()
        seal(tmp_path)
    done.set()
    watcher.join()
    assert failures == []
    assert counts == sorted(counts)
    assert len(counts) > 3


def test_importing_the_proxy_loads_no_arrow() -> None:
    program = "import sys, gyre.proxy; print('pyarrow' in sys.modules, 'duckdb' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = gyre.proxy.nothing_here
