"""What events and scores say of an execution."""

from __future__ import annotations

from typing import Any

from gyre.proxy.scores import Scored
from gyre.treebuilder.offline.facts import Facts, facts_of

NOTHING = dict.fromkeys(("task", "group", "evaluation", "outcome", "score", "artifact", "reason"))


def event(kind: str, attempt: int = 0, **columns: Any) -> dict[str, Any]:
    return NOTHING | {"execution_id": "e", "execution_attempt": attempt, "event": kind} | columns


def facts(*events: dict[str, Any], scores: Any = None, attempts: int = 1) -> Facts:
    """Of the last attempt."""
    keys = [("e", attempt) for attempt in range(attempts)]
    return facts_of(events, keys, scores or {})["e", attempts - 1]


def test_the_last_word_counts_and_silence_changes_nothing() -> None:
    said = facts(
        event("started", task="t", group="g", evaluation=True),
        event("updated", task="t2", evaluation=False),
        event("updated"),
        event("scored", score=1.0, artifact="a"),
        event("scored", score=2.0, reason="again"),
    )
    assert said == Facts(task="t2", group="g", score=2.0, artifact="a", reason="again")


def test_an_end_without_an_outcome_has_the_one_it_implies() -> None:
    assert facts(event("ended")).outcome == "completed"
    assert facts(event("timed_out")).outcome == "timed_out"
    assert facts(event("ended", outcome="failed")).outcome == "failed"
    assert facts(event("started")).outcome is None


def test_a_score_may_come_with_the_end() -> None:
    assert facts(event("ended", score=0.5)).score == 0.5


def test_a_scorer_that_failed_and_then_succeeded_did_not_fail() -> None:
    failed = (event("timed_out"), event("scored", outcome="scorer_failed"))
    assert facts(*failed).outcome == "scorer_failed"
    said = facts(*failed, event("scored", score=1.0))
    assert (said.outcome, said.score) == ("timed_out", 1.0)


def test_a_scorer_that_finds_nothing_takes_an_earlier_score_back() -> None:
    said = facts(event("ended"), event("scored", score=1.0), event("scored", outcome="no_artifact"))
    assert (said.outcome, said.score) == ("no_artifact", None)


def test_what_belongs_to_the_name_holds_for_later_attempts_and_not_for_earlier_ones() -> None:
    events = (event("started", task="t", evaluation=True), event("ended", outcome="failed", score=1.0))
    assert facts(*events, attempts=2) == Facts(task="t", evaluation=True)
    later = (*events, event("updated", attempt=1, group="g"))
    assert facts_of(later, [("e", 0), ("e", 1)], {})["e", 0].group is None


def test_given_scores_outweigh_events_for_the_attempt_they_name_or_the_last() -> None:
    events = (event("ended"), event("scored", score=1.0))
    assert facts(*events, scores={("e", None): Scored("e", score=3.0, task="t")}) == Facts(
        task="t", ended="completed", score=3.0
    )
    assert facts(*events, scores={("e", 0): Scored("e", 0, group="g")}).score == 1.0
    only_first = {("e", 0): Scored("e", 0, score=3.0)}
    assert facts(*events, scores=only_first, attempts=2).score is None
