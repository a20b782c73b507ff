"""A writer: asks for a text, twice for more of it, and leaves it in `text.txt`. Nothing but Python is needed.

    python agent.py MODEL "WHAT TO WRITE"

It knows nothing of gyre: OPENAI_BASE_URL says where the model is, and `gyre run` sets it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

TURNS, TOKENS = 3, 4
TEMPERATURE = 0.3
"""At 1 a random model hardly says anything twice, and there would be nothing to learn from few executions."""


def ask(model: str, messages: list[dict[str, str]]) -> str:
    """What the model says next."""
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    body = {"model": model, "messages": messages, "max_tokens": TOKENS, "temperature": TEMPERATURE}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as response:
        answer: dict[str, Any] = json.load(response)
    return answer["choices"][0]["message"]["content"] or ""


def main(model: str, task: str) -> None:
    messages = [{"role": "user", "content": task}]
    for _ in range(TURNS):
        text = ask(model, messages)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    Path("text.txt").write_text("".join(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
