"""Exports read back: their rows, and which tokens those train."""

from __future__ import annotations

import json
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from gyre.treebuilder.export.source import Format

LINES = (Format.JSONL, Format.SLIME, Format.SKYRL)
ROWS = tuple(fmt for fmt in Format if fmt is not Format.ATIF)
"""All formats that have rows."""


class TrainingSample(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """As documented by prime-rl: the position names a field, and all per-token lists have one length."""

    token_ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    temperatures: list[float]
    env_name: str
    ref_logprobs: list[float] | None = None
    mm_kwargs: dict[str, Any] | None = None
    routed_experts: list[Any] | None = None
    mm_token_type_ids: list[int] | None = None
    rl_weights: list[float] | None = None
    ce_weights: list[float] | None = None
    ref_kl_weights: list[float] | None = None
    advantages: list[float] | None = None


def load(fmt: Format, path: Path) -> list[dict[str, Any]]:
    if fmt in LINES:
        return [json.loads(line) for line in path.read_text().splitlines()]
    if fmt is Format.PRIME_RL:
        samples = msgspec.msgpack.decode(path.read_bytes(), type=list[TrainingSample])
        return [msgspec.structs.asdict(sample) for sample in samples]
    rows: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return rows


def trained(fmt: Format, row: dict[str, Any]) -> list[tuple[int, float]]:
    """(token, behaviour log-probability) of what a row trains."""
    ids, mask, logprobs = _columns(fmt, row)
    assert len(ids) == len(mask) == len(logprobs)
    return list(compress(zip(ids, logprobs, strict=True), mask))


def _columns(fmt: Format, row: dict[str, Any]) -> tuple[list[int], list[Any], list[float]]:
    match fmt:
        case Format.JSONL | Format.PARQUET:
            return row["token_ids"], row["target_mask"], row["behaviour_logprobs"]
        case Format.TRL:
            return row["completion_ids"], row["env_mask"], row["logprobs"]
        case Format.VERL:
            return row["response_ids"], row["response_mask"], row["response_logprobs"]
        case Format.SLIME:
            return row["tokens"][-row["response_length"] :], row["loss_mask"], row["rollout_log_probs"]
        case Format.AREAL:
            return row["input_ids"], row["loss_mask"], row["logprobs"]
        case Format.SKYRL:
            return row["response_ids"][0], row["loss_masks"][0], row["rollout_logprobs"][0]
        case Format.PRIME_RL:
            return row["token_ids"], row["mask"], row["logprobs"]
        case Format.ATIF:
            raise ValueError("no rows")
