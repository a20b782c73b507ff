"""Request bodies: which fields the engine knows, of which type, within which bounds.

Unknown fields are ignored, as vLLM does; known ones that cannot be honoured are refused by name.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from gyre.elastic.engine.server.errors import FieldError
from gyre.proxy.errors import RequestError

Json = dict[str, Any]
MOST_CHOICES = 64
MOST_ALTERNATIVES = 20
MOST_STOPS = 64
MOST_STOP_CHARACTERS = 4096
"""Of all stop strings together: each token's text is searched for all of them."""

Id = Annotated[int, Meta(ge=0, lt=1 << 31)]
Int64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=1, lt=1 << 31)]
Share = Annotated[float, Meta(gt=0, le=1)]
Alternatives = Annotated[int, Meta(ge=0, le=MOST_ALTERNATIVES)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class VersionSpan(msgspec.Struct):
    version: str
    start: Annotated[int, Meta(ge=0, lt=1 << 31)]
    end: Annotated[int, Meta(ge=0, lt=1 << 31)]


class Refused(msgspec.Struct, kw_only=True):
    """Known to other engines and not to this one: only a value that changes nothing is taken."""

    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    logit_bias: Any = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    min_tokens: Any = None
    bad_words: Any = None
    allowed_token_ids: Any = None
    use_beam_search: Any = None
    best_of: Any = None
    truncate_prompt_tokens: Any = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "min_tokens": (0,),
    "bad_words": ([],),
    "use_beam_search": (False,),
    "best_of": (1,),
    "functions": ([],),
    "documents": ([],),
    "function_call": ("none", "auto"),
    "echo": (False,),
    "suffix": ("",),
}


_REFUSED = {*Refused.__struct_fields__, *_NEUTRAL, "chat_template"}


class Generation(Refused, kw_only=True):
    """What chat and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    request_id: Name | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool | None = None
    stop_token_ids: Annotated[list[Id], Meta(max_length=1024)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: Alternatives | None = None
    return_token_ids: bool | None = None
    kv_id: Name | None = None
    output_token_ids: list[Id] | None = None
    output_logprobs: list[float | None] | None = None
    output_sampling_logprobs: list[float | None] | None = None
    output_weight_versions: list[VersionSpan] | None = None


class ChatBody(Generation, kw_only=True):
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Json | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    chat_template: Any = None
    documents: Any = None
    prompt_token_ids: list[Id] | None = None
    """Instead of what the template would make of the messages."""
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    functions: Any = None
    function_call: Any = None


class CompletionBody(Generation, kw_only=True):
    prompt: str | list[Id | str | list[Id]]
    logprobs: Alternatives | None = None
    echo: Any = None
    suffix: Any = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """vLLM's form (`prompt`, or what decides a chat request's prompt) or llama.cpp's (`content`).

    Structs inherit from one other only, so the fields of chat stand here again.
    """

    messages: list[Json] | None = None
    tools: list[Json] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Json | None = None
    reasoning_effort: Annotated[str, Meta(max_length=64)] | None = None
    chat_template: Any = None
    documents: Any = None
    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    parse_special: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[Id]
    model: str | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def decode(raw: bytes, kind: type[Body]) -> Body:
    """The body as `kind`.

    Raises:
        RequestError: 400; a FieldError where one field is to blame.
    """
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _misfit(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"the body cannot be read as JSON: {error}") from error
    for name in (name for name in body.__struct_fields__ if name in _REFUSED):
        value, neutral = getattr(body, name), _NEUTRAL.get(name, ())
        if value is not None and value not in neutral:
            raise FieldError(name, f"this engine cannot do it; leave it out{_or(neutral)}")
    return body


def _or(neutral: tuple[Any, ...]) -> str:
    return f" or give `{msgspec.json.encode(neutral[0]).decode()}`" if neutral else ""


def _misfit(message: str) -> RequestError:
    """msgspec says what it expected and, at the end, where."""
    what, _, where = message.partition(" - at `$")
    if field := re.match(r"\.(\w+)", where):
        return FieldError(field[1], what.replace("Expected", "expected", 1) + _place(where))
    if missing := re.search(r"missing required field `(\w+)`", what):
        return FieldError(missing[1], "it is missing")
    return RequestError(f"the body does not fit: {message}")


def _place(where: str) -> str:
    """Where inside the field, when not the field itself."""
    inside = re.sub(r"^\.\w+", "", where.rstrip("`"))
    return f" (at `{inside}`)" if inside else ""
