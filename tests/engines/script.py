"""What a fake engine is told to answer, and what it remembers of a request.

A script is one `Answer` for every call, a list of them (the last one repeats), or a function from
`Request` to `Answer`:

    Answer(text="hello")                                  a plain or streamed answer, as asked for
    Answer(tool_calls=(ToolCall("grep", '{"q":1}'),))     ids, names and arguments in pieces
    Answer(status=429, text="slow down", headers={"retry-after": "1"})
    Answer(cut_after=3)                                   the connection dies after 3 events
    Answer(hang_after=0)                                  nothing ever comes back
    Answer(body=[b"data: {", b"}"])                       these very bytes, a chunk each
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.engines import tokens


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: str
    """JSON text, put into the sampled text unchanged."""
    id: str = ""
    """Default: `call_<index>`."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One scripted answer. The first group says what, the second how it travels."""

    text: str = "ok"
    """The content; the message of the error when `status` is 400 or more."""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    """Default: `stop`, or `tool_calls`. With `length` no end token is sampled."""
    others: tuple[Answer, ...] = ()
    """Choices 1, 2, ... when the request has n > 1 (default: the same as choice 0)."""
    piece: int = 4
    """Characters of text per streamed event."""
    drop_ids: Collection[int] = ()
    """Output positions whose id the engine loses; usage still counts them."""
    drop_logprobs: Collection[int] = ()
    """Output positions without a log-probability entry."""
    versions: Sequence[tuple[str, int, int]] = ()
    """(weight version, start, end) spans of output tokens; sglang and gyre report them."""
    kv_versions: Sequence[tuple[str, int, int]] = ()
    """gyre: the same over prompt and output, of what was computed; default: the first version, all of it."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """gyre: of the weights, by version; default: `digest-of-<version>`."""
    spliced: int = 0
    """gyre: prompt tokens taken from its memory of earlier outputs."""
    usage: Mapping[str, Any] | None = None
    """In place of the true counts; `{}` leaves usage out."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further top-level fields of the answer or of every event."""
    choice_extra: Mapping[str, Any] = field(default_factory=dict)

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Iterable[bytes] | None = None
    """Sent instead of a rendered answer: bytes with a content-length, an iterable chunk by chunk."""
    raw: bytes | None = None
    """Written to the socket instead of any HTTP answer; then the connection is closed."""
    delay: float = 0
    """Seconds before the first byte."""
    gap: float = 0
    """Seconds before each event."""
    hang_after: int | None = None
    """Go silent after so many parts. An event is a part, a plain body has two halves; 0: no byte."""
    cut_after: int | None = None
    """Close the connection after so many parts; 0: before the first byte."""
    cut_bytes: int | None = None
    """Close the connection after so many bytes of the body: half a line, half a character."""
    split: int = 0
    """Send the body in chunks of so many bytes, whatever they cut through."""
    comment: bytes = b""
    """Sent before each event, for example `b": ping\\n\\n"`."""
    done: bool = True
    """Whether a stream ends with `data: [DONE]`."""
    gzip: Literal["", "whole", "truncated"] = ""
    close: bool = False
    """Say `connection: close` and do so."""
    drop_idle: float | None = None
    """Close the kept-alive connection so many seconds after the answer, unannounced."""

    @property
    def sampled(self) -> str:
        """The text the model wrote, markup of reasoning and tool calls included."""
        return tokens.sampled_text(
            self.text, self.reasoning, [(c.name, c.arguments) for c in self.tool_calls]
        )

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")

    @property
    def output_ids(self) -> list[int]:
        """Every id that was sampled, the end token included."""
        return tokens.tokenize(self.sampled) + ([] if self.finish == "length" else [tokens.END])


@dataclass(kw_only=True)
class Request:
    """A request as it arrived, and what became of it."""

    method: str
    path: str
    """With the query string."""
    headers: dict[str, str]
    """Names in lower case; of repeated headers the last."""
    body: bytes
    reused: bool
    """The connection had carried an answer before."""
    at: float = field(default_factory=time.monotonic)
    parts_sent: int = 0
    disconnected_at: float | None = None
    """When the client closed the connection on an unfinished answer."""

    @property
    def json(self) -> dict[str, Any]:
        """The body, parsed; an empty object when there is none."""
        parsed: dict[str, Any] = json.loads(self.body) if self.body else {}
        return parsed

    @property
    def is_json(self) -> bool:
        try:
            return isinstance(self.json, dict)
        except ValueError:
            return False

    @property
    def route(self) -> str:
        return self.path.partition("?")[0]

    @property
    def prompt_text(self) -> str:
        """What this engine's template makes of the request."""
        body = self.json
        if "messages" in body:
            return tokens.render(body["messages"], body.get("tools"))
        prompt = body.get("prompt", "")
        return prompt if isinstance(prompt, str) else tokens.detokenize(prompt)

    @property
    def prompt_ids(self) -> list[int]:
        ids: list[int] | None = self.json.get("prompt_token_ids")
        return tokens.tokenize(self.prompt_text) if ids is None else ids


Script = Answer | Sequence[Answer] | Callable[[Request], Answer]
