"""From what a client sends to the ids of a prompt, and what the reply to it will look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gyre.elastic.engine.models.loaded import LoadedModel
from gyre.elastic.engine.server.bodies import ChatBody, TokenizeBody
from gyre.elastic.engine.server.errors import FieldError, too_long
from gyre.elastic.engine.text.conversation import Conversation, read_conversation
from gyre.elastic.engine.text.memory import CompletionMemory
from gyre.elastic.engine.text.reply import ReplyForm, reply_form
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.proxy.errors import RequestError

_PLAIN = ReplyForm()
_TAIL = 16
"""Ids at the end of a prompt that may open `<think>`."""
_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    ids: list[int]
    spliced_tokens: int = 0
    conversation: Conversation | None = None
    """Of a chat request whose completion may be remembered."""
    form: ReplyForm = _PLAIN


class Prompts:
    """Of one model. Any thread."""

    def __init__(self, model: LoadedModel, context: int, *, splice: bool) -> None:
        self.context = context
        self._tokenizer = model.tokenizer
        self._vocab_size = model.vocab_size
        self._source = model.chat_template
        self._template = model.chat_template and ChatTemplate(
            model.tokenizer, model.chat_template, stop_ids=model.stop_ids, max_tokens=context
        )
        self._longest = max(map(len, model.tokenizer.get_vocab()))
        self._memory = CompletionMemory(_MEMORY_BYTES) if splice else None

    def of_chat(self, body: ChatBody) -> Prompt:
        """RequestError 400 for messages that cannot be rendered, or without a template."""
        if body.prompt_token_ids is not None:
            return self._of_ids(body, body.prompt_token_ids)
        if body.messages is None:
            raise FieldError("messages", "it is missing")
        conversation, rendered = self._rendered(body, require_tools=body.tool_choice != "none")
        ids, spliced = self._ids(conversation, rendered, splice=body.output_token_ids is None)
        return Prompt(
            ids=ids,
            spliced_tokens=spliced,
            conversation=conversation if _is_whole(body) else None,
            form=self._form(body, rendered),
        )

    def of_text(self, text: str, *, special: bool = True) -> list[int]:
        """A completion's prompt. `special`: with the ids that the tokenizer puts around every text."""
        if len(text) > self._longest * self.context:
            raise too_long(self.context, len(text) // self._longest)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special)
        return ids

    def of_messages(self, body: TokenizeBody) -> list[int]:
        """The prompt that a chat request with these fields would have now."""
        conversation, rendered = self._rendered(body, require_tools=False)
        return self._ids(conversation, rendered, splice=True)[0]

    def text_of_messages(self, body: TokenizeBody) -> str:
        """The same as the template writes it."""
        if body.messages is None:
            raise FieldError("messages", "it is missing")
        return self._rendered(body, require_tools=False)[1]

    def text_of_ids(self, ids: list[int]) -> str:
        """Special ids are shown."""
        self.require_known("tokens", ids)
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def require_known(self, field: str, ids: Sequence[int]) -> None:
        """FieldError for an id that the model has no row for."""
        if ids and max(ids) >= self._vocab_size:
            wrong = next(one for one in ids if one >= self._vocab_size)
            raise FieldError(field, f"{wrong} is no id of this model ({self._vocab_size} ids)")

    def remember(self, prompt: Prompt, output_ids: list[int], message: Mapping[str, Any]) -> None:
        """So that the next prompt of this conversation keeps these ids."""
        if self._memory and prompt.conversation:
            self._memory.remember(prompt.conversation, prompt.ids, output_ids, message)

    def _of_ids(self, body: ChatBody, ids: list[int]) -> Prompt:
        self.require_known("prompt_token_ids", ids)
        tail = self._tokenizer.decode(ids[-_TAIL:])
        return Prompt(ids=ids, conversation=self._told_by(ids, body), form=self._form(body, str(tail)))

    def _told_by(self, ids: list[int], body: ChatBody) -> Conversation | None:
        """The messages beside given ids, if these say the same: other prompts may begin with them later."""
        if not (body.messages and self._template and _is_whole(body)):
            return None
        conversation, rendered = self._rendered(body, require_tools=False)
        same = self.text_of_ids(ids) == rendered or ids == self._ids(conversation, rendered, splice=True)[0]
        return conversation if same else None

    def _form(self, body: ChatBody, rendered: str) -> ReplyForm:
        return reply_form(
            self._source or "",
            rendered,
            tools=bool(body.tools) and body.tool_choice != "none",
            parallel_tool_calls=body.parallel_tool_calls is not False,
        )

    def _conversation(self, body: ChatBody | TokenizeBody) -> Conversation:
        kwargs = body.chat_template_kwargs or {}
        if body.reasoning_effort is not None:
            implied = {"reasoning_effort": body.reasoning_effort}
            kwargs = implied | {"enable_thinking": body.reasoning_effort != "none"} | kwargs
        return read_conversation(body.messages, body.tools, kwargs)

    def _rendered(self, body: ChatBody | TokenizeBody, *, require_tools: bool) -> tuple[Conversation, str]:
        if not self._template:
            hint = "send `prompt` to /v1/completions, or start the engine with `--chat-template FILE`"
            raise RequestError("this model has no chat template", 400, "no_chat_template", hint)
        continues = body.continue_final_message is True
        generates = body.add_generation_prompt
        if continues and generates:
            raise FieldError("continue_final_message", "it cannot go with `add_generation_prompt`")
        conversation = self._conversation(body)
        rendered = self._template.render(
            conversation,
            add_generation_prompt=not continues if generates is None else generates,
            continue_final_message=continues,
            require_tools=require_tools,
        )
        return conversation, rendered

    def _ids(self, conversation: Conversation, rendered: str, *, splice: bool) -> tuple[list[int], int]:
        assert self._template
        if self._memory and splice:
            spliced = self._memory.splice(conversation, rendered, self._template)
            return spliced.ids, spliced.spliced_tokens
        return self._template.encode(rendered), 0


def _is_whole(body: ChatBody) -> bool:
    """Whether the reply is one message: not the rest of another, nor whatever follows the last."""
    return body.continue_final_message is not True and body.add_generation_prompt is not False
