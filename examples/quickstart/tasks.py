"""Makes the tasks of a run file: words to write into files or to copy, for training and for evaluation.

    python tasks.py tiny|smollm2|smollm2-copy [--out DIR]

The same call makes the same folders, in Harbor's format: DIR/train and DIR/held-out. What is held out is
never trained on: other words and other files; for the tiny model, which knows no others, other combinations.
"""

from __future__ import annotations

import argparse
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

KINDS = ("tiny", "smollm2", "smollm2-copy")
WORDS = """
    apple bread cloud dance eagle flame grass house island juice kite lemon music night ocean paper
    queen ribbon silver table uncle voice water youth zebra bridge candle desert engine forest garden hammer
"""
NAMES = "notes list draft memo plan story letter report"
HELD_OUT_WORDS = """
    amber basket copper doctor evening feather guitar honey
    iron jacket kitchen ladder marble needle orange pepper
"""
HELD_OUT_NAMES = "photo page diary poem recipe title message address"
TINY_WORDS, TINY_NAMES = WORDS.split()[:16], list("abcdef")

TOML = """\
schema_version = "1.4"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 10.0
"""
TEST = """\
#!/bin/sh
# The right line in the file and nothing else done: 1. A file with the word in it: 0.5. A file: 0.2.
# Half of that, if the model never said that it was done. Builtins of the shell only: this runs very often.
given='{given}' goal='{goal}' word='{word}'
rewards=${{GYRE_REWARD_DIR:-/logs/verifier}}

is_right() {{ # FILE: the word is its only line
    more=
    IFS= read -r line && ! IFS= read -r more && [ "$line$more" = "$word" ]
}}

is_tidy() {{ # what was given is as it was, and no other file is there
    [ -z "$given" ] || is_right < "$given" || return
    for file in *; do
        [ "$file" = "$given" ] || [ "$file" = "$goal" ] || return
    done
}}

points=0
if [ -f "$goal" ]; then
    read -r line < "$goal"
    case $line in
        *"$word"*) points=50 ;;
        *) points=20 ;;
    esac
    ! is_right < "$goal" || ! is_tidy || points=100
fi
[ ! -e .unfinished ] || points=$((points / 2))
echo "$((points / 100)).$((points / 10 % 10))$((points % 10))" > "$rewards/reward.txt"
"""


class Work(NamedTuple):
    word: str
    goal: str
    """File to write the word into."""
    given: str = ""
    """File that it stands in; without one the instruction says the word."""

    @property
    def instruction(self) -> str:
        if self.given:
            return f"Copy {self.given} to {self.goal}."
        return f"Write the word {self.word} to the file {self.goal}."

    @property
    def name(self) -> str:
        return "-".join(part.removesuffix(".txt") for part in (self.word, self.given, self.goal) if part)

    def save(self, folder: Path) -> None:
        place = folder / self.name
        (place / "tests").mkdir(parents=True, exist_ok=True)
        (place / "task.toml").write_text(TOML)
        (place / "instruction.md").write_text(self.instruction + "\n")
        (place / "tests" / "test.sh").write_text(TEST.format(**self._asdict()))
        (place / "tests" / "test.sh").chmod(0o755)
        if self.given:
            (place / "environment").mkdir(exist_ok=True)
            (place / "environment" / self.given).write_text(self.word + "\n")


def works(kind: str) -> tuple[list[Work], list[Work]]:
    """Those to train on, and those held out."""
    if kind != "tiny":
        make = copies if kind == "smollm2-copy" else writes
        return make(WORDS, NAMES), make(HELD_OUT_WORDS, HELD_OUT_NAMES)
    pairs = list(permutations(TINY_NAMES, 2))
    every = [Work(word, f"{goal}.txt", f"{given}.txt") for word, (given, goal) in product(TINY_WORDS, pairs)]
    held_out = [work for work in every if crc32(work.name.encode()) % 4 == 0]
    return [work for work in every if work not in held_out], held_out


def writes(words: str, names: str) -> list[Work]:
    return [Work(word, f"{name}.txt") for word, name in product(words.split(), names.split())]


def copies(words: str, names: str) -> list[Work]:
    first, *rest = names.split()
    pairs = pairwise([first, *rest, first])
    return [
        Work(word, f"{goal}.txt", f"{given}.txt") for word, (given, goal) in product(words.split(), pairs)
    ]


def save(kind: str, out: Path) -> None:
    train, held_out = works(kind)
    for folder, some in ((out / "train", train), (out / "held-out", held_out)):
        for work in some:
            work.save(folder)
    print(f"{out}: {len(train)} tasks to train on, {len(held_out)} held out")


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("kind", choices=KINDS)
    options.add_argument("--out", type=Path, help="default: where its run file looks for them")
    given = options.parse_args()
    save(given.kind, given.out or Path(__file__).parent / "out" / given.kind)


if __name__ == "__main__":
    main()
