"""The routes of each kind of engine that generate nothing."""

from __future__ import annotations

from typing import Any, Literal

from tests.engines import tokens
from tests.engines.script import Request

Kind = Literal["vllm", "gyre", "sglang", "llamacpp", "text"]
Json = dict[str, Any]

CREATED = 1_700_000_000
LIKE_VLLM = ("vllm", "gyre")
MAX_MODEL_LEN = 1_000_000
OWNERS = {"vllm": "vllm", "gyre": "gyre", "sglang": "sglang", "llamacpp": "llamacpp", "text": "openai"}
SAMPLER = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0}
"""llama.cpp's defaults; a request's own values win."""


def side_answer(kind: Kind, model: str, request: Request) -> Json | None:
    """The answer of a route that generates nothing; None where the engine has no such route."""
    route, body = request.route, request.json if request.method == "POST" else {}
    if route == "/v1/models":
        entry: Json = {"id": model, "object": "model", "created": CREATED, "owned_by": OWNERS[kind]}
        return {"object": "list", "data": [entry | _model_facts(kind)]}
    if route == "/health":
        return {"status": "ok"}
    if kind in LIKE_VLLM and route == "/tokenize":
        ids = request.prompt_ids
        return {"count": len(ids), "max_model_len": MAX_MODEL_LEN, "tokens": ids, "token_strs": None}
    if kind in LIKE_VLLM and route == "/detokenize":
        return {"prompt": tokens.detokenize(body["tokens"])}
    return _llamacpp_answer(route, body) if kind == "llamacpp" else None


def _model_facts(kind: Kind) -> Json:
    if kind == "llamacpp":
        return {"meta": {"n_ctx_train": MAX_MODEL_LEN, "n_vocab": tokens.FIRST_BYTE_ID + 256}}
    return {} if kind == "text" else {"max_model_len": MAX_MODEL_LEN}


def _llamacpp_answer(route: str, body: Json) -> Json | None:
    if route == "/apply-template":
        return {"prompt": tokens.render(body["messages"], body.get("tools"))}
    if route == "/tokenize":
        return {"tokens": tokens.tokenize(body["content"])}
    if route == "/detokenize":
        return {"content": tokens.detokenize(body["tokens"])}
    if route == "/props":
        return {"default_generation_settings": {"n_ctx": MAX_MODEL_LEN, "params": SAMPLER}, "total_slots": 4}
    return None
