"""The model of run.sh where there is no ENGINE: it gives token ids as vLLM does; what it answers stands here.

It does the work in the even executions of each task, and has a sub-agent look at it; in the odd ones it
only says so. The engine and the way it acts come from gyre's own tests.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from tests.engines.agent_script import AgentScript, Step
from tests.engines.fake import FakeEngine
from tests.engines.script import Answer, Request

TASKS = Path(__file__).parents[1] / "tasks"
NAMED = {
    "letter.txt": "count-words",
    "sum.sh": "fix-the-sum",
    "harbour.jpg": "rename-files",
    "poem.txt": "reverse-lines",
}
"""Tasks by a word of their instruction."""


def steps(task: str) -> tuple[Step, ...]:
    return (
        Step(commands=("ls -l",), thinking="First I look what is there."),
        Step(commands=((TASKS / task / "solution" / "solve.sh").read_text(),)),
        Step(delegates=("INSPECTOR: is there anything in the working directory?",)),
        Step(waits=True),
        Step(text="It is done."),
    )


INSPECTOR = (Step(commands=("ls | wc -l",)), Step(text="There is."))
WORK = AgentScript({word: steps(task) for word, task in NAMED.items()} | {"INSPECTOR": INSPECTOR})


def answer(request: Request) -> Answer:
    """Codex says where it works: in the workspace of the execution that `gyre run` named."""
    odd = re.search(r"-\d*[13579]/workspace", request.prompt_text)
    return Answer(text="It is done.") if odd else WORK(request)


if __name__ == "__main__":
    with FakeEngine(script=answer, model="scripted") as engine:
        print(engine.url, flush=True)
        signal.pause()
