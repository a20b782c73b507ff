"""Trains on one recorded log in several ways, and prints what each keeps, takes and achieves.

    python table.py LOGS --model FOLDER --out FOLDER [--tasks FOLDER]

Each way builds trees of the same executions, trains the same model on them with the same settings, and lets
the result do other tasks. It does so with gyre's commands, as anyone would.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

HERE = Path(__file__).parent
COMMANDS = Path(sys.executable).parent
AGENT = ["python3", str(HERE / "agent.py"), "{model}", "{instruction}", "--limit", "1250"]
SETTINGS = """\
[train]
epochs = {epochs}
groups_per_batch = 4
pass = "{tree_pass}"

[train.loss]
clip_low = 0.2
clip_high = 0.2

[train.optimizer]
lr = 3e-4
"""


class Way(NamedTuple):
    name: str
    build: Sequence[str]
    """Options of `gyre-trees build`."""
    tree_pass: str = "auto"


WAYS = (
    Way("cap 1", ("--cap", "1")),
    Way("cap 5", ("--cap", "5")),
    Way("no cap", ("--select", "all")),
    Way("cap 1, path by path", ("--cap", "1"), "flat"),
    Way("cap 5, path by path", ("--cap", "5"), "flat"),
    Way("no cap, path by path", ("--select", "all"), "flat"),
)
NO_CAP = "no cap"


class Row(NamedTuple):
    way: str
    kept: float
    """Share of the targets."""
    trajectories: float
    """Of an execution."""
    tokens: int
    """Computed."""
    seconds: float
    """Forward and backward."""
    score: float | None
    """Of the trained model on other tasks."""


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("logs", type=Path)
    options.add_argument("--model", required=True)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--tasks", type=Path, help="what trained models are judged by; without: no score")
    options.add_argument("--epochs", type=int, default=4)
    given = options.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    given.out.mkdir(parents=True)
    before = judged(Path(given.model), given.tasks, given.out / "untrained") if given.tasks else None
    rows = [measure(way, given) for way in WAYS]
    (given.out / "table.json").write_text(json.dumps([row._asdict() for row in rows], indent=1))
    print("\n" + table(rows, before))


def measure(way: Way, given: argparse.Namespace) -> Row:
    folder = given.out / way.name.replace(", ", "-").replace(" ", "-")
    folder.mkdir()
    trees, config, run = folder / "trees", folder / "train.toml", folder / "run"
    gyre("gyre-trees", "build", str(given.logs), "-o", str(trees), *way.build)
    config.write_text(SETTINGS.format(epochs=given.epochs, tree_pass=way.tree_pass))
    train = ("--trees", str(trees), "--model", given.model, "--config", str(config), "--out", str(run))
    gyre("gyre", "train", *train)
    score = judged(run / "latest" / "model", given.tasks, folder) if given.tasks else None
    return row(way, trees, run, score)


def row(way: Way, trees: Path, run: Path, score: float | None) -> Row:
    """What a build's report and a run's metrics say."""
    report = json.loads((trees / "report.json").read_text())
    counts = report["executions"]
    updates = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return Row(
        way=way.name,
        kept=report["kept_targets"] / report["targets"],
        trajectories=report["trajectories"] / (counts["total"] - counts.get("evaluation", 0)),
        tokens=sum(update[f"tokens/{'flat' if way.tree_pass == 'flat' else 'tree'}"] for update in updates),
        seconds=sum(update.get("seconds/pass", 0.0) for update in updates),
        score=score,
    )


def judged(model: Path, tasks: Path, folder: Path) -> float:
    """Mean score of a model on tasks that were not trained on."""
    folder.mkdir(exist_ok=True)
    with engine(model) as url:
        said = subprocess.run(
            [
                *(str(COMMANDS / "gyre"), "run", "--tasks", str(tasks), "--n", "4", "--jobs", "4"),
                *("--upstream", url, "--logs", str(folder / "logs"), "--runs", str(folder / "runs")),
                *("--evaluation", "--json", "--", *AGENT),
            ],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    return fmean(one["score"] for one in json.loads(said)["executions"] if one["score"] is not None)


@contextmanager
def engine(model: Path) -> Iterator[str]:
    command = [str(COMMANDS / "gyre"), "engine", "--model", str(model), "--threads", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        started: dict[str, Any] = json.loads(process.stdout.readline())
        yield started["url"]
    finally:
        process.terminate()
        process.communicate()


def gyre(*command: str) -> None:
    print(f"\n$ {' '.join(command)}", flush=True)
    if code := subprocess.call([str(COMMANDS / command[0]), *command[1:]]):
        sys.exit(code)


def table(rows: Sequence[Row], before: float | None) -> str:
    """In Markdown. Times are given beside that of all trajectories through trees; `before` is the untrained
    model's score.
    """
    whole = next(row.seconds for row in rows if row.way == NO_CAP)
    lines = [
        "| | targets kept | trajectories | tokens computed | seconds | of no cap | score |",
        "|---|---|---|---|---|---|---|",
    ]
    if before is not None:
        lines.append(f"| untrained | | | | | | {before:.2f} |")
    for row in rows:
        score = "" if row.score is None else f"{row.score:.2f}"
        lines.append(
            f"| {row.way} | {row.kept:.1%} | {row.trajectories:.1f} | {row.tokens:,} | {row.seconds:.1f} "
            f"| {row.seconds / whole:.1%} | {score} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
