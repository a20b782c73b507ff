"""How many tokens a Messages request would have: the very prompt that would be sampled from is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gyre.proxy.calls import Wire
from gyre.proxy.capture.profiles import Engine, read_ask
from gyre.proxy.capture.splice import parse_object, with_fields
from gyre.proxy.prepared import TOKENIZE_TARGET, Prepared, dialect_of, mapped_model, translate
from gyre.proxy.rendering import apply_template_body, tokenize_body
from gyre.proxy.wires.translation import dumped

if TYPE_CHECKING:
    from gyre.proxy.exchange import Exchange
    from gyre.proxy.router import BackendState

_TOKENIZES = (Engine.VLLM, Engine.GYRE, Engine.LLAMACPP)


async def counting(ex: Exchange, backend: BackendState) -> Prepared:
    """A request for the prompt's ids; engines that have no such route count the request themselves.

    Raises:
        RequestError: the request cannot be translated.
    """
    engine = backend.engine
    if engine not in _TOKENIZES or backend.settings.translate == "never":
        return _own(ex.call.body, backend)
    sampled = ex.relay.sampled.of(ex.call.identity.execution_id)
    chat = translate(ex.call, dialect_of(ex.call.call_id, engine, sampled, backend.folds_system)).chat
    model = chat.get("model")
    chat["model"] = backend.settings.models.get(model, model) if isinstance(model, str) else model
    if engine != Engine.LLAMACPP:
        return Prepared([dumped(tokenize_body(chat))], target=TOKENIZE_TARGET)
    text = await ex.relay.upstream.apply_template(backend, dumped(apply_template_body(chat)))
    if text is None:
        return _own(ex.call.body, backend)
    content = {"content": text, "add_special": True, "parse_special": True}
    return Prepared([dumped(content)], target=TOKENIZE_TARGET)


def _own(body: bytes, backend: BackendState) -> Prepared:
    """The request as it is, but for the model's name."""
    top = parse_object(body)
    mapped = mapped_model(read_ask(Wire.COUNT_TOKENS, top), backend.settings)
    return Prepared(with_fields(body, top, mapped) if mapped else [body])


def counted(body: bytes) -> bytes | None:
    """The engine's ids as Messages counts them; None when there are none in it."""
    try:
        said: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    tokens = said.get("tokens") if isinstance(said, dict) else None
    return orjson.dumps({"input_tokens": len(tokens)}) if isinstance(tokens, list) else None
