"""A real program, the proxy and the embedded engine, whose model says what a script wants.

The tokens are forced, and all else is as ever: prompts are rendered, computed and cached, each token has
the probability that the model gives it, tool calls are read out of text. `Rig` proves what became of it.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from gyre.elastic.engine.server.app import serve
from gyre.elastic.engine.settings import EngineSettings
from gyre.proxy.calls import CallRecord, CaptureQuality, Outcome
from gyre.proxy.log.check import check
from gyre.treebuilder.build import build_trees
from gyre.treebuilder.offline.survey import CALL_WIRES
from gyre.treebuilder.store.read import read_trees
from gyre.treebuilder.trees import ExecutionTree
from gyre.treebuilder.verify import verify_trees
from tests.engines.agent_script import AgentScript
from tests.engines.script import Answer, Request, ToolCall
from tests.harnesses.rig import Plans, Rig
from tests.proxy.running import RunningProxy

MODEL = "tiny"


class EmbeddedRig(Rig):
    """Execution `e1` of a proxy on `gyre engine --model tiny`, which is in the test's process."""

    def __init__(self, folder: Path, plans: Plans, **settings: Any) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.settings = settings
        self.bodies: list[bytes] = []
        """Of the requests that the engine answered."""
        self._script = AgentScript(plans)
        self._lock = threading.Lock()
        self._stack = ExitStack()

    def __enter__(self) -> EmbeddedRig:
        settings = EngineSettings(model=MODEL, threads=1)
        self.engine = self._stack.enter_context(serve(settings, script=self._say))
        self.proxy = self._stack.enter_context(
            RunningProxy(self.folder / "logs", self.engine.url, **self.settings)
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def _say(self, body: dict[str, Any]) -> str:
        raw = json.dumps(body).encode()
        with self._lock:
            self.bodies.append(raw)
            path = "/v1/chat/completions"
            answer = self._script(Request(method="POST", path=path, headers={}, body=raw, reused=False))
        return sampled_text(answer)

    @property
    def rows(self) -> list[CallRecord]:
        """Calls of the model, in commit order."""
        return [row for row in self.proxy.rows(len(self.bodies)) if row.wire in CALL_WIRES]

    def proven(self) -> ExecutionTree:
        """Every call is exact, the log says so of itself, and the trees are what it says."""
        found = {(row.outcome, row.capture_quality) for row in self.rows}
        assert found == {(Outcome.OK, CaptureQuality.EXACT)}, found
        assert len(self.rows) == len(self.bodies)
        assert check(self.proxy.logs).findings == []
        assert build_trees(self.proxy.logs, self.folder / "trees", strict=True).ok
        assert verify_trees(self.folder / "trees") == []
        return read_trees(self.folder / "trees").tree("e1")


def sampled_text(answer: Answer) -> str:
    """An answer as a model of the ChatML and Hermes kind writes it."""
    thought = f"<think>\n{answer.reasoning}\n</think>\n\n" if answer.reasoning else ""
    return thought + "\n".join([*([answer.text] if answer.text else []), *map(_hermes, answer.tool_calls)])


def _hermes(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
