"""Waiting for what has finished."""

from __future__ import annotations

from collections import deque

import pytest

from gyre.trainer.live.assignment import Finished
from gyre.trainer.live.inbox import Inbox


class Scripted:
    """Gives what it was made of, None where nothing has finished in time."""

    def __init__(self, *keys: str | None) -> None:
        self._left = deque(keys)

    def next(self, timeout_s: float) -> Finished | None:
        key = self._left.popleft()
        return None if key is None else Finished(key=key)


def test_the_group_that_finished_first_and_may_enter_is_given() -> None:
    inbox = Inbox(Scripted("g000001", None, "g000000", "g000002"), lambda: None)
    assert inbox.group(lambda key: key != "g000001").key == "g000000"
    assert inbox.group(lambda key: True).key == "g000001"
    assert inbox.group(lambda key: True).key == "g000002"


def test_evaluations_are_kept_until_they_are_asked_for() -> None:
    inbox = Inbox(Scripted("eval-000000", "g000000", "eval-000000-greedy"), lambda: None)
    assert inbox.group(lambda key: True).key == "g000000"
    assert inbox.evaluation("eval-000000-greedy").key == "eval-000000-greedy"
    assert inbox.evaluation("eval-000000").key == "eval-000000"


def test_a_wait_ends_with_the_run() -> None:
    asked = iter([None, None, RuntimeError("over")])

    def go_on() -> None:
        if (problem := next(asked)) is not None:
            raise problem

    with pytest.raises(RuntimeError, match="over"):
        Inbox(Scripted(None, None, None), go_on).group(lambda key: True)
