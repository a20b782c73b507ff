"""Whether an engine computes with the weights it claims: a few log-probabilities against given ones.

A gross check: it tells other weights, a torn file or another tokenizer, not rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gyre.elastic.engines.connection import Connection
from gyre.elastic.engines.face import Engine
from gyre.proxy.errors import EngineError

MOST = 1.0
"""Nats, in the mean."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What weights make of a prompt."""

    prompt: Sequence[int]
    logprobs: Sequence[float]
    """Of `prompt[1:]`, each after what stands before it."""


def check_logprobs(
    engine: Engine,
    model: str,
    prompt: Sequence[int],
    expected: Sequence[float],
    *,
    most: float = MOST,
    timeout_s: float = 30.0,
) -> float:
    """How far off it is in the mean. `expected` are as in `Expected`.

    Raises:
        EngineError: too far, or it does not tell; it may be busy with others for so long.
    """
    connection = Connection(engine.name, engine.url, key=engine.key)
    ask = _ask_sglang if engine.profile == "sglang" else _ask_openai
    told = ask(connection, model, prompt, timeout_s)
    if len(told) != len(expected):
        raise EngineError(
            f"engine `{engine.name}` told {len(told)} log-probabilities of {len(expected)}",
            "its model's context may be too short",
        )
    off = fmean(abs(a - b) for a, b in zip(told, expected, strict=True))
    if not off <= most:
        raise EngineError(
            f"engine `{engine.name}` serves other weights than it claims: log-probabilities are off by "
            f"{off:.2f} nats in the mean",
            "does it read the run's folder, and is the model's chat template and type of numbers its own?",
        )
    return off


def _ask_openai(connection: Connection, model: str, prompt: Sequence[int], timeout_s: float) -> list[float]:
    """vLLM's form, which our own engine has too: `{id: {"logprob"}}` for each token but the first."""
    body = {"model": model, "prompt": list(prompt), "max_tokens": 1, "prompt_logprobs": 0}
    answer = connection.ask("POST", "/v1/completions", body, timeout_s=timeout_s)
    entries: list[Any] = (answer.get("choices") or [{}])[0].get("prompt_logprobs") or []
    pairs = zip(prompt[1:], entries[1:], strict=False)
    return [float(entry[str(token)]["logprob"]) for token, entry in pairs]


def _ask_sglang(connection: Connection, model: str, prompt: Sequence[int], timeout_s: float) -> list[float]:
    """`[logprob, id, text]` for each token, null for the first."""
    body = {
        "input_ids": list(prompt),
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    answer = connection.ask("POST", "/generate", body, timeout_s=timeout_s)
    entries: list[Any] = (answer.get("meta_info") or {}).get("input_token_logprobs") or []
    return [float(entry[0]) for entry in entries[1:]]
