"""What each kind of engine says, with the field names of the real ones.

vllm        prompt_token_ids and choices[].token_ids on `return_token_ids`, in streams too
gyre        the same, and more: see `tests.engines.own`
sglang      ids and meta_info per choice, refused in streams; there `sglext` near the end
llamacpp    the sampled id in each log-probability entry, `__verbose` on request, no prompt ids
text        a hosted API: no ids at all
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from tests.engines import own, tokens
from tests.engines.routes import CREATED, LIKE_VLLM, SAMPLER, Json, Kind
from tests.engines.script import Answer, Request

UNSTREAMABLE = ("return_token_ids", "return_prompt_token_ids", "return_meta_info")


def dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def error(status: int, message: str) -> bytes:
    kind = {400: "BadRequestError", 404: "NotFoundError", 429: "rate_limit_error"}.get(status, "server_error")
    return dump({"error": {"message": message, "type": kind, "param": None, "code": status}})


def refusal(kind: Kind, body: Json) -> str:
    """Why the engine answers 400, or nothing. SGLang cannot stream what it puts into a plain choice."""
    asked = [name for name in UNSTREAMABLE if body.get(name)]
    if kind == "sglang" and body.get("stream") and "messages" in body and asked:
        return f"{asked[0]} is not supported with stream=true"
    return ""


def _chop(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def pieces(answer: Answer, reasoning_field: str) -> Iterator[tuple[str, Json]]:
    """(sampled text, delta) pairs; the texts add up to `answer.sampled`.

    A piece of pure markup has an empty delta: no event shows it, its ids ride with the next one.
    """
    if answer.reasoning:
        yield "<think>", {}
        yield from ((part, {reasoning_field: part}) for part in _chop(answer.reasoning, answer.piece))
        yield "</think>", {}
    yield from ((part, {"content": part}) for part in _chop(answer.text, answer.piece))
    for index, call in enumerate(answer.tool_calls):
        head = {"index": index, "id": call.id or f"call_{index}", "type": "function"}
        function = {"name": call.name, "arguments": ""}
        opening = f'<tool_call>{{"name": "{call.name}", "arguments": '
        yield opening, {"tool_calls": [head | {"function": function}]}
        for part in _chop(call.arguments, answer.piece):
            yield part, {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
        yield "}</tool_call>", {}


class Shape:
    """One generation call of one engine: its plain answer, or the events of its stream."""

    def __init__(self, kind: Kind, model: str, number: int, request: Request, answer: Answer) -> None:
        self.kind, self.request, self.body = kind, request, request.json
        self.chat = request.route.endswith("/chat/completions")
        count = int(self.body.get("n") or 1)
        self.answer = answer
        self.told: set[str] = set()
        self.asks_ids = bool(self.body.get("return_token_ids"))
        self.choices = [answer, *answer.others, *[answer] * count][:count]
        self.envelope: Json = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{number}",
            "object": "chat.completion" if self.chat else "text_completion",
            "created": CREATED,
            "model": self.body.get("model") or model,
        }
        self.reasoning_field = "reasoning" if kind in LIKE_VLLM else "reasoning_content"

    def plain(self) -> bytes:
        choices = [self._plain_choice(i, answer) for i, answer in enumerate(self.choices)]
        whole = self.envelope | {"choices": choices} | self._usage()
        if self.kind in LIKE_VLLM and self.chat and self.asks_ids:
            whole["prompt_token_ids"] = self.request.prompt_ids
        if self.kind == "gyre" and self.asks_ids:
            versions = [version for version, _, _ in own.spans_of(self.answer)]
            whole["metadata"] = own.metadata_of(self.body, self.answer, versions)
        if self.kind == "sglang":
            whole["metadata"] = self._versions()
        if self.kind == "llamacpp":
            whole |= self._verbose(streamed=False)
        return dump({**whole, **self.answer.extra})

    def events(self) -> Iterator[bytes]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        envelope = {**self.envelope, "object": kind, **self.answer.extra}
        streams = [list(self._choice_events(i, answer)) for i, answer in enumerate(self.choices)]
        rows = [event for row in zip_longest(*streams) for event in row if event is not None]
        for number, choice in enumerate(rows):
            event = envelope | {"choices": [choice]}
            if self.kind in LIKE_VLLM and self.chat and number == 0 and self.asks_ids:
                event["prompt_token_ids"] = self.request.prompt_ids
            if self.kind == "gyre" and self.asks_ids:
                event |= self._news(choice, number == 0)
            if self.kind == "llamacpp" and number == len(rows) - 1:
                event |= self._verbose(streamed=True)
            yield _data(event)
        yield from (_data(envelope | tail) for tail in self._tail_events())
        if self.answer.done:
            yield b"data: [DONE]\n\n"

    def _news(self, choice: Json, first: bool) -> Json:
        """gyre: all that is told of the call at its begin; later, versions that were not told yet."""
        spans = choice.get("weight_versions")
        new = [span["version"] for span in spans] if isinstance(spans, list) else []
        new = [version for version in new if version not in self.told]
        if first and not new:
            new = [own.spans_of(self.answer)[0][0]]
        self.told.update(new)
        if first:
            return {"metadata": own.metadata_of(self.body, self.answer, new)}
        digests = {version: own.digest_of(self.answer, version) for version in new}
        return {"metadata": {"weight_digests": digests}} if new else {}

    def _tail_events(self) -> Iterator[Json]:
        """Events that belong to no choice: SGLang's ids, then the usage that was asked for."""
        extension: Json = {}
        if self.kind == "sglang" and self.body.get("return_input_ids_in_sglext"):
            extension["input_ids"] = self.request.prompt_ids
        if self.kind == "sglang" and self.body.get("return_output_ids_in_sglext"):
            extension["output_ids"] = [_kept(a, 0, a.output_ids) for a in self.choices]
        if extension:
            yield {"choices": [], "sglext": extension}
        if (self.body.get("stream_options") or {}).get("include_usage"):
            yield {"choices": []} | self._usage()

    def _plain_choice(self, index: int, answer: Answer) -> Json:
        choice: Json = {"index": index} | (self._message(answer) if self.chat else {"text": answer.text})
        choice |= self._token_fields(answer, 0, answer.output_ids)
        choice["finish_reason"] = answer.finish
        if self.kind == "sglang" and self.chat:
            choice |= self._sglang_fields(answer)
        elif self.kind in (*LIKE_VLLM, "sglang") and not self.chat and self.asks_ids:
            choice["prompt_token_ids"] = self.request.prompt_ids
        if self.kind == "gyre" and self.asks_ids:
            choice |= own.last_fields(self.request, answer, index)
        return {**choice, **answer.choice_extra}

    def _message(self, answer: Answer) -> Json:
        message: Json = {"role": "assistant", "content": answer.text or None}
        if answer.reasoning:
            message[self.reasoning_field] = answer.reasoning
        if answer.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for index, call in enumerate(answer.tool_calls)
            ]
        return {"message": message}

    def _choice_events(self, index: int, answer: Answer) -> Iterator[Json]:
        if self.chat:
            opening = {"role": "assistant", "content": ""}
            yield {"index": index, "delta": opening} | self._no_logprobs() | {"finish_reason": None}
        position, waiting, first = len(own.given(self.body)), "", not self.chat
        for sampled, delta in self._pieces(answer):
            waiting += sampled
            if not delta:
                continue
            ids, waiting = tokens.tokenize(waiting), ""
            shown: Json = {"delta": delta} if self.chat else {"text": delta.get("content", "")}
            event: Json = {"index": index} | shown | self._token_fields(answer, position, ids)
            if first and self.kind in (*LIKE_VLLM, "sglang") and self.asks_ids:
                event["prompt_token_ids"] = self.request.prompt_ids
            yield event | {"finish_reason": None}
            position, first = position + len(ids), False
        shown = {"delta": {}} if self.chat else {"text": ""}
        last: Json = (
            {"index": index} | shown | self._token_fields(answer, position, answer.output_ids[position:])
        )
        if self.kind == "gyre" and self.asks_ids:
            last |= own.last_fields(self.request, answer, index)
        yield {**last, "finish_reason": answer.finish, **answer.choice_extra}

    def _pieces(self, answer: Answer) -> Iterator[tuple[str, Json]]:
        if not own.given(self.body):
            return pieces(answer, self.reasoning_field)
        return ((part, {"content": part}) for part in _chop(own.rest_of(answer, self.body), answer.piece))

    def _token_fields(self, answer: Answer, start: int, ids: list[int]) -> Json:
        """Ids and log-probabilities of `ids`, whose first is output position `start`."""
        logprobs = self._logprobs(answer, start, ids)
        fields: Json = self._no_logprobs() if logprobs is None else {"logprobs": logprobs}
        if self.asks_ids and (self.kind in LIKE_VLLM or (self.kind == "sglang" and not self.chat)):
            fields["token_ids"] = _kept(answer, start, ids)
        if self.asks_ids and self.kind == "gyre":
            fields["weight_versions"] = own.clipped(own.spans_of(answer), start, start + len(ids))
        return fields

    def _no_logprobs(self) -> Json:
        return {} if self.kind == "llamacpp" else {"logprobs": None}

    def _logprobs(self, answer: Answer, start: int, ids: list[int]) -> Json | None:
        lost = {*answer.drop_logprobs, *(answer.drop_ids if self.kind == "llamacpp" else ())}
        entries = [self._entry(at, token) for at, token in enumerate(ids, start) if at not in lost]
        if self.chat or self.kind == "llamacpp":
            return {"content": entries} if self.body.get("logprobs") else None
        if self.body.get("logprobs") is None:
            return None
        arrays = {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{entry["token"]: entry["logprob"]} for entry in entries],
            "text_offset": list(range(start, start + len(entries))),
        }
        if self.kind == "gyre":
            arrays["sampling_logprobs"] = [entry["sampling_logprob"] for entry in entries]
        return arrays

    def _entry(self, position: int, token: int) -> Json:
        raw = tokens.token_bytes(token)
        text = raw.decode(errors="replace")
        if self.body.get("return_tokens_as_token_ids"):
            text = f"token_id:{token}"
        entry: Json = {"token": text, "logprob": tokens.logprob_at(position), "bytes": list(raw)}
        entry["top_logprobs"] = [dict(entry)] if self.body.get("top_logprobs") else []
        if self.kind == "gyre":
            entry["sampling_logprob"] = own.sampling_logprob_at(self.body, position)
        return entry | {"id": token} if self.kind == "llamacpp" else entry

    def _sglang_fields(self, answer: Answer) -> Json:
        fields: Json = {}
        ids = _kept(answer, 0, answer.output_ids)
        if self.body.get("return_prompt_token_ids"):
            fields["prompt_token_ids"] = self.request.prompt_ids
        if self.asks_ids:
            fields["response_token_ids"] = ids
        if self.body.get("return_meta_info"):
            scored = [[tokens.logprob_at(at), t, None] for at, t in enumerate(answer.output_ids)]
            kept = [row for at, row in enumerate(scored) if at not in answer.drop_logprobs]
            fields["meta_info"] = {"id": self.envelope["id"], "completion_tokens": len(answer.output_ids)}
            if self.body.get("logprobs"):
                fields["meta_info"]["output_token_logprobs"] = kept
        return fields

    def _versions(self) -> Json:
        spans = [{"version": v, "start": start, "end": end} for v, start, end in self.answer.versions]
        newest = spans[-1]["version"] if spans else "default"
        return {"weight_version": newest} | ({"weight_versions": spans} if spans else {})

    def _verbose(self, *, streamed: bool) -> Json:
        if not self.body.get("verbose"):
            return {}
        settings = {name: self.body.get(name, default) for name, default in SAMPLER.items()}
        ids = [] if streamed else self.choices[0].output_ids
        shown = {"prompt": self.request.prompt_text, "tokens": ids, "generation_settings": settings}
        return {"__verbose": shown}

    def _usage(self) -> Json:
        if self.answer.usage is not None:
            return {"usage": dict(self.answer.usage)} if self.answer.usage else {}
        prompt = len(self.request.prompt_ids)
        completion = sum(len(answer.output_ids) for answer in self.choices)
        total = prompt + completion
        counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
        return {"usage": counts}


def _kept(answer: Answer, start: int, ids: list[int]) -> list[int]:
    return [token for at, token in enumerate(ids, start) if at not in answer.drop_ids]


def _data(event: Json) -> bytes:
    return b"data: " + dump(event) + b"\n\n"
