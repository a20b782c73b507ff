"""The process of an engine: when it counts as started, and what is said of one that does not come up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyre.elastic.engines.child import Child
from gyre.elastic.process.supervised import StartError
from gyre.proxy.errors import EngineError
from tests.proxy.processes import wait_for


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child("engine-0", tmp_path)
    yield made
    made.stop()


def start(child: Child, program: str, *, answers: bool | None = True, timeout_s: float = 10) -> None:
    child.start([sys.executable, "-c", program], os.environ, lambda: answers, timeout_s)


def test_it_runs_until_it_is_stopped(child: Child) -> None:
    start(child, "import time; time.sleep(60)")
    assert child.alive() and child.pid
    child.stop()
    assert not child.alive()


def test_the_words_of_each_start_are_kept(child: Child) -> None:
    for word in ("one", "two"):
        start(child, f"import sys, time; print({word!r}, file=sys.stderr, flush=True); time.sleep(60)")
        wait_for(lambda: child.output.read_text(), 60)
    child.stop()
    said = {path.name: path.read_text() for path in child.folder.glob("engine-0*.txt")}
    assert (said["engine-0.txt"], said["engine-0.2.txt"]) == ("one\n", "two\n")


def test_one_that_ends_before_it_answers_is_told_with_its_last_words(child: Child) -> None:
    program = "import sys; sys.stderr.write('loading\\nValueError: no such model\\n'); sys.exit(3)"
    with pytest.raises(EngineError) as caught:
        start(child, program, answers=False)
    assert caught.value.message == "engine `engine-0` ended before it answered: ValueError: no such model"
    assert "loading | ValueError: no such model" in caught.value.hint
    assert str(child.output) in caught.value.hint


def test_one_of_ours_says_itself_what_to_do(child: Child) -> None:
    program = "import sys; sys.exit('error: it is broken\\nhint: mend it')"
    with pytest.raises(EngineError) as caught:
        start(child, program, answers=False)
    assert caught.value.message.endswith("before it answered: it is broken")
    assert caught.value.hint.startswith("mend it; ")


def test_one_that_speaks_only_on_its_output_is_heard_too(child: Child) -> None:
    with pytest.raises(EngineError) as caught:
        start(child, "print('no memory left')", answers=False)
    assert caught.value.message.endswith(": no memory left")
    assert "no memory left" in caught.value.hint


def test_one_that_needs_too_long_is_ended(child: Child) -> None:
    with pytest.raises(EngineError, match=r"does not answer after 0\.3 s") as caught:
        start(child, "import time; time.sleep(60)", answers=None, timeout_s=0.3)
    assert "engine.start_timeout" in caught.value.hint
    assert not child.alive()


def test_a_program_that_is_not_there_is_named(child: Child) -> None:
    with pytest.raises(StartError, match="no-such-engine"):
        child.start(["no-such-engine"], os.environ, lambda: True, 1)
