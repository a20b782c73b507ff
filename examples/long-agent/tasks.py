"""Writes the tasks of this example as Harbor folders: lists to train on, and others to be judged by.

python tasks.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

from words import HELD_OUT_NAMES, HELD_OUT_WORDS, Listed, draw

TRAIN, HELD_OUT = 48, 32
TOML = 'schema_version = "1.4"\n\n[agent]\ntimeout_sec = 300.0\n\n[verifier]\ntimeout_sec = 60.0\n'
SCORER = """\
#!/bin/sh
# The share of files that have the word and nothing else.
right=0 all=0
for name in {names}; do
    all=$((all + 1))
    [ -f "$name" ] && [ "$(cat "$name")" = "{word}" ] && right=$((right + 1))
done
awk "BEGIN {{ print $right / $all }}" > "${{GYRE_REWARD_DIR:-/logs/verifier}}/reward.txt"
"""


def save(folder: Path) -> None:
    random = Random(7)
    for number in range(TRAIN):
        write(folder / "train" / f"list-{number:02}", draw(random))
    for number in range(HELD_OUT):
        write(folder / "held-out" / f"held-{number:02}", draw(random, HELD_OUT_WORDS, HELD_OUT_NAMES))


def write(folder: Path, task: Listed) -> None:
    files = {
        "task.toml": TOML,
        "instruction.md": f"{task.instruction}\n",
        f"environment/{task.source}": f"{task.word}\n",
        "tests/test.sh": SCORER.format(names=" ".join(task.names), word=task.word),
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "tasks")
    given = options.parse_args()
    save(given.out)
    print(f"{given.out}: {TRAIN} tasks to train on, {HELD_OUT} held out")


if __name__ == "__main__":
    main()
