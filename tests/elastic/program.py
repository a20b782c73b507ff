"""What a run takes for a vLLM: `python -m tests.elastic.program MODEL PORT`.

A file beside the model's link makes it fail:
`dead`, at its start; `deaf`, whenever it shall take up weights.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.elastic.server import Answer, VllmControl

MODELS = {"data": [{"id": "policy", "owned_by": "vllm", "max_model_len": 512}]}


class Program(VllmControl):
    def __init__(self, model: Path, port: int) -> None:
        self.place = model.parent
        super().__init__(port)
        about = {"real": str(model.resolve()), "pid": os.getpid()}
        self.routes |= {"GET /v1/models": (200, MODELS), "GET /about": (200, about)}

    def reload(self, body: Any) -> Answer:
        if (self.place / "deaf").exists():
            return 500, {"error": {"message": "out of memory"}}
        return super().reload(body)


if __name__ == "__main__":
    model, port = Path(sys.argv[1]), int(sys.argv[2])
    if (model.parent / "dead").exists():
        sys.exit("no GPU is left")
    with Program(model, port):
        time.sleep(600)
