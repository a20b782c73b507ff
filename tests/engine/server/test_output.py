"""One choice between the engine's thread and the event loop."""

from __future__ import annotations

import pytest

from gyre.elastic.engine.request import Finish, FinishReason, Started, Token
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.text.detokenizer import Detokenizer
from gyre.elastic.engine.text.reply import ReplyForm, ReplyParser
from gyre.elastic.engine.text.stops import StopStrings
from tests.engine.text.tokens import byte_level, ids_of

END = 2


class Broken(Detokenizer):
    def add(self, token_id: int) -> str:
        raise RuntimeError("a fault")


def output(*stops: str, kind: type[Detokenizer] = Detokenizer) -> Output:
    return Output(
        detokenizer=kind(byte_level()),
        stops=StopStrings(stops),
        parser=ReplyParser(ReplyForm()),
        stop_ids=frozenset({END}),
    )


def token(token_id: int, version: str = "1") -> Token:
    return Token(token_id, -1.0, -1.0, version)


def told(one: Output) -> str:
    return "".join(piece.text for piece in one.pieces[: one.told[1]])


def feed(one: Output, text: str) -> list[bool]:
    return [one.token(token(id_)) for id_ in ids_of(byte_level(), text)]


def test_a_stop_string_ends_it_with_the_token_that_completes_it() -> None:
    one = output("day")
    ids = ids_of(byte_level(), "A daydream")
    sampled = next(count for count, id_ in enumerate(ids, 1) if one.token(token(id_)))
    assert byte_level().decode(ids[:sampled]) == "A day"
    assert told(one) == "A " and one.matched == "day"


def test_the_end_token_is_kept_and_not_said() -> None:
    one = output()
    feed(one, "Hi")
    one.token(token(END))
    one.finished(Finish(reason=FinishReason.STOP, stop_id=END))
    assert told(one) == one.reply.content == "Hi" and one.tokens[-1].id == END


@pytest.mark.parametrize("reason", list(FinishReason))
def test_what_is_held_back_is_said_where_the_reply_ends_for_good(reason: FinishReason) -> None:
    one = output("a daydream")
    feed(one, "It is a day")
    one.finished(Finish(reason=reason))
    final = reason in (FinishReason.STOP, FinishReason.LENGTH)
    assert told(one) == ("It is a day" if final else "It is ")


def test_a_fault_of_ours_does_not_pass_for_the_end() -> None:
    one = output(kind=Broken)
    one.started(Started(cached_tokens=0, version="1", digest=""))
    with pytest.raises(RuntimeError):
        one.token(token(5))
    one.finished(Finish(reason=FinishReason.STOP))
    assert one.finish and one.finish.reason == FinishReason.ERROR


def test_versions_are_listed_as_they_change() -> None:
    one = output()
    for version in ("1", "1", "2", "2", "1"):
        one.token(token(5, version))
    assert one.versions == ["1", "2", "1"]


def test_ids_and_their_text_are_told_together() -> None:
    one = output()
    seen = []
    one.on_news = lambda: seen.append(one.told)
    feed(one, "Hi you")
    assert [tokens for tokens, _ in seen] == list(range(1, len(seen) + 1))
    assert seen[-1] == (len(one.tokens), len(one.pieces))


def test_nothing_may_follow_the_end_of_what_was_sampled_earlier() -> None:
    with pytest.raises(ValueError, match="end"):
        output().prime([token(5), token(END), token(5)])
    assert output().prime([token(5), token(END)])
    assert not output().prime([token(5)])
