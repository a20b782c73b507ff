"""Rows of a log, and whole prompts and message lists from what was new in each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gyre.proxy.log.reading.ragged import addresses, packed
from gyre.proxy.log.reading.rebuild import Part, Rebuilder
from gyre.treebuilder.trees import CallKey, Ids

Array = npt.NDArray[Any]
Spans = list[tuple[str, int, int]]


class Row(NamedTuple):
    """A row of the log, with the columns that trees need, as they are stored."""

    call_id: str
    attempt: int
    choice: int
    parent_call_id: str | None
    parent_attempt: int
    parent_choice: int
    prompt_tokens: int | None
    prompt_shared: int
    prompt_digest: str | None
    prompt_suffix_ids: Array | None
    output_ids: Array | None
    output_logprobs: Array | None
    version_spans: Spans
    messages_shared: int
    message_hashes: list[str]
    tool_hashes: list[str]
    request_digest: str | None
    response: bytes | None
    response_digest: str | None
    started_at: int
    ended_at: int
    outcome: str
    finish_reason: str | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    session_id: str | None
    agent_id: str | None
    parent_agent_id: str | None
    lineage_hints: str | None
    retry_count: int | None
    delivery_of: str | None
    capture_quality: str | None
    logprob_quality: str | None
    capture_flags: list[str]

    @property
    def key(self) -> CallKey:
        return CallKey(self.call_id, self.attempt, self.choice)

    @property
    def outputs(self) -> int:
        return 0 if self.output_ids is None else len(self.output_ids)

    @property
    def logprobs(self) -> int:
        return 0 if self.output_logprobs is None else len(self.output_logprobs)

    @property
    def parent(self) -> CallKey | None:
        if self.parent_call_id is None:
            return None
        return CallKey(self.parent_call_id, self.parent_attempt, self.parent_choice)


class Wholes:
    """Of the rows of one execution, its attempts together."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, int, int], Row] = {}
        for row in rows:
            self._rows.setdefault(row.key, row)
        self._prompts = Rebuilder(self._prompt_part)
        self._lists = Rebuilder(self._list_part)

    def prompt(self, row: Row) -> Ids | None:
        """Raises CorruptLogError when a row it builds on is missing or too short."""
        if row.prompt_suffix_ids is None:
            return None
        return np.frombuffer(self._prompts.whole(row.key), "<i4")

    def messages(self, row: Row) -> list[str]:
        """Addresses; raises CorruptLogError likewise."""
        whole = self._lists.whole(row.key).hex()
        return [whole[i : i + 32] for i in range(0, len(whole), 32)]

    def _prompt_part(self, key: tuple[str, int, int]) -> Part | None:
        row = self._rows.get(key)
        if row is None:
            return None
        suffix, tail = packed(row.prompt_suffix_ids), packed(row.output_ids)
        return Part(row.parent, 4 * row.prompt_shared, suffix, tail)

    def _list_part(self, key: tuple[str, int, int]) -> Part | None:
        row = self._rows.get(key)
        if row is None:
            return None
        return Part(row.parent, 16 * row.messages_shared, addresses(row.message_hashes))
