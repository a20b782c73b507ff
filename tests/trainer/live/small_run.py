"""A live run in small: the random model `tiny`, an agent of two calls, tasks that letters are scores of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gyre.trainer.live.config import load_run
from gyre.trainer.live.settings import RunSettings

AGENT = '''\
"""Asks twice, and leaves what was said in `text.txt`."""
import http.client, json, os, sys, time
from urllib.parse import urlsplit
url = urlsplit(os.environ["OPENAI_BASE_URL"])
messages, said = [{"role": "user", "content": sys.argv[2]}], []
time.sleep(float(os.environ.get("SLEEP", "0")))
for _ in range(2):
    client = http.client.HTTPConnection(url.netloc, timeout=60)
    body = {"model": sys.argv[1], "messages": messages, "max_tokens": 4, "temperature": 0.1}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    client.request("POST", url.path + "/chat/completions", json.dumps(body), headers)
    answer = client.getresponse()
    if answer.status != 200:
        sys.exit(3)
    text = json.loads(answer.read())["choices"][0]["message"]["content"]
    said.append(text)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    open("text.txt", "w").write("".join(said))
'''
SCORER = """\
text=$(tr -cd 'a-m' < text.txt | wc -c)
all=$(wc -c < text.txt)
awk -v some="$text" -v all="$all" 'BEGIN { print all ? some / all : 0 }' > "${GYRE_REWARD_DIR}/reward.txt"
"""


def write_tasks(folder: Path, *words: str) -> Path:
    for word in words:
        task = folder / word
        (task / "tests").mkdir(parents=True)
        (task / "task.toml").write_text("")
        (task / "instruction.md").write_text(f"Write about a {word}.")
        (task / "tests" / "test.sh").write_text(SCORER)
    return folder


def write_run(folder: Path, **changes: Any) -> Path:
    """A run file of 2 groups of 3 executions a batch. `changes` are by dotted names, with `_` for dots of
    `rollout_batches`; tables that are not here are given whole."""
    write_tasks(folder / "tasks", "river", "stone", "cloud", "meadow")
    write_tasks(folder / "held-out", "harbour", "lantern")
    (folder / "agent.py").write_text(AGENT)
    path = folder / "run.toml"
    path.write_text(TEXT.format(python=sys.executable, **(DEFAULTS | changes)))
    return path


DEFAULTS: dict[str, Any] = {
    "batches": 3,
    "burst": 1,
    "look_ahead": 0.0,
    "groups": 2,
    "size": 3,
    "updates": 1,
    "every": 0,
    "greedy": "false",
    "episodes": 2,
    "sleep": 0,
    "more": "",
}
TEXT = """\
model = "tiny"
out = "out"
unsafe_local = true
{more}

[harness]
command = ["{python}", "./agent.py", "{{model}}", "{{instruction}}"]
env = {{ SLEEP = "{sleep}" }}

[[tasks]]
folder = "tasks"

[engine]
threads = 1

[rollout]
batches = {batches}
group_size = {size}
burst = {burst}
look_ahead = {look_ahead}
concurrency = 3

[evaluation]
episodes = {episodes}
every = {every}
greedy = {greedy}

[[evaluation.tasks]]
folder = "held-out"

[train]
groups_per_batch = {groups}
updates_per_batch = {updates}

[train.loss]
clip_low = 0.2
clip_high = 0.2

[train.optimizer]
lr = 1e-3
"""


def small_run(folder: Path, **changes: Any) -> RunSettings:
    return load_run(write_run(folder, **changes), {})
