"""`gyre-trees`, also `gyre trees`: executions as prefix-sharing trees, built, looked at, proven, exported."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gyre.cli import entry, output

if TYPE_CHECKING:
    from gyre.treebuilder.store.read import Trees
    from gyre.treebuilder.summary import ExecutionSummary

SCHEMA = 1

app = typer.Typer(
    name="trees",
    help="Rebuild recorded executions as trees; look at them, prove them, export them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    pretty_exceptions_show_locals=False,
)

TreesDir = Annotated[Path, typer.Argument(metavar="TREES", help="The folder that `build` writes.")]


class Rule(StrEnum):
    """Which trajectories are kept."""

    QWENGYRE = "qwengyre"
    PAPER = "paper"
    COVERAGE = "coverage"
    ALL = "all"


class Format(StrEnum):
    """Whose format is written."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ATIF = "atif"
    VERL = "verl"
    TRL = "trl"
    SLIME = "slime"
    AREAL = "areal"
    SKYRL = "skyrl"
    PRIME_RL = "prime-rl"


@app.callback()
def common(
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
    show_version: entry.VersionOption = False,
) -> None:
    output.install_logging()


@app.command()
def build(
    logs: Annotated[Path, typer.Argument(metavar="LOGS", help="The folder that `gyre proxy --logs` writes.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder to write; what fits in it is kept.")
    ] = Path("trees"),
    cap: Annotated[int, typer.Option(min=1, help="Trajectories kept per execution.")] = 5,
    seed: Annotated[int, typer.Option(help="Of the draws that choose them.")] = 0,
    select: Annotated[
        Rule,
        typer.Option(
            help="How they are chosen: by role and draw, stubs riding along (qwengyre) or counted (paper); "
            "those that bring most new targets (coverage); all of them."
        ),
    ] = Rule.QWENGYRE,
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Scores besides those in the log: JSONL, CSV, Parquet."),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Processes; the result is the same.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A tokenizer.json: counts for logs without token ids.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first broken execution.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove trees of executions that the log has no longer.")
    ] = False,
    json: output.JsonOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Rebuild every execution of a log as a tree, those without new calls excepted.

    Exit code 1 when an execution had to be skipped; the others are built.
    """
    from gyre.cli import trees_report
    from gyre.treebuilder import build_trees
    from gyre.treebuilder.options import Options
    from gyre.treebuilder.options import Rule as Selection
    from gyre.treebuilder.scores_file import read_scores

    with output.counting("building trees") as progress:
        report = build_trees(
            logs,
            out,
            options=Options(cap, seed, Selection(select.value)),
            scores=read_scores(scores) if scores else None,
            jobs=jobs,
            strict=strict,
            prune=prune,
            tokenizer=tokenizer,
            progress=lambda done, total, _: progress(done, total),
        )
    trees_report.tell_build(report, json)
    raise typer.Exit(0 if report.ok else 1)


@app.command()
def show(
    trees: TreesDir,
    execution: Annotated[str, typer.Argument(metavar="EXECUTION", help="Its name.")],
    attempt: Annotated[
        int | None, typer.Option(min=0, help="Which attempt of that name.", show_default="the last")
    ] = None,
    calls: Annotated[
        bool, typer.Option("--calls", help="Every call of each context, with evidence.")
    ] = False,
    width: Annotated[
        int | None, typer.Option(min=20, help="Columns.", show_default="those of the terminal")
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A tokenizer.json: spells prefix breaks under `--calls`."),
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Show one execution: its contexts, where each came from, what of it is trained."""
    from gyre.cli import trees_show
    from gyre.treebuilder import read_trees
    from gyre.treebuilder.offline.text_tokens import speller
    from gyre.treebuilder.score import left_out

    found = read_trees(trees)
    summary = _the_one(found, trees, execution, attempt)
    if summary.skipped is not None:
        output.fail(f"`{execution}` could not be rebuilt: {summary.skipped}", "`gyre log check` may say more")
    key = (summary.execution_id, summary.execution_attempt)
    tree = found.tree(*key)
    worth = trees_show.Worth(found.advantages().get(key), left_out(summary))
    if json:
        output.print_json({"schema": SCHEMA, **trees_show.as_json(summary, tree, worth, calls)})
    else:
        spell = None if tokenizer is None else speller(tokenizer)
        trees_show.print_tree(summary, tree, worth, calls, width, spell)


@app.command()
def stats(trees: TreesDir, json: output.JsonOption = False, quiet: output.QuietOption = False) -> None:
    """All executions in numbers: roles, causes, what is kept, groups and advantages."""
    from gyre.cli import trees_report
    from gyre.treebuilder import read_trees
    from gyre.treebuilder.views.stats import Stats

    found, numbers = read_trees(trees), Stats()
    summaries = found.executions()
    for summary in summaries:
        numbers.add_summary(summary)
    with output.counting("reading trees") as progress:
        for done, (_, tree) in enumerate(found, 1):
            numbers.add_tree(tree)
            progress(done, len(summaries))
    if json:
        output.print_json({"schema": SCHEMA, **numbers.as_dict()})
    else:
        trees_report.print_stats(numbers)


@app.command()
def verify(
    trees: TreesDir,
    logs: Annotated[
        Path | None,
        typer.Option(
            metavar="LOGS", help="The log, when it has moved.", show_default="the one they were built from"
        ),
    ] = None,
    json: output.JsonOption = False,
) -> None:
    """Prove a build from its log: paths, targets, provenance, cap, sums; exit 1 on any violation."""
    from gyre.cli import trees_report
    from gyre.treebuilder.verify import verify_trees

    findings = verify_trees(trees, logs)
    raise typer.Exit(0 if trees_report.tell_findings(findings, json) else 1)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A folder of trees.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Executions and changes of each listed; 0: all.")] = 20,
    json: output.JsonOption = False,
) -> None:
    """Say what another rule, seed, log or version of gyre changed from A to B."""
    from gyre.cli import trees_report
    from gyre.treebuilder import read_trees
    from gyre.treebuilder.views.diff import diff_builds

    with output.counting("comparing") as progress:
        found = diff_builds(read_trees(before), read_trees(after), progress)
    if json:
        output.print_json({"schema": SCHEMA, **found.as_dict()})
    else:
        trees_report.print_diff(found, limit)
    raise typer.Exit(1 if exit_code and found.differs else 0)


@app.command()
def export(
    trees: TreesDir,
    to: Annotated[Format, typer.Option(help="Whose format.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File, or folder for `atif`, to write.")],
    logs: Annotated[
        Path | None, typer.Option(metavar="LOGS", help="For `atif`: the log, when it has moved.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: output.JsonOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Write the kept trajectories for a trainer, every target in one row only, or for a viewer."""
    from gyre.cli import trees_report
    from gyre.treebuilder import read_trees
    from gyre.treebuilder.export.export import export_trees
    from gyre.treebuilder.export.source import Format as Chosen

    with output.counting(f"exporting to {to.value}") as progress:
        report = export_trees(
            read_trees(trees), Chosen(to.value), out, log=logs, force=force, progress=progress
        )
    trees_report.tell_export(report, json)


def _the_one(found: Trees, path: Path, execution: str, attempt: int | None) -> ExecutionSummary:
    summaries = found.executions()
    mine = [summary for summary in summaries if summary.execution_id == execution]
    if not mine:
        near = difflib.get_close_matches(execution, [summary.execution_id for summary in summaries], 1)
        hint = f"did you mean `{near[0]}`?" if near else "`gyre-trees stats` says what there is"
        output.fail(f"no execution `{execution}` in `{path}`", hint)
    numbered = {summary.execution_attempt: summary for summary in mine}
    if attempt is not None and attempt not in numbered:
        output.fail(
            f"`{execution}` has no attempt {attempt}", f"it has {', '.join(map(str, sorted(numbered)))}"
        )
    return numbered[max(numbered) if attempt is None else attempt]


def main(args: Sequence[str] | None = None) -> None:
    """Entry point."""
    if args is None:
        # A process of its own, which nobody else imports into: pyarrow need not load pandas.
        from gyre.proxy.log.record.lean import without_pandas

        without_pandas()
    entry.run(app, "gyre-trees", args)


if __name__ == "__main__":
    main()
