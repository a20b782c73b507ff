"""The chat template that a model is served with, and what ends an answer of it."""

from __future__ import annotations

from pathlib import Path

import jinja2
from transformers import GenerationConfig, PreTrainedTokenizerFast

from gyre.elastic.engine.text.conversation import Conversation
from gyre.elastic.engine.text.template import ChatTemplate
from gyre.proxy.errors import EngineError, RequestError

_ANSWER = "gyre"
_ANOTHER = "`--chat-template FILE` takes its place"
_TALK = Conversation(
    messages=(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": "b"},
    )
)


def own_template(name: str, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """The chat template of the model `name`; of several the one that is called default.

    EngineError when it cannot be parsed.
    """
    template: object = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    if template is None:
        return None
    what = f"the chat template of `{name}`"
    if not isinstance(template, str):
        raise EngineError(f"{what} is no text", _ANOTHER)
    _require_parsed(what, ChatTemplate(tokenizer, template), _ANOTHER)
    return template


def read_template(file: Path, tokenizer: PreTrainedTokenizerFast) -> str:
    """The Jinja template of `--chat-template`; EngineError when it cannot be read or parsed."""
    try:
        template = file.expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise EngineError(f"cannot read the chat template `{file}`: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise EngineError(f"the chat template `{file}` is no UTF-8") from error
    _require_parsed(f"`{file}`", ChatTemplate(tokenizer, template))
    return template


def _require_parsed(what: str, template: ChatTemplate, hint: str = "") -> None:
    try:
        template.render(_TALK)
    except RequestError as error:
        # Any other fault may be these messages': a template need not like them.
        if isinstance(cause := error.__cause__, jinja2.TemplateSyntaxError):
            message = f"{what} is no Jinja template: line {cause.lineno}: {cause.message}"
            raise EngineError(message, hint) from error


def stop_ids(
    name: str,
    generation: GenerationConfig,
    tokenizer: PreTrainedTokenizerFast,
    template: str | None,
    vocab_size: int,
) -> frozenset[int]:
    """What the files of the model `name` call its end, and what its template puts after an answer.

    EngineError when they name what is no id of the model: it would never end.
    """
    ids = _declared(name, generation.eos_token_id, vocab_size)
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    if template is not None and (end := _end_of_turn(tokenizer, template)) is not None:
        ids.add(end)
    return frozenset(ids)


def _declared(name: str, eos: object, vocab_size: int) -> set[int]:
    given = eos if isinstance(eos, list) else [] if eos is None else [eos]
    ids = {id_ for id_ in given if type(id_) is int and 0 <= id_ < vocab_size}
    if wrong := [id_ for id_ in given if type(id_) is not int or id_ not in ids]:
        raise EngineError(
            f"`{name}` has the eos_token_id {wrong[0]!r}, which is none of its {vocab_size} ids",
            "correct it in generation_config.json, or in config.json where there is no such file",
        )
    return ids


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
