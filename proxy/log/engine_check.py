"""A log against the engine it was recorded from: do ids and texts say the same?

The engine renders a recorded request anew and turns recorded ids into text. Knows the routes of
llama.cpp and of vLLM, which gyre's own engine shares.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import httpx
import orjson
import pyarrow.compute as pc

from gyre.proxy.calls import CaptureQuality, Outcome, Wire
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.errors import UpstreamError
from gyre.proxy.log.findings import Finding, error
from gyre.proxy.log.reading.read import Log
from gyre.proxy.log.sealing.widen import RowKey
from gyre.proxy.prepared import dialect_of
from gyre.proxy.rendering import apply_template_body, tokenize_body
from gyre.proxy.restore import arguments_of, restored
from gyre.proxy.wires import known

_SPECIAL = re.compile(r"<[^<>\n]+>")
"""What a control token looks like as text."""
_SPECIAL_END = re.compile(r"<[^<>\n]+>$")
_TIMEOUT_S = 60.0
_SAID = 300
"""So many characters of an engine's error are shown."""
Row = dict[str, Any]
Body = dict[str, Any]


class EngineCheck:
    """One engine; use it as a context, since it holds a connection."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/").removesuffix("/v1")
        self._sampled: dict[str, dict[str, list[str]]] = {}
        """Of the execution looked at last: arguments by tool-call id."""
        self._client = httpx.Client(base_url=self._url, timeout=_TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def row(self, log: Log, row: Row, key: RowKey, counts: Counter[str]) -> Iterator[Finding]:
        """Compare one row of a successful generation; others have nothing to compare.

        Raises:
            UpstreamError: the engine does not answer, or refuses.
        """
        if row["outcome"] != Outcome.OK or row["engine"] not in ("llamacpp", "vllm", "gyre"):
            return
        raw = log.request_body(*key)
        if raw is None or (row["upstream_wire"] or row["wire"]) not in (Wire.CHAT, Wire.COMPLETIONS):
            return
        body = self._asked(log, row, raw)
        body["model"] = row["upstream_model"] or row["model"]
        prompt, output = log.prompt_ids(*key), log.output_ids(*key)
        given: list[int] = body.pop("output_token_ids", None) or [] if row["engine"] == "gyre" else []
        if prompt is not None:
            counts["engine_prompts"] += 1
            problem = self._compare_prompt(row, body, given, prompt.tolist())
            if problem:
                yield error("engine_prompt", key[0], problem)
        # A row that says itself that ids are missing cannot spell its text, and nobody trains on it.
        whole = row["capture_quality"] != CaptureQuality.INCOMPLETE
        if whole and output is not None and row["response"] is not None:
            counts["engine_outputs"] += 1
            problem = self._compare_output(row, body, given, output.tolist())
            if problem:
                yield error("engine_output", key[0], problem)

    def _asked(self, log: Log, row: Row, raw: bytes) -> Body:
        """The request as the engine got it: translated, arguments of tool calls as they were sampled."""
        sampled = self._sampled_in(log, row["execution_id"])
        wire = Wire(row["wire"])
        body: Body = orjson.loads(raw)
        if wire in known.TRANSLATED:
            folds = "system_folded" in row["capture_flags"]
            return known.translate(wire, body, dialect_of("", Engine(row["engine"]), sampled, folds)).chat
        if "arguments_restored" in row["capture_flags"]:
            body["messages"] = restored(body["messages"], sampled) or body["messages"]
        return body

    def _sampled_in(self, log: Log, execution: str) -> Callable[[str], Sequence[str]]:
        if execution not in self._sampled:
            mine = pc.equal(log.calls["execution_id"], execution)
            self._sampled = {execution: arguments_of(log.calls["response"].filter(mine).to_pylist())}
        found = self._sampled[execution]
        return lambda ident: found.get(ident, ())

    def _compare_prompt(self, row: Row, body: Body, given: list[int], ids: list[int]) -> str | None:
        """`given`: ids of an output that the request went on from; they end the prompt."""
        engine = row["engine"]
        if engine == "gyre" and "prompt_token_ids" in body:
            same = [*body["prompt_token_ids"], *given] == ids
            return None if same else "prompt is not the ids of the request"
        if "messages" not in body:
            return self._compare_completion(engine, body, given, ids)
        if engine == "llamacpp":
            text = self._ask("/apply-template", apply_template_body(body))["prompt"]
            ours = self._text(engine, ids, body)
            return None if ours == text else _differs("prompt", ours, text)
        theirs = [*self._ask("/tokenize", tokenize_body(body))["tokens"], *given]
        if theirs == ids or (engine == "gyre" and self._same_text(engine, body, ids, theirs)):
            return None
        return f"prompt has {len(ids)} ids, the engine renders other {len(theirs)}"

    def _same_text(self, engine: str, body: Body, *both: list[int]) -> bool:
        """Our engine puts the very ids of its outputs into prompts, as long as it remembers them."""
        one, other = (_SPECIAL.sub("", self._text(engine, ids, body)) for ids in both)
        return one == other

    def _compare_completion(self, engine: str, body: Body, given: list[int], ids: list[int]) -> str | None:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            ask = {"content": prompt, "add_special": True, "parse_special": True}
            if engine != "llamacpp":
                ask = {"model": body["model"], "prompt": prompt}
            prompt = self._ask("/tokenize", ask)["tokens"]
        theirs = [*(prompt or ()), *given]
        return None if theirs == ids else f"prompt has {len(ids)} ids, the engine makes other {len(theirs)}"

    def _compare_output(self, row: Row, body: Body, given: list[int], ids: list[int]) -> str | None:
        """The ids must say the recorded text; after it only an end token or a stop string may come."""
        answer = orjson.loads(row["response"])
        message = answer if isinstance(answer, dict) else {"content": answer}
        content = message.get("content") or message.get("text") or ""
        text = self._text(row["engine"], [*given, *ids], body)
        if row["finish_reason"] == "length":
            # The last character may have been cut in its middle.
            content, text = content.rstrip("\ufffd"), text.rstrip("\ufffd")
        if content not in text:
            # Control tokens that a model writes in mid-text are not shown.
            content, text = _SPECIAL.sub("", content), _SPECIAL.sub("", text)
        if given and row["stream"]:
            text = _last(text, content)
        if any(message.get(name) for name in ("tool_calls", "reasoning_content", "reasoning")):
            return None if content.strip() in text else _differs("output", text, content)
        if not text.startswith(content):
            return _differs("output", text, content)
        rest = text[len(content) :]
        if not rest or body.get("stop"):
            return None
        if _SPECIAL.fullmatch(rest) and self._text(row["engine"], ids[-1:], body) == rest:
            return None
        return f"sampled ids say more than was answered: {rest[:80]!r}"

    def _text(self, engine: str, ids: list[int], body: Body) -> str:
        if engine == "llamacpp":
            return str(self._ask("/detokenize", {"tokens": ids})["content"])
        return str(self._ask("/detokenize", {"tokens": ids, "model": body["model"]})["prompt"])

    def _ask(self, route: str, body: Body) -> Any:
        try:
            answer = self._client.post(route, json=body)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, ValueError) as problem:
            hint = "give the URL of the engine itself, not of the proxy"
            if "model" in body:
                hint += f"; it has to serve the log's model, `{body['model']}`"
            said = f"engine `{self._url}` does not answer {route}: {_reason(problem)}"
            raise UpstreamError(said, hint) from problem


def _reason(problem: Exception) -> str:
    """What the engine said, where it said something."""
    if isinstance(problem, httpx.HTTPStatusError):
        return f"{problem.response.status_code} {problem.response.text[:_SAID]}".strip()
    return str(problem)


def _last(text: str, content: str) -> str:
    """From where the end of an output was streamed: what was told of its begin may end within a character."""
    end = _SPECIAL_END.search(text)
    at = text.rfind(content, 0, end.start() if end else None)
    return text if at < 0 else text[at:]


def _differs(what: str, ours: str, theirs: str) -> str:
    pairs = enumerate(zip(ours, theirs, strict=False))
    same = next((i for i, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
    mine, text = ours[same : same + 40], theirs[same : same + 40]
    return f"{what} differs at character {same}: ids say {mine!r}, the text is {text!r}"
