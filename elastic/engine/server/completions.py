"""completions: plain text after a text, or after token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gyre.elastic.engine.request import Finish, Token
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.logprobs import completion_logprobs, prompt_logprobs
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.wire import News

Json = dict[str, Any]


class CompletionWire:
    name = "completions"
    whole_kind = chunk_kind = "text_completion"

    def top(self, frame: Frame, call_outputs: Sequence[Output]) -> Json:
        return {}

    def choice(self, frame: Frame, index: int, output: Output, finish: Finish) -> Json:
        choice = {
            "index": index,
            "text": output.reply.content,
            "logprobs": _logprobs(frame, output.tokens, output.offsets),
            "finish_reason": finish.reason,
            "stop_reason": frame.stop_reason(output, finish),
            **_prompt(frame, index),
            **frame.ids(output.tokens, 0),
            **frame.kv(finish),
            **frame.seed(index),
        }
        if output.start and output.start.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(frame.spelling, output.start.prompt_logprobs)
        return choice

    def chunks(self, frame: Frame, index: int, output: Output, news: News) -> list[Json]:
        text = "".join(piece.text for piece in news.pieces)
        tells_tokens = news.tokens and (frame.ask.return_ids or frame.ask.logprobs is not None)
        if not (text or tells_tokens or news.finish or (news.begins and frame.ask.return_ids)):
            return []
        chunk: Json = {
            "index": index,
            "text": text,
            "logprobs": _logprobs(frame, news.tokens, news.offsets),
            "finish_reason": news.finish and news.finish.reason,
        }
        if news.finish:
            chunk["stop_reason"] = frame.stop_reason(output, news.finish)
        if news.begins:
            chunk |= _prompt(frame, index) | frame.seed(index)
        chunk |= frame.ids(news.tokens, news.at)
        return [chunk | frame.kv(news.finish) if news.finish else chunk]


def _prompt(frame: Frame, index: int) -> Json:
    return {"prompt_token_ids": frame.prompt_of(index).ids} if frame.ask.return_ids else {}


def _logprobs(frame: Frame, tokens: Sequence[Token], offsets: Sequence[int]) -> Json | None:
    if frame.ask.logprobs is None or not tokens:
        return None
    return completion_logprobs(frame.spelling, tokens, offsets)
