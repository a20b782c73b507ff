"""chat/completions: replies as messages, with reasoning and tool calls taken out of the text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gyre.elastic.engine.request import Finish, Token
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.logprobs import chat_logprobs, prompt_logprobs
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.wire import News
from gyre.elastic.engine.text.reply import Piece

Json = dict[str, Any]


class ChatWire:
    name = "chat"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def top(self, frame: Frame, call_outputs: Sequence[Output]) -> Json:
        top: Json = {}
        if frame.ask.return_ids:
            top["prompt_token_ids"] = frame.prompts[0].ids
        start = call_outputs[0].start
        if start and start.prompt_logprobs is not None:
            top["prompt_logprobs"] = prompt_logprobs(frame.spelling, start.prompt_logprobs)
        return top

    def choice(self, frame: Frame, index: int, output: Output, finish: Finish) -> Json:
        return {
            "index": index,
            "message": output.reply.message(),
            "logprobs": _logprobs(frame, output.tokens),
            "finish_reason": output.reply.finish_reason(finish.reason),
            "stop_reason": frame.stop_reason(output, finish),
            **frame.ids(output.tokens, 0),
            **frame.kv(finish),
            **frame.seed(index),
        }

    def chunks(self, frame: Frame, index: int, output: Output, news: News) -> list[Json]:
        chunks = []
        if news.begins:
            role = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            chunks.append({**role, "finish_reason": None, **frame.seed(index)})
        delta = delta_of(news.pieces)
        tells_tokens = news.tokens and (frame.ask.return_ids or frame.ask.logprobs is not None)
        if delta or tells_tokens or news.finish:
            chunks.append(_chunk(frame, index, output, news, delta))
        return chunks


def _chunk(frame: Frame, index: int, output: Output, news: News, delta: Json) -> Json:
    chunk = {"index": index, "delta": delta, "logprobs": _logprobs(frame, news.tokens)}
    if news.finish is None:
        return {**chunk, "finish_reason": None, **frame.ids(news.tokens, news.at)}
    return {
        **chunk,
        "finish_reason": output.reply.finish_reason(news.finish.reason),
        "stop_reason": frame.stop_reason(output, news.finish),
        **frame.ids(news.tokens, news.at),
        **frame.kv(news.finish),
    }


def delta_of(pieces: Iterable[Piece]) -> Json:
    """The deltas of several pieces as one."""
    whole: Json = {}
    for delta in (piece.delta() for piece in pieces):
        for key, value in (delta or {}).items():
            whole[key] = whole[key] + value if key in whole else value
    return whole


def _logprobs(frame: Frame, tokens: Sequence[Token]) -> Json | None:
    if frame.ask.logprobs is None or not tokens:
        return None
    return chat_logprobs(frame.spelling, tokens)
