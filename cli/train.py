"""`gyre train`: live, as a run file says, or on a folder of trees. What the command line has for both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from gyre.cli import output

_LIVE, _STORED = "Live, as a run file says", "On stored trees"


def train(
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="RUN.toml", help="Run file: agents, tasks, model.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for checkpoints and metrics: a new one.", show_default="with a run file what it says"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, from its newest checkpoint.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and what it takes. Writes nothing.")
    ] = False,
    batches: Annotated[
        int | None,
        typer.Option(
            min=1, help="Batches to train.", show_default="what the file says", rich_help_panel=_LIVE
        ),
    ] = None,
    unsafe_local: Annotated[
        bool,
        typer.Option(
            "--unsafe-local",
            help="Let agents run commands of a model unconfined where bubblewrap does not work.",
            rich_help_panel=_LIVE,
        ),
    ] = False,
    trees: Annotated[
        Path | None,
        typer.Option(
            help="Folder that `gyre trees build` wrote.", show_default=False, rich_help_panel=_STORED
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What is trained: a Hugging Face folder, `smollm2`, `tiny`.",
            show_default=False,
            rich_help_panel=_STORED,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file, a run file too; settings are in its table `train`.",
            metavar="FILE",
            show_default="defaults",
            rich_help_panel=_STORED,
        ),
    ] = None,
    max_updates: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Stop after so many updates.",
            show_default="all of the data",
            rich_help_panel=_STORED,
        ),
    ] = None,
    json: output.JsonOption = False,
    verbose: output.VerboseOption = False,
    quiet: output.QuietOption = False,
) -> None:
    """Make a model better: exact passes over trees with shared prefixes, GSPO by execution.

    `gyre train RUN.toml`: agents run on tasks, and it learns from what they do.

    `gyre train status RUN`: where such a run stands.

    `gyre train --trees DIR --model PATH --out DIR`: it learns from recorded executions.
    """
    stored = {"--trees": trees, "--model": model, "--config": config, "--max-updates": max_updates}
    if run_file is not None:
        _refuse(stored, "is for stored trees; a run file says it itself")
        from gyre.cli.train_live import train_live

        flags = {
            "out": str(out.absolute()) if out else None,
            "unsafe_local": unsafe_local or None,
            "rollout.batches": batches,
        }
        raise typer.Exit(train_live(run_file, flags, resume=resume, dry_run=dry_run, json=json))
    _refuse({"--batches": batches, "--unsafe-local": unsafe_local or None}, "is for a run file")
    if trees is None or model is None or out is None:
        missing = [name for name, value in (stored | {"--out": out}).items() if value is None]
        needed = [name for name in ("--trees", "--model", "--out") if name in missing]
        raise typer.BadParameter(f"give a run file, or stored trees: {', '.join(needed)} missing")
    from gyre.cli.train_stored import train_stored

    code = train_stored(
        *(trees, model, out, config), max_updates=max_updates, resume=resume, dry_run=dry_run, json=json
    )
    raise typer.Exit(code)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"`{name}` {why}")
