"""A tokenizer and a chat template small enough to predict by eye.

One id per control marker, else one id per UTF-8 byte, so that ids of a concatenation are the
concatenated ids and a test can state the exact ids it expects. Log-probabilities depend on the
position alone and are exact in float32.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

MARKERS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
END = MARKERS.index("<|im_end|>")
"""The stop token: part of the sampled ids, never of the text."""
FIRST_BYTE_ID = 100

_MARKER = re.compile("(" + "|".join(map(re.escape, MARKERS)) + ")")


def tokenize(text: str) -> list[int]:
    ids: list[int] = []
    for part in _MARKER.split(text):
        if part in MARKERS:
            ids.append(MARKERS.index(part))
        else:
            ids.extend(FIRST_BYTE_ID + byte for byte in part.encode())
    return ids


def token_bytes(token: int) -> bytes:
    return MARKERS[token].encode() if token < len(MARKERS) else bytes([token - FIRST_BYTE_ID])


def detokenize(ids: Iterable[int]) -> str:
    return b"".join(map(token_bytes, ids)).decode(errors="replace")


def logprob_at(position: int) -> float:
    """The log-probability of the sampled token at `position` of an output."""
    return -(1 + position % 16) / 16


def logprobs_for(ids: Sequence[int]) -> list[float]:
    return [logprob_at(position) for position in range(len(ids))]


def sampled_text(content: str, reasoning: str = "", calls: Iterable[tuple[str, str]] = ()) -> str:
    """What the model wrote, markup included; `calls` are (name, arguments) pairs."""
    thought = f"<think>{reasoning}</think>" if reasoning else ""
    tools = (f'<tool_call>{{"name": "{n}", "arguments": {a}}}</tool_call>' for n, a in calls)
    return thought + content + "".join(tools)


def render(messages: Sequence[dict[str, Any]], tools: Any = None) -> str:
    """The prompt text, up to and including the header of the answer to be generated.

    Rendering `messages + [answer]` again extends prompt + output token by token, unless the client
    dropped the reasoning or re-wrote the arguments: the breaks that real templates have too.
    """
    blocks = [_block("tools", json.dumps(tools, separators=(",", ":")))] if tools else []
    blocks += [_block(str(message.get("role", "user")), _message_text(message)) for message in messages]
    return "".join(blocks) + "<|im_start|>assistant\n"


def _block(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def _message_text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        content = "".join(str(part.get("text", "<image>")) for part in content)
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    return sampled_text(content, reasoning, [(f["name"], f["arguments"]) for f in functions])
