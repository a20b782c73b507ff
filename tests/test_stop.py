"""Ctrl-C and SIGTERM on a command that has something to bring to an end."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from gyre.cli.stop import interruptible


@pytest.mark.timeout(30)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_is_heard_by_who_just_begins_to_wait(number: signal.Signals) -> None:
    """The handler runs in the same thread, between any two steps of `wait`."""
    for _ in range(100):
        with interruptible("") as stop:
            sender = threading.Timer(0.002, os.kill, (os.getpid(), number))
            sender.start()
            while not stop.wait(0):
                pass
            sender.join()
            assert stop.code == 128 + number


def test_whoever_looks_after_it_came_sees_it() -> None:
    for _ in range(200):
        with interruptible("") as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.is_set()
            assert stop.wait(5)


def test_what_was_there_before_is_there_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible(""):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
