"""An agent for long work: it delegates to helpers, and goes on from a summary when its history is too long.

    python agent.py MODEL "Read key.txt and write its word to: fig.txt oak.txt elm.txt" --limit 1400

One word is to be copied into many files, a call of the model for each and more. For every second file the
model says what a helper shall do: a conversation of its own, which only returns what it says at its end.
Beyond the limit the model is asked for a summary, and a new conversation begins that knows no more than that.
Nothing but Python is needed. It knows nothing of gyre: OPENAI_BASE_URL says where the model is.
"""

from __future__ import annotations

import argparse
import json
import os
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

Message = dict[str, str]

MANUAL = (Path(__file__).parent / "manual.md").read_text()
MAIN = f"{MANUAL}\nYou are the main agent."
HELPER = f"{MANUAL}\nYou are a helper."

FIRST = "First read {name}"
MINE = "Now write {name}"
HELPERS = "Now let a helper write {name}"
SUMMARISE = "Your memory is full. Write a summary."
SO_FAR = "{task}\n{summary}"
END = "That was the last file."
READ, WRITTEN, NOT_DONE = "It says {word}", "OK", "That is no command of the manual."
ANSWER_TOKENS = 32
SHORTEST_TASK = 40
"""Characters: a helper knows nothing but its task."""


class Answer(NamedTuple):
    text: str
    tokens: int
    """Of the conversation, with this answer."""


class Model(Protocol):
    def ask(self, messages: list[Message]) -> Answer: ...


class Chat:
    """chat/completions over one connection."""

    def __init__(self, url: str, key: str, model: str) -> None:
        place = urlsplit(url)
        self._connection = HTTPConnection(place.netloc)
        self._path = f"{place.path}/chat/completions"
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self._model = model

    def ask(self, messages: list[Message]) -> Answer:
        body = {"model": self._model, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 1.0}
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        said = response.read()
        if response.status != 200:
            raise SystemExit(f"the model answers {response.status}: {said[:300]!r}")
        answer = json.loads(said)
        usage = answer["usage"]
        tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        return Answer(answer["choices"][0]["message"]["content"] or "", tokens)


class Conversation:
    """One context: what was said so far, and to whom the model answers next."""

    def __init__(self, model: Model, system: str, about: str = "") -> None:
        self._model = model
        self._messages: list[Message] = [{"role": "system", "content": system}]
        self._news = about
        self.tokens = 0

    def hears(self, text: str) -> None:
        """Is told with the next question."""
        self._news = f"{self._news}\n{text}" if self._news else text

    def says(self, question: str = "") -> str:
        if question:
            self.hears(question)
        self._messages.append({"role": "user", "content": self._news})
        text, self.tokens = self._model.ask(self._messages)
        self._messages.append({"role": "assistant", "content": text})
        self._news = ""
        return text


def work(model: Model, task: str, limit: int) -> None:
    """`task` ends with the list of files after a colon; the file to read is its second word."""
    source, names = task.split()[1], task.rpartition(":")[2].split()
    main = Conversation(model, MAIN, task)
    main.hears(act(main.says(FIRST.format(name=source)), [source, *names]))
    for number, name in enumerate(names):
        if main.tokens > limit:
            summary = main.says(SUMMARISE)
            main = Conversation(model, MAIN, SO_FAR.format(task=task, summary=summary))
        if number % 2 == 0:
            main.hears(act(main.says(MINE.format(name=name)), names))
        else:
            main.hears(delegate(model, main.says(HELPERS.format(name=name)), names))
    main.says(END)


def delegate(model: Model, task: str, names: list[str]) -> str:
    """What the helper reports, whose prompt is all that the main agent said."""
    if not task.startswith("TASK ") or len(task) < SHORTEST_TASK:
        return NOT_DONE
    helper = Conversation(model, HELPER, task)
    helper.hears(act(helper.says(), names))
    return f"The helper says: {helper.says()}"


def act(said: str, names: list[str]) -> str:
    """Do what the model wants, if it is allowed."""
    match said.split():
        case ["READ", name] if name in names and Path(name).is_file():
            return READ.format(word=Path(name).read_text().strip())
        case ["WRITE", name, *words] if name in names:
            Path(name).write_text(" ".join(words) + "\n")
            return WRITTEN
    return NOT_DONE


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("task")
    options.add_argument("--limit", type=int, default=1400, help="tokens of a conversation")
    given = options.parse_args()
    chat = Chat(os.environ["OPENAI_BASE_URL"], os.environ.get("OPENAI_API_KEY", "unused"), given.model)
    work(chat, given.task.strip(), given.limit)


if __name__ == "__main__":
    main()
