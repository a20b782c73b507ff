"""The steps of one ATIF document: recorded messages and answers as system, user and agent steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from math import isfinite
from typing import Any, NamedTuple

import orjson

from gyre.proxy.canonical import Block, Kind, arguments_of
from gyre.treebuilder.trees import CallKey, Confidence, Link

Step = dict[str, Any]
_SOURCES = {"system": "system", "developer": "system", "assistant": "agent"}


class Answer(NamedTuple):
    """What the log has of one call beside its messages."""

    blocks: list[Block]
    model: str | None
    started_at: datetime | None
    ended_at: datetime | None
    outcome: str
    finish_reason: str | None
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    output_ids: list[int] | None
    logprobs: list[float] | None
    versions: list[str]


class Steps:
    """Steps in order; tool results go to the step that has their call."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._by_tool: dict[str, Step] = {}
        self._seen: set[Block] = set()

    def context(self, messages: Iterable[list[Block]], at: datetime | None, *, copied: bool) -> None:
        """The messages a context begins with. What stands above already is not repeated."""
        for blocks in messages:
            self._message([each for each in blocks if each not in self._seen], at, copied)

    def more(self, messages: Iterable[list[Block]], known: int, at: datetime | None) -> None:
        """What a call has after the `known` blocks of the one before: first that one's answer, sent back.

        What the harness changed in what was known is new as well; but not its system prompt, which may
        change with the clock.
        """
        echo = True
        for blocks in messages:
            # Nearly all of a long run's messages are of this kind, in every one of its calls.
            if known >= len(blocks) and self._seen.issuperset(blocks):
                known -= len(blocks)
                continue
            old, new = blocks[: max(known, 0)], blocks[max(known, 0) :]
            known -= len(blocks)
            changed = [each for each in old if each not in self._seen and each.role not in _SOURCES]
            self._message(changed, at, copied=False)
            echo = echo and all(each.role == "assistant" for each in new)
            if not echo:
                self._message(new, at, copied=False)
            self._seen.update(new)

    def answer(self, link: Link, answer: Answer, tries: Sequence[CallKey]) -> Step:
        """The agent's step of one call."""
        step = _agent(answer.blocks) | {
            "timestamp": _iso(answer.ended_at),
            "model_name": answer.model,
            "metrics": _metrics(answer),
            "llm_call_count": 1,
            "extra": _extra(link, answer, tries),
        }
        return self._add(step, answer.blocks)

    def _message(self, blocks: list[Block], at: datetime | None, copied: bool) -> None:
        for (result, role), run in groupby(blocks, lambda each: (each.kind is Kind.RESULT, each.role)):
            group = list(run)
            if result:
                for block in group:
                    self._result(block, at)
                self._seen.update(group)
                continue
            source = _SOURCES.get(role, "user")
            step = _agent(group) if source == "agent" else {"source": source, "message": _text(group)}
            # An agent's message that no call of this document sampled was said elsewhere.
            self._add(step | {"timestamp": _iso(at), "is_copied_context": copied or source == "agent"}, group)

    def _add(self, step: Step, blocks: Iterable[Block]) -> Step:
        self._seen.update(blocks)
        step = {"step_id": len(self.steps) + 1} | {
            name: value for name, value in step.items() if value not in (None, False, [], {})
        }
        self.steps.append(step)
        self._by_tool |= {call["tool_call_id"]: step for call in step.get("tool_calls", ())}
        return step

    def _result(self, block: Block, at: datetime | None) -> None:
        step = self._by_tool.get(block.ident)
        if step is not None:
            observe(step, {"source_call_id": block.ident, "content": block.text})
            return
        # Its call is in no step: ATIF lets only a system step have a result without one.
        step = self._add({"source": "system", "message": "", "timestamp": _iso(at)}, ())
        observe(step, {"content": block.text, "extra": {"tool_call_id": block.ident}})


def observe(step: Step, result: dict[str, Any]) -> None:
    step.setdefault("observation", {"results": []})["results"].append(result)


def refer(step: Step, trajectory_id: str, prompt: str) -> None:
    """Say at a step that another trajectory came from it, at the tool call that holds its prompt."""
    reference = {"trajectory_id": trajectory_id}
    ident = next((call["tool_call_id"] for call in step.get("tool_calls", ()) if _holds(call, prompt)), None)
    for result in step.get("observation", {"results": []})["results"]:
        if ident is not None and result.get("source_call_id") == ident:
            result.setdefault("subagent_trajectory_ref", []).append(reference)
            return
    more = {"source_call_id": ident} if ident is not None else {}
    observe(step, more | {"subagent_trajectory_ref": [reference]})


def first_prompt(messages: Iterable[list[Block]]) -> str:
    """The first text of the user, by which a delegation is found in a tool call's arguments."""
    return next((each.text for blocks in messages for each in blocks if each.role == "user"), "")


def _holds(call: dict[str, Any], prompt: str) -> bool:
    block = Block("assistant", Kind.CALL, "", "\n" + orjson.dumps(call["arguments"]).decode())
    return any(text and (text in prompt or prompt in text) for text in arguments_of(block) if prompt)


def _agent(blocks: Sequence[Block]) -> Step:
    reasoning = [each.text for each in blocks if each.kind is Kind.REASONING]
    return {
        "source": "agent",
        "message": _text(blocks),
        "reasoning_content": "\n\n".join(reasoning) or None,
        "tool_calls": [_tool(each, n) for n, each in enumerate(blocks) if each.kind is Kind.CALL],
    }


def _tool(block: Block, number: int) -> dict[str, Any]:
    name, _, text = block.text.partition("\n")
    call: dict[str, Any] = {"tool_call_id": block.ident or f"unnamed-{number}", "function_name": name}
    try:
        arguments = orjson.loads(text)
    except orjson.JSONDecodeError:
        arguments = text
    if isinstance(arguments, dict):
        return call | {"arguments": arguments}
    return call | {"arguments": {}, "extra": {"arguments": arguments}}


def _text(blocks: Iterable[Block]) -> str:
    """Texts as they are; of an image or file only what it was: ATIF wants a path, the log has none."""
    parts = []
    for block in blocks:
        if block.kind is Kind.TEXT:
            parts.append(block.text)
        elif block.kind is Kind.OTHER:
            parts.append(f"[{orjson.loads(block.text).get('type', 'part')}]")
    return "\n\n".join(parts)


def _metrics(answer: Answer) -> dict[str, Any]:
    found = {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
        "completion_token_ids": answer.output_ids,
        # The format has numbers only.
        "logprobs": answer.logprobs if answer.output_ids and _finite(answer.logprobs) else None,
        "extra": {"policy_versions": answer.versions} if answer.versions else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _finite(logprobs: Sequence[float | None] | None) -> bool:
    return all(each is not None and isfinite(each) for each in logprobs or ())


def _extra(link: Link, answer: Answer, tries: Sequence[CallKey]) -> dict[str, Any]:
    more = {
        "attempt": link.call.attempt or None,
        "choice": link.call.choice or None,
        "step": link.step,
        "outcome": None if answer.outcome == "ok" else answer.outcome,
        "error": answer.error,
        "finish_reason": answer.finish_reason,
        "untrained": link.untrained,
        "tries": [key.call_id for key in tries] or None,
        "undecided": link.reason if link.confidence is Confidence.QUARANTINED else None,
    }
    fixed = {"call_id": link.call.call_id, "cause": link.cause.value, "targets": link.targets}
    return fixed | {name: value for name, value in more.items() if value is not None}


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
