"""The chat template of a model: a conversation to the prompt's text, and that text to ids."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from transformers import PreTrainedTokenizerFast

from gyre.elastic.engine.text.conversation import Conversation


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
        raise NotImplementedError

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
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Ids of a rendered text: nothing is added, markers of special tokens become their ids.

        RequestError 400 `context_length_exceeded` for a text that cannot fit whatever its ids are.
        """
        raise NotImplementedError
