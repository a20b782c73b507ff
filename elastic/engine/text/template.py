"""The chat template of a model: a conversation to the prompt's text, and that text to ids."""

from __future__ import annotations

import inspect
import re
from collections.abc import Set as AbstractSet
from dataclasses import replace

import jinja2
from transformers import PreTrainedTokenizerFast

from gyre.elastic.engine.text.conversation import Conversation
from gyre.proxy.errors import RequestError

_TEMPLATE_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What Jinja's own code and the expressions of a template raise about messages they do not expect."""

_RESERVED = frozenset(inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters) | {
    "messages"
}
"""Names that `chat_template_kwargs` would redirect the rendering with."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class ChatTemplate:
    """Renders with transformers' Jinja sandbox, so that a prompt is what `apply_chat_template` gives."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        template: str,
        *,
        stop_ids: AbstractSet[int] = frozenset(),
        max_tokens: int | None = None,
    ) -> None:
        """`stop_ids`: the model's end tokens. `max_tokens`: the context; longer texts are not even encoded.

        RequestError 400 on the first rendering when the template cannot be parsed.
        """
        self.text = template
        self.end_texts = {id_: _token_text(tokenizer, id_) for id_ in stop_ids}
        """What ends a turn in rendered text, by the id that ends an output."""
        self._tokenizer = tokenizer
        self._max_chars = max_tokens and max_tokens * max(map(len, tokenizer.get_vocab()))
        self._shows_tools = False

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        require_tools: bool = True,
    ) -> str:
        """The prompt's text.

        RequestError 400 with the template's own message when it refuses the messages, and when it does not
        show the tools given (unless `require_tools` is off, for `tool_choice: none`).
        """
        if taken := sorted(_RESERVED & set(conversation.kwargs)):
            raise RequestError(f"chat_template_kwargs must not set {', '.join(taken)}")
        text = self._apply(conversation, add_generation_prompt, continue_final_message)
        if conversation.tools and require_tools and not self._shows_tools:
            bare = replace(conversation, tools=())
            self._shows_tools = text != self._apply(bare, add_generation_prompt, continue_final_message)
            self._refuse_hidden_tools()
        return text

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text: nothing is added, markers of special tokens become their ids.

        RequestError 400 `context_length_exceeded` for a text that cannot fit whatever its ids are.
        """
        if self._max_chars is not None and len(text) > self._max_chars:
            raise RequestError(
                f"the prompt has {len(text)} characters, more than any {self._max_chars} that fit",
                code="context_length_exceeded",
            )
        if _SURROGATE.search(text):
            raise RequestError("the prompt has half of a surrogate pair, which is no text")
        # A batch of one: the same ids, and other threads run meanwhile, which `encode` does not allow.
        [encoding] = self._tokenizer.backend_tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding.ids

    def _apply(self, conversation: Conversation, add_generation_prompt: bool, continued: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                list(conversation.messages),
                tools=list(conversation.tools) or None,
                chat_template=self.text,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continued,
                tokenize=False,
                **conversation.kwargs,
            )
        except _TEMPLATE_FAULTS as error:
            raise RequestError(f"the chat template refuses the messages: {error}") from error
        assert isinstance(text, str)
        return text

    def _refuse_hidden_tools(self) -> None:
        if not self._shows_tools:
            raise RequestError(
                "this model's chat template does not show tools to the model",
                hint="start the engine with --chat-template FILE, a template that renders tools",
            )


def _token_text(tokenizer: PreTrainedTokenizerFast, id_: int) -> str:
    return tokenizer.backend_tokenizer.decode([id_], skip_special_tokens=False)
