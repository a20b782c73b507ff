"""What an engine's answers to the doctor's calls show: what is exact, what is missing, what helps.

Pure: `gyre.proxy.doctor` makes the calls, `gyre doctor` shows the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from gyre.proxy.calls import CaptureQuality, LogprobQuality
from gyre.proxy.capture.profiles import Engine
from gyre.proxy.capture.usage import Usage

NO_USAGE = Usage()
_DIGITS = 16
"""Of a digest: enough to tell weights apart by eye."""


class Kind(StrEnum):
    PLAIN = "plain"
    STREAM = "stream"
    TOOL = "tool"


class Grade(StrEnum):
    EXACT = "exact"
    PARTIAL = "partial"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One call and what was captured of its answer."""

    kind: Kind
    status: int
    problem: str = ""
    """Why there is nothing to read: the engine's error, or what is wrong with its answer."""
    quality: CaptureQuality = CaptureQuality.NONE
    logprobs: LogprobQuality = LogprobQuality.NONE
    both_logprobs: bool = False
    """Of the distribution sampled from, and the raw ones."""
    prompt_ids: tuple[int, ...] | None = None
    sampled: int = 0
    """Sampled ids."""
    usage: Usage = NO_USAGE
    versions: tuple[str, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the weights, by version."""
    message: bytes = b""
    flags: tuple[str, ...] = ()

    @property
    def ids_complete(self) -> bool:
        return self.quality in (CaptureQuality.EXACT, CaptureQuality.IDS_ONLY)

    @property
    def unrecognised(self) -> bool:
        """Status 200, and nothing in it that we know as an answer."""
        return self.status == 200 and (bool(self.problem) or "no_content" in self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that can be captured or not, and what helps."""

    what: str
    grade: Grade
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    url: str
    engine: Engine
    model: str
    probes: Sequence[Probe]
    findings: Sequence[Finding]

    @property
    def ok(self) -> bool:
        """Every id is there, and every answer was understood."""
        needed = [probe for probe in self.probes if probe.kind != Kind.TOOL or probe.status == 200]
        return all(probe.ids_complete and not probe.unrecognised for probe in needed)


NO_IDS = (
    "serve the model with vLLM 0.10.2+, SGLang, llama.cpp or `gyre engine`: text alone cannot be trained on"
)

LLAMACPP_STREAMS = (
    "while it streams, llama.cpp leaves out the end token and parts of characters of several tokens; "
    "such calls are recorded and never trained on, plain calls are whole"
)


def findings(engine: Engine, probes: Sequence[Probe]) -> list[Finding]:
    """What the three answers show. Pure."""
    plain, stream, tool = (next(p for p in probes if p.kind == kind) for kind in Kind)
    return [
        _prompt_ids(plain, stream),
        _sampled_ids("sampled ids", engine, plain),
        _sampled_ids("streamed ids", engine, stream),
        _logprobs(plain, stream),
        _distribution(engine, plain),
        _usage(plain, stream),
        _version(plain),
        _tools(plain, tool),
    ]


def _prompt_ids(*probes: Probe) -> Finding:
    what = "prompt ids"
    if any(probe.problem for probe in probes):
        return Finding(what=what, grade=Grade.MISSING, detail=_problems(probes))
    if any(probe.prompt_ids is None for probe in probes):
        return Finding(what=what, grade=Grade.MISSING, detail="the engine gives none", remedy=NO_IDS)
    if any("prompt_count_mismatch" in probe.flags for probe in probes):
        detail = "their number is not the one in `usage`"
        return Finding(what=what, grade=Grade.PARTIAL, detail=detail, remedy="please report this engine")
    return Finding(what=what, grade=Grade.EXACT, detail=f"{len(probes[0].prompt_ids or ())} ids")


def _problems(probes: Sequence[Probe]) -> str:
    return "; ".join(f"{p.kind} call answered {p.status}: {p.problem}" for p in probes if p.problem)


def _sampled_ids(what: str, engine: Engine, probe: Probe) -> Finding:
    if probe.problem:
        return Finding(what=what, grade=Grade.MISSING, detail=_problems([probe]))
    if "no_content" in probe.flags:
        detail = "the answer has no recognisable content"
        remedy = "a proxy in between may rewrite answers: point gyre at the engine itself"
        return Finding(what=what, grade=Grade.MISSING, detail=detail, remedy=remedy)
    if not probe.sampled:
        return Finding(what=what, grade=Grade.MISSING, detail="the engine gives none", remedy=NO_IDS)
    if probe.ids_complete or probe.flags == ("prompt_ids_missing",):
        return Finding(what=what, grade=Grade.EXACT, detail=f"{probe.sampled} ids")
    detail = f"{probe.sampled} ids, {probe.usage.completion} by `usage`: {', '.join(probe.flags)}"
    remedy = LLAMACPP_STREAMS if engine == Engine.LLAMACPP else "such calls are recorded and never trained on"
    return Finding(what=what, grade=Grade.PARTIAL, detail=detail, remedy=remedy)


def _logprobs(*probes: Probe) -> Finding:
    what = "log-probabilities"
    if any(probe.logprobs == LogprobQuality.NONE for probe in probes):
        remedy = "allow `logprobs` on the engine (vLLM: `--max-logprobs` above 0)"
        return Finding(what=what, grade=Grade.MISSING, detail="not for every call", remedy=remedy)
    if any("logprobs_incomplete" in probe.flags for probe in probes):
        return Finding(what=what, grade=Grade.PARTIAL, detail="not one for each captured id")
    return Finding(what=what, grade=Grade.EXACT, detail="one for each captured id")


def _distribution(engine: Engine, probe: Probe) -> Finding:
    """Are they of the distribution that tokens are drawn from, when the agent sets nothing itself?"""
    what = "sampling"
    match probe.logprobs:
        case LogprobQuality.SAMPLED if probe.both_logprobs:
            detail = "log-probabilities of the distribution sampled from, whatever it is, and the raw ones"
            return Finding(what=what, grade=Grade.EXACT, detail=detail)
        case LogprobQuality.SAMPLED:
            return Finding(
                what=what, grade=Grade.EXACT, detail="neutral by default: log-probabilities are of it"
            )
        case LogprobQuality.RAW:
            return Finding(
                what=what,
                grade=Grade.PARTIAL,
                detail="the engine truncates or scales by default, its log-probabilities do not",
                remedy="start it with temperature 1, top_k 0, top_p 1, min_p 0, or pin these in the proxy",
            )
        case LogprobQuality.UNKNOWN:
            return Finding(
                what=what,
                grade=Grade.PARTIAL,
                detail=f"{engine} does not say what it does by default",
                remedy="pin temperature and top_p in the proxy",
            )
    return Finding(what=what, grade=Grade.MISSING, detail="no log-probabilities of sampled tokens")


def _usage(*probes: Probe) -> Finding:
    without = [probe.kind.value for probe in probes if probe.usage.completion is None]
    if without:
        detail = f"none in: {', '.join(without)}"
        remedy = "without it lost ids cannot be noticed"
        return Finding(what="usage", grade=Grade.MISSING, detail=detail, remedy=remedy)
    return Finding(what="usage", grade=Grade.EXACT, detail="token counts, also at the end of a stream")


def _version(probe: Probe) -> Finding:
    what = "policy version"
    if probe.versions:
        version = probe.versions[-1]
        digest = probe.digests.get(version)
        weights = f", weights {digest[:_DIGITS]}" if digest else ""
        return Finding(what=what, grade=Grade.EXACT, detail=f"version `{version}` in each answer{weights}")
    remedy = "if its weights change: set the backend's version through the proxy's control API"
    return Finding(what=what, grade=Grade.MISSING, detail="not in the answers", remedy=remedy)


def _tools(plain: Probe, tool: Probe) -> Finding:
    what = "tool calls"
    if tool.problem:
        remedy = "serve the model with a tool-call parser and a template that knows tools"
        return Finding(what=what, grade=Grade.MISSING, detail=_problems([tool]), remedy=remedy)
    if not tool.ids_complete:
        return Finding(
            what=what, grade=Grade.PARTIAL, detail=f"ids incomplete: {', '.join(tool.flags) or 'none'}"
        )
    if tool.prompt_ids == plain.prompt_ids:
        remedy = "use a model whose template knows tools"
        return Finding(
            what=what, grade=Grade.MISSING, detail="the chat template leaves tools out", remedy=remedy
        )
    if b'"tool_calls":[{' not in tool.message.replace(b" ", b""):
        return Finding(what=what, grade=Grade.PARTIAL, detail="ids complete; the model chose to call no tool")
    return Finding(what=what, grade=Grade.EXACT, detail="a call, with complete ids")
