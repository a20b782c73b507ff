"""The chat template that a model is served with, and what ends an answer of it."""

from __future__ import annotations

from pathlib import Path

import jinja2
from transformers import GenerationConfig, PreTrainedTokenizerFast

from gyre.elastic.engine.text.conversation import Conversation
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.proxy.errors import EngineError, RequestError

_ANSWER = "gyre"
_TALK = Conversation(
    messages=(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": "b"},
    )
)


def own_template(tokenizer: PreTrainedTokenizerFast) -> str | None:
    """The tokenizer's chat template; of several the one that is called default."""
    template = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


def read_template(file: Path, tokenizer: PreTrainedTokenizerFast) -> str:
    """The Jinja template of `--chat-template`; EngineError when it cannot be read or parsed."""
    try:
        template = file.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"cannot read the chat template `{file}`: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EngineError(f"the chat template `{file}` is no UTF-8") from error
    try:
        ChatTemplate(tokenizer, template).render(_TALK)
    except RequestError as error:
        # Any other fault may be these messages': a template need not like them.
        if isinstance(cause := error.__cause__, jinja2.TemplateSyntaxError):
            raise EngineError(
                f"`{file}` is no Jinja template: line {cause.lineno}: {cause.message}"
            ) from error
    return template


def stop_ids(
    generation: GenerationConfig, tokenizer: PreTrainedTokenizerFast, template: str | None
) -> frozenset[int]:
    """What the model's own files call its end, and what its template puts after an answer."""
    declared = generation.eos_token_id
    ids = set(declared) if isinstance(declared, list) else {declared}
    ids.add(tokenizer.eos_token_id)
    if template is not None:
        ids.add(_end_of_turn(tokenizer, template))
    return frozenset(id_ for id_ in ids if id_ is not None)


def _end_of_turn(tokenizer: PreTrainedTokenizerFast, template: str) -> int | None:
    """The special token right after an answer, where there is one."""
    rendering = ChatTemplate(tokenizer, template)
    try:
        text = rendering.render(_TALK)
    except RequestError:
        return None  # chat requests will hear of it
    _, found, after = text.rpartition(_ANSWER)
    ids = rendering.encode(after.lstrip()) if found else []
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    return ids[0] if ids and ids[0] in special else None
