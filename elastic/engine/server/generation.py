"""From a request's bytes to choices that the engine can sample: everything that can be refused is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.request import Finish, FinishReason
from gyre.elastic.engine.server.ask import Ask, most_tokens, read_ask, request_of
from gyre.elastic.engine.server.bodies import MOST_CHOICES, ChatBody, CompletionBody, decode
from gyre.elastic.engine.server.calls import Call, Choice
from gyre.elastic.engine.server.errors import FieldError
from gyre.elastic.engine.server.frame import Frame
from gyre.elastic.engine.server.output import Output
from gyre.elastic.engine.server.prompts import Prompt, Prompts
from gyre.elastic.engine.server.spelling import Spelling
from gyre.elastic.engine.text.detokenizer import Detokenizer, hidden_ids
from gyre.elastic.engine.text.reply import MARKERS, ReplyParser
from gyre.elastic.engine.text.stops import StopStrings

Script = Callable[[dict[str, Any]], str | None]
"""For tests: the text that the engine shall answer to a chat request, or None to let it sample."""


class Generations:
    """Reads requests for one model. Any thread."""

    def __init__(self, model: LoadedModel, prompts: Prompts, script: Script | None = None) -> None:
        self._model = model
        self._prompts = prompts
        self._script = script
        self._spelling = Spelling(model.tokenizer)
        self._hidden = hidden_ids(model.tokenizer)
        self._hidden_in_replies = hidden_ids(model.tokenizer, keep=MARKERS)

    def chat(self, raw: bytes) -> tuple[Call, Frame]:
        """RequestError for whatever the engine's core would not even be asked."""
        body = decode(raw, ChatBody)
        _require_free_choice(body.tool_choice)
        if body.top_logprobs and not body.logprobs:
            raise FieldError("top_logprobs", "it needs `logprobs`")
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        ask = read_ask(body, self._model, logprobs=alternatives, prefix="chatcmpl")
        prompt = self._prompts.of_chat(body)
        forced = self._forced(raw) if self._script else []
        return self._call(ask, body, [prompt], forced)

    def completion(self, raw: bytes) -> tuple[Call, Frame]:
        """The same for a text, ids, or a list of either."""
        body = decode(raw, CompletionBody)
        ask = read_ask(body, self._model, logprobs=body.logprobs, prefix="cmpl")
        return self._call(ask, body, [Prompt(ids=ids) for ids in self._prompts_of(body)], [])

    def _prompts_of(self, body: CompletionBody) -> list[list[int]]:
        given: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        kinds = {type(one) for one in given}
        if kinds == {int}:
            given, kinds = [given], {list}
        if len(kinds) != 1:
            raise FieldError("prompt", "give a text, a list of ids, or a list of one or the other")
        if len(given) * (body.n or 1) > MOST_CHOICES:
            raise FieldError("prompt", f"at most {MOST_CHOICES} answers at a time, `n` of each prompt")
        if len(given) > 1 and (body.output_token_ids or body.kv_id):
            raise FieldError("prompt", "one answer is continued at a time")
        for ids in given if kinds == {list} else ():
            self._prompts.require_known("prompt", ids)
        return given if kinds == {list} else [self._prompts.of_text(text) for text in given]

    def _call(
        self, ask: Ask, body: ChatBody | CompletionBody, prompts: Sequence[Prompt], forced: Sequence[int]
    ) -> tuple[Call, Frame]:
        self._prompts.require_known("output_token_ids", [token.id for token in ask.earlier])
        if not all(prompt.ids for prompt in prompts):
            raise FieldError(_prompt_field(body), "it is empty")
        limits = [most_tokens(body, self._prompts.context, len(prompt.ids)) for prompt in prompts]
        chat = isinstance(body, ChatBody)
        count = len(prompts) * ask.n
        groups = []
        for first, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            group = []
            for index in range(first * ask.n, (first + 1) * ask.n):
                output = self._output(ask, prompt, chat)
                complete = _primed(output, ask, limit)
                request = request_of(ask, prompt.ids, index, count, max_tokens=limit, forced=forced)
                group.append(Choice(output, None if complete else request))
            groups.append(group)
        frame = Frame(ask=ask, prompts=prompts, spelling=self._spelling, created=int(time.time()))
        return Call(groups, ask.stream), frame

    def _output(self, ask: Ask, prompt: Prompt, chat: bool) -> Output:
        hidden = self._hidden_in_replies if chat else self._hidden
        return Output(
            detokenizer=Detokenizer(
                self._model.tokenizer, prompt.ids, hidden=frozenset() if ask.show_special else hidden
            ),
            stops=StopStrings(ask.stops, include=ask.include_stop),
            parser=ReplyParser(prompt.form),
            stop_ids=ask.stop_ids,
        )

    def _forced(self, raw: bytes) -> list[int]:
        text = self._script and self._script(msgspec.json.decode(raw))
        if text is None:
            return []
        tokenizer = self._model.tokenizer
        end = tokenizer.eos_token_id if tokenizer.eos_token_id in self._model.stop_ids else None
        return [*tokenizer.encode(text, add_special_tokens=False), end or min(self._model.stop_ids)]


def _prompt_field(body: ChatBody | CompletionBody) -> str:
    if isinstance(body, CompletionBody):
        return "prompt"
    return "messages" if body.prompt_token_ids is None else "prompt_token_ids"


def _require_free_choice(choice: str | dict[str, Any] | None) -> None:
    if choice not in (None, "auto", "none"):
        what = "`auto` and `none` are possible: this engine does not constrain what is sampled"
        raise FieldError("tool_choice", what)


def _primed(output: Output, ask: Ask, limit: int) -> bool:
    """Whether the tokens that were sampled earlier are the whole answer already."""
    try:
        ended = output.prime(ask.earlier)
    except ValueError as error:
        raise FieldError("output_token_ids", str(error)) from error
    if len(ask.earlier) > limit:
        raise FieldError("output_token_ids", f"{len(ask.earlier)} ids are more than the limit of {limit}")
    if not ended and len(ask.earlier) < limit:
        return False
    last = ask.earlier[-1].id
    reason = FinishReason.STOP if ended else FinishReason.LENGTH
    output.finished(Finish(reason=reason, stop_id=last if last in ask.stop_ids else None))
    return True
