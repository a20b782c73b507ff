"""All cases sent through one proxy, and the log it left."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai

from gyre.proxy import read_log
from gyre.proxy.calls import Wire
from gyre.proxy.log.reading.read import Log
from tests.proxy.processes import ProxyProcess, end
from tests.vllm.cases import Case, Json
from tests.vllm.clients import Said, ask

_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config")
"""Fields of `count_tokens`."""


@dataclass(frozen=True)
class Call:
    """One case as client and log have it; a row for each choice."""

    said: list[Said]
    rows: list[Json]
    prompt: list[int]
    outputs: list[list[int]]


class Recorded:
    """`options` are those of `gyre proxy`."""

    def __init__(self, folder: Path, engine: str, cases: list[Case], *options: str) -> None:
        self._said: dict[tuple[Wire, str], list[Said] | str] = {}
        self.counted: dict[str, int] = {}
        with ProxyProcess(folder, engine, *options) as proxy:
            for case in cases:
                self._said[case.wire, case.name] = _tried(proxy.url, case)
                if case.wire == Wire.MESSAGES:
                    self.counted[case.name] = _counted(proxy.url, case)
            assert end(proxy) == 0, proxy.stderr
        self.logs = proxy.logs

    def said(self, case: Case) -> list[Said]:
        said = self._said[case.wire, case.name]
        assert not isinstance(said, str), said
        return said

    def rows(self, case: Case) -> list[Json]:
        return _generations(read_log(self.logs, executions=[execution_of(case)]))

    def __getitem__(self, case: Case) -> Call:
        log = read_log(self.logs, executions=[execution_of(case)])
        rows = _generations(log)
        keys = [(row["call_id"], row["attempt"], row["choice"]) for row in rows]
        prompts = {tuple(ids_of(log.prompt_ids(*key))) for key in keys}
        assert len(prompts) == 1
        outputs = [ids_of(log.output_ids(*key)) for key in keys]
        return Call(self.said(case), rows, list(prompts.pop()), outputs)


def _generations(log: Log) -> list[Json]:
    return [row for row in log.calls.to_pylist() if row["wire"] != Wire.COUNT_TOKENS]


def ids_of(array: Any) -> list[int]:
    assert array is not None
    ids: list[int] = array.tolist()
    return ids


def execution_of(case: Case) -> str:
    return f"{case.wire} {case.name}".replace(" ", "-").replace(",", "")


def _tried(url: str, case: Case) -> list[Said] | str:
    """What came of it; a refusal fails the tests of this case and of no other."""
    try:
        return ask(f"{url}/x/{execution_of(case)}", case)
    except (AssertionError, httpx.HTTPError, openai.APIError, anthropic.APIError) as problem:
        return f"{type(problem).__name__}: {problem}"


def _counted(url: str, case: Case) -> int:
    body = {name: case.body[name] for name in _COUNTED if name in case.body}
    answer = httpx.post(f"{url}/x/{execution_of(case)}/v1/messages/count_tokens", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["input_tokens"]
    return count
