"""Texts of some executions, out of the log."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import orjson

from gyre.proxy.canonical import Block, blocks_of, response_blocks
from gyre.proxy.log.reading.read import read_log
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.export.atif_steps import Answer
from gyre.treebuilder.trees import CallKey

_COLUMNS = (
    *("call_id", "attempt", "choice", "model", "client", "started_at", "ended_at", "response"),
    *("outcome", "finish_reason", "error", "prompt_tokens", "usage_prompt_tokens"),
    *("usage_completion_tokens", "usage_cached_tokens", "output_ids", "output_logprobs", "version_spans"),
)


class Recorded:
    """Calls and messages by key, built when asked for."""

    def __init__(self, log: str | Path, executions: Collection[str]) -> None:
        self._log = read_log(log, executions=executions, columns=_COLUMNS)
        self._calls = self._log.calls
        keys = zip(*(self._calls[name].to_pylist() for name in _COLUMNS[:3]), strict=True)
        self._row = {CallKey(*key): row for row, key in enumerate(keys)}
        names, bodies = self._log.messages["hash"], self._log.messages["body"]
        self._bodies = dict(zip(names.to_pylist(), bodies, strict=True))
        self._parsed: dict[str, list[Block]] = {}

    def messages(self, key: CallKey) -> list[list[Block]]:
        """The request's messages as blocks; none where the log kept the body as it came."""
        self._require(key)
        return [self._blocks(name) for name in self._log.message_hashes(*key)]

    def _blocks(self, name: str) -> list[Block]:
        if name not in self._parsed:
            if name not in self._bodies:
                raise TreeError(f"message `{name}` is not in the log", "`gyre log check` may say more")
            self._parsed[name] = blocks_of(bytes(self._bodies[name].as_buffer()))
        return self._parsed[name]

    def answer(self, key: CallKey) -> Answer:
        row = self._values(key)
        response, output = row["response"], row["output_ids"]
        prompt = row["usage_prompt_tokens"]
        completion = row["usage_completion_tokens"]
        return Answer(
            blocks=response_blocks(None if response is None else response.encode()),
            model=row["model"],
            started_at=row["started_at"],
            ended_at=row["ended_at"],
            outcome=row["outcome"],
            finish_reason=row["finish_reason"],
            error=row["error"],
            prompt_tokens=row["prompt_tokens"] if prompt is None else prompt,
            completion_tokens=len(output) if completion is None and output is not None else completion,
            cached_tokens=row["usage_cached_tokens"],
            output_ids=output,
            logprobs=row["output_logprobs"],
            versions=list(dict.fromkeys(span["version"] for span in row["version_spans"] or ())),
        )

    def agent(self, key: CallKey) -> dict[str, Any]:
        """The harness, as its User-Agent names it, with its tools."""
        row = self._values(key)
        name, _, version = (row["client"] or "").partition(" ")[0].partition("/")
        agent = {"name": name or "unknown", "version": version or "unknown"}
        if row["model"] is not None:
            agent["model_name"] = row["model"]
        tools = [_definition(tool) for tool in self._log.tools(*key)]
        return agent | ({"tool_definitions": tools} if tools else {})

    def _values(self, key: CallKey) -> dict[str, Any]:
        self._require(key)
        [row] = self._calls.slice(self._row[key], 1).to_pylist()
        return dict(row)

    def _require(self, key: CallKey) -> None:
        if key not in self._row:
            raise TreeError(f"call `{key.call_id}` is not in the log", "is it the log of these trees?")


def _definition(tool: bytes) -> dict[str, Any]:
    """ATIF wants an object; what is none is told as it stands."""
    try:
        found = orjson.loads(tool)
    except orjson.JSONDecodeError:
        found = tool.decode(errors="replace")
    return found if isinstance(found, dict) else {"tool": found}
