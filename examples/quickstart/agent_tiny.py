"""An agent of one page: reads and writes files, a line of the model at a time. Needs nothing but Python.

    python3 -S agent_tiny.py MODEL "WHAT TO DO"

It knows nothing of gyre: OPENAI_BASE_URL and OPENAI_API_KEY say where the model is, and `gyre train` sets
both. A run starts it thousands of times, which is why it says the few lines of HTTP itself: to import
`http.client` would take more time than all the rest.
"""

from __future__ import annotations

import json
import os
import socket
import sys

RULES = "Say one command a time: READ file, WRITE file text, DONE."
TURNS, TOKENS = 4, 14
"""Messages of the model in all, and the tokens of each, at most."""


def work(model: str, task: str) -> bool:
    """Whether the model said by itself that it is done."""
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": task.strip()}]
    for _ in range(TURNS):
        said = ask(model, messages)
        print(said, flush=True)
        told = act(said.partition("\n")[0])
        if told is None:
            return True
        print(f"> {told}")
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": told}]
    return False


def act(command: str) -> str | None:
    """What the model is told of its command; None: there is nothing more to do."""
    verb, _, rest = command.partition(" ")
    name, _, text = rest.partition(" ")
    if command == "DONE":
        return None
    if verb == "READ" and is_ours(name) and os.path.exists(name):
        with open(name) as file:
            return file.readline().strip()
    if verb == "WRITE" and is_ours(name) and text:
        with open(name, "w") as file:
            file.write(text + "\n")
        return "OK"
    return "ERROR"


def is_ours(name: str) -> bool:
    """Whether a file of that name can only lie in the working directory."""
    return name.endswith(".txt") and name.removesuffix(".txt").isalnum()


def ask(model: str, messages: list[dict[str, str]]) -> str:
    """What the model says next."""
    host, _, path = os.environ["OPENAI_BASE_URL"].removeprefix("http://").partition("/")
    address, _, port = host.partition(":")
    body = json.dumps({"model": model, "messages": messages, "max_tokens": TOKENS})
    head = (
        f"POST /{path}/chat/completions HTTP/1.0",
        f"Host: {host}",
        f"Authorization: Bearer {os.environ['OPENAI_API_KEY']}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    with socket.socket() as connection:
        connection.connect((address, int(port)))
        connection.sendall("\r\n".join((*head, "", body)).encode())
        said, _, answer = connection.makefile("rb").read().partition(b"\r\n\r\n")
    if b" 200 " not in said.partition(b"\r\n")[0]:
        sys.exit(f"error: {answer.decode()}")
    text: str = json.loads(answer)["choices"][0]["message"]["content"] or ""
    return text


if __name__ == "__main__":
    if not work(*sys.argv[1:]):
        # For whoever judges the work: it may be right, but nobody said so.
        open(".unfinished", "w").close()
