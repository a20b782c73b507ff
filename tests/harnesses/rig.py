"""A real program, the proxy and a scripted engine, and what became of the run.

    with Rig(tmp_path, {"MAINTASK": (Step(commands=("ls",)), Step(text="done"))}) as rig:
        assert qwen_code(rig.home, rig.url).run("MAINTASK").code == 0
    assert rig.story() == {"MAINTASK-1": "main: start", "MAINTASK-2": "main: continuation <- MAINTASK-1"}

Every reading of the run asks first for what has to hold of any run: see `proven`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from gyre.proxy.calls import CallRecord, CaptureQuality, Outcome
from gyre.proxy.log.check import check
from gyre.proxy.log.reading.read import read_log
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.builder import Builder
from gyre.treebuilder.offline.source import Source
from gyre.treebuilder.offline.survey import CALL_WIRES
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import CallKey, Cause, Confidence, ExecutionTree, Link
from gyre.treebuilder.verify import verify_trees
from tests.engines.agent_script import AgentScript, Step
from tests.engines.fake import FakeEngine
from tests.engines.script import Request
from tests.log.builders import digest_of
from tests.proxy.running import RunningProxy

Plans = Mapping[str, Sequence[Step]]
OVERFLOW = {
    "status": 400,
    "text": "This model's maximum context length is 131072 tokens. However, you requested 150000 tokens "
    "(149000 in the messages, 1000 in the completion). Please reduce the length of the messages.",
}
"""How vLLM refuses a prompt that is too long."""
MARK = re.compile(rb"[A-Z]+-\d+(?: in short)?")


class Rig:
    """Execution `e1` of a proxy on scripted engines that give exact ids."""

    def __init__(self, folder: Path, plans: Plans, engines: int = 1, **settings: Any) -> None:
        """`settings` are the proxy's. Several `engines` share one script."""
        self.folder = folder
        self.home = folder / "home"
        self.settings = settings
        script = AgentScript(plans)
        self.engines = [FakeEngine(kind="vllm", script=script, model="fake-model") for _ in range(engines)]

    @property
    def url(self) -> str:
        """The execution's, without `/v1`."""
        return f"{self.proxy.url}/x/e1"

    def __enter__(self) -> Rig:
        for engine in self.engines:
            engine.start()
        self.proxy = RunningProxy(self.folder / "logs", *self.engines, **self.settings).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.proxy.__exit__(kind, error, trace)
        for engine in self.engines:
            engine.stop()

    @property
    def hits(self) -> list[Request]:
        """What the engines were asked to generate."""
        return [request for engine in self.engines for request in engine.calls]

    @property
    def rows(self) -> list[CallRecord]:
        """Calls of the model, in commit order."""
        found = self.proxy.rows(len(self.hits))
        return [row for row in found if row.wire in CALL_WIRES]

    def proven(self) -> ExecutionTree:
        """The tree on disk. What the engine saw is in the log, exact, and the tree is what the log says."""
        assert len(self.rows) == len(self.hits)
        answered = [row for row in self.rows if row.outcome == Outcome.OK]
        assert [(row.capture_quality, row.capture_flags) for row in answered if not _exact(row)] == []
        prompts = Counter(digest_of(request.prompt_ids) for request in self.hits)
        assert Counter(row.prompt_digest for row in answered) <= prompts
        assert check(self.proxy.logs).findings == []
        assert build_trees(self.proxy.logs, self.folder / "trees", strict=True).ok
        assert verify_trees(self.folder / "trees") == []
        return read_trees(self.folder / "trees").tree("e1")

    def trained_once(self) -> None:
        """Each sampled token is a target in one trajectory, whatever prompts have it. Titles are left out."""
        tree = self.proven()
        sampled = sum(len(row.output or b"") // 4 for row in self.rows if row.outcome == Outcome.OK)
        assert tree.targets == tree.sampled_tokens == sampled
        assert set(tree.left_out) <= {"side"}
        assert sum(path.targets for path in tree.trajectories) == tree.kept_targets
        assert tree.kept_targets == sampled - tree.left_out.get("side", 0)

    def story(self) -> dict[str, str]:
        """By call: `role: cause step <- origin`; calls are named by the marks in their answers."""
        tree = self.proven()
        names = self.names(tree)
        return {names[link.call]: line(link, names) for link in tree.links}

    def names(self, tree: ExecutionTree) -> dict[CallKey, str]:
        """A try that was not answered is named after the one that was kept, or by its place in the log."""
        answered = [row for row in self.rows if row.outcome == Outcome.OK]
        found = {(row.call_id, row.attempt): MARK.search(row.response or b"") for row in answered}
        marks = {link.call: found.get(link.call[:2]) for link in tree.links}
        names = {key: mark[0].decode() for key, mark in marks.items() if mark}
        tries: Counter[str] = Counter()
        for number, link in enumerate(tree.links):
            if link.call not in names:
                kept = names.get(link.origin) if link.origin and link.cause is Cause.RETRY else None
                name = f"before {kept}" if kept else f"row {number}"
                tries[name] += 1
                names[link.call] = name if tries[name] == 1 else f"{name} ({tries[name]})"
        return names

    def link(self, name: str) -> Link:
        """Of a call, by its name in the story."""
        tree = self.proven()
        names = self.names(tree)
        return next(link for link in tree.links if names[link.call] == name)

    def without_labels(self) -> ExecutionTree:
        """The tree from the same log, had the harness not said who is who."""
        log = read_log(self.proxy.logs)
        source = Source(log.sealed, log.pending, {"e1"}, [])
        builder = Builder("e1", bodies=source.bodies)
        for call in source.calls(("e1", 0))[0]:
            nameless = replace(call, session_id=None, agent_id=None, parent_agent_id=None)
            builder.add(replace(nameless, hints={}, retry_count=None))
        return builder.tree()


def chain(name: str, count: int, first: str = "main: start") -> dict[str, str]:
    """The story of an agent's `count` calls that each go on from the one before."""
    role = first.partition(":")[0]
    later = {f"{name}-{i}": f"{role}: continuation <- {name}-{i - 1}" for i in range(2, count + 1)}
    return {f"{name}-1": first} | later


def shape(tree: ExecutionTree) -> list[tuple[object, ...]]:
    """What is known of each call, whoever said so."""
    return [
        (link.call, link.context_id, link.role, link.cause, link.step, link.family, link.origin)
        for link in tree.links
    ]


def _exact(row: CallRecord) -> bool:
    return row.capture_quality == CaptureQuality.EXACT


def line(link: Link, names: Mapping[CallKey, str]) -> str:
    if link.confidence is Confidence.QUARANTINED:
        return f"{link.role}: {link.cause} ?"
    step = f" {link.step}" if link.step else ""
    origin = f" <- {names[link.origin]}" if link.origin else ""
    return f"{link.role}: {link.cause}{step}{origin}"
