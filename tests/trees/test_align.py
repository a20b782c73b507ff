"""Does a message list go on from an earlier one? The changes that real harnesses make."""

from __future__ import annotations

from gyre.proxy.canonical import Block, Kind
from gyre.treebuilder.lineage.align import Alignment, Answer, align


def user(text: str) -> Block:
    return Block("user", Kind.TEXT, "", text)


def said(text: str) -> Block:
    return Block("assistant", Kind.TEXT, "", text)


def called(ident: str, arguments: str = '{"a":1}') -> Block:
    return Block("assistant", Kind.CALL, ident, f"run\n{arguments}")


def result(ident: str, text: str = "output " * 20) -> Block:
    return Block("tool", Kind.RESULT, ident, text)


OLD = [user("system"), user("task"), called("c1"), result("c1"), called("c2"), result("c2")]
ANSWER = [called("c3")]


def aligned(new: list[Block], old: list[Block] | None = None, *, cut: bool = False) -> Alignment:
    found = align(old or OLD, ANSWER, new, cut=cut)
    assert found is not None
    return found


def test_a_plain_continuation_is_clean() -> None:
    found = aligned([*OLD, *ANSWER, result("c3")])
    assert found.clean and found.answer is Answer.PRESENT


def test_reasoning_in_the_answer_does_not_matter() -> None:
    reasoned = [Block("assistant", Kind.REASONING, "", "hm"), *ANSWER]
    found = align(OLD, reasoned, [*OLD, *ANSWER, result("c3")])
    assert found is not None and found.answer is Answer.PRESENT


def test_an_answer_left_out_is_absent() -> None:
    assert aligned([*OLD, user("use a tool")]).answer is Answer.ABSENT


def test_the_same_messages_have_no_answer_yet() -> None:
    assert aligned(list(OLD)).answer is Answer.NONE


def test_white_space_around_text_does_not_matter() -> None:
    found = align(OLD, [said("\n\nfine")], [*OLD, said("fine"), user("more")])
    assert found is not None and found.answer is Answer.PRESENT


def test_cleared_results_are_counted() -> None:
    new = [result(b.ident, "cleared") if b.kind is Kind.RESULT else b for b in OLD]
    found = aligned([*new, *ANSWER, result("c3")])
    assert (found.cleared, found.altered, found.answer) == (2, 0, Answer.PRESENT)


def test_a_reminder_put_in_is_counted() -> None:
    found = aligned([OLD[0], user("reminder"), *OLD[1:], *ANSWER, result("c3")])
    assert (found.inserted, found.deleted) == (1, 0)


def test_an_aborted_call_put_in_is_counted() -> None:
    aborted = [called("c9", "{}"), result("c9", "aborted")]
    found = aligned([*OLD[:4], *aborted, *OLD[4:], *ANSWER, result("c3")])
    assert found.inserted == 2 and found.answer is Answer.PRESENT


def test_a_resume_message_that_vanished_is_counted() -> None:
    old = [*OLD, said("partial"), user("go on")]
    found = aligned([*OLD, said("partial"), *ANSWER, result("c3")], old)
    assert found.deleted == 1 and found.answer is Answer.PRESENT


def test_what_an_agent_said_does_not_vanish_unless_it_was_cut() -> None:
    old = [*OLD, said("partial")]
    new = [*OLD, *ANSWER, result("c3")]
    assert align(old, ANSWER, new) is None
    assert aligned(new, old, cut=True).deleted == 1


def test_another_system_prompt_over_the_same_history_is_counted() -> None:
    old = [Block("system", Kind.TEXT, "", "you work"), *OLD[1:]]
    new = [Block("system", Kind.TEXT, "", "you summarise"), *OLD[1:], *ANSWER, user("summarise")]
    assert aligned(new, old).altered == 1
    assert align(old[:2], ANSWER, [new[0], old[1], user("more")]) is None


def test_another_task_is_another_agent() -> None:
    assert align(OLD, ANSWER, [OLD[0], user("other task"), called("c8"), result("c8")]) is None
    assert align(OLD[:2], ANSWER, [OLD[0], user("other task")]) is None


def test_a_history_begun_anew_from_a_summary_does_not_align() -> None:
    assert align(OLD, ANSWER, [OLD[0], user("summary of it all"), called("c2"), result("c2")]) is None
