"""ENTRY of the offline side: a log in, a folder of trees out.

    report = build_trees("logs", "trees", options=Options(cap=5))

A build works out from the log which parts there should be and what each is built from, and makes those
that are not there yet. So it does only what is new, gives the same bytes in whatever steps and by
however many processes, and takes up what a killed build left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.proxy.errors import CorruptLogError
from gyre.proxy.log.findings import Finding, Severity, note
from gyre.proxy.log.reading.read import Log, read_log
from gyre.treebuilder.errors import TreeError
from gyre.treebuilder.offline.jobs import carry_out
from gyre.treebuilder.offline.making import Slicer, Task
from gyre.treebuilder.offline.parts import Limits, Part, split
from gyre.treebuilder.offline.standing import Standing, build_key, part_digest, standing_in
from gyre.treebuilder.offline.survey import Found, survey
from gyre.treebuilder.offline.text_tokens import digest_of
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import Scores
from gyre.treebuilder.store.folder import (
    MANIFEST,
    REPORT,
    Manifest,
    PartEntry,
    TreesFolder,
    as_json,
    checksum,
    create_folder,
)
from gyre.treebuilder.store.read import Trees
from gyre.treebuilder.store.report import report_of
from gyre.treebuilder.store.schema import TABLES
from gyre.treebuilder.store.write import commit

Progress = Callable[[int, int, str], None]
"""Called with (executions done, executions to do, name of the last one)."""

UNKNOWN = 20
"""Executions named that have a score and no rows: scores may be those of many logs."""


@dataclass(slots=True)
class BuildReport:
    """What a build did. `totals` is what `report.json` says of the whole folder."""

    path: Path
    executions: int
    rebuilt: int
    """Attempts that were built in this run; the others had not changed."""
    removed: int
    """Attempts whose trees went because the log has them no longer."""
    parts_written: int
    skipped: dict[str, str]
    """Executions that could not be rebuilt, with the reason."""
    findings: list[Finding]
    """What reading the log had to tell."""
    totals: dict[str, Any]

    @property
    def ok(self) -> bool:
        """Whether every execution was rebuilt, from a log without errors."""
        return not self.skipped and not any(each.severity == Severity.ERROR for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        done = {"rebuilt": self.rebuilt, "removed": self.removed, "parts_written": self.parts_written}
        return {"ok": self.ok, "path": str(self.path), **done, "report": self.totals}


def build_trees(
    log: str | Path | Log,
    out: str | Path,
    *,
    options: Options | None = None,
    scores: Scores | None = None,
    jobs: int = 1,
    strict: bool = False,
    prune: bool = False,
    tokenizer: str | Path | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> BuildReport:
    """Rebuild the executions of a log into `out`; only what is new there is built.

    Args:
        scores: outweigh what the log says, see `gyre.treebuilder.scores_file.read_scores`.
        jobs: processes; a script that asks for more than one needs `if __name__ == "__main__":`.
        strict: raise on the first execution that cannot be rebuilt, instead of storing why.
        prune: remove trees of executions that are no longer in the log.
        tokenizer: a tokenizer.json that counts the texts of executions without token ids.
        limits: how large parts and row groups get.

    Raises:
        LogError: no log, or one of a newer format.
        TreeError: `out` cannot be built into, or has executions that the log has no longer.
        ExecutionError: with `strict`.
    """
    snapshot = log if isinstance(log, Log) else read_log(log)
    words = Path(tokenizer) if tokenizer else None
    manifest = Manifest(options or Options(), str(snapshot.folder.root), digest_of(words) if words else None)
    folder = create_folder(out)
    with folder.building():
        build = _Build(folder, snapshot, manifest, strict, words)
        return build.run(scores or {}, prune, limits or Limits(), max(1, jobs), progress)


@dataclass(slots=True)
class _Build:
    folder: TreesFolder
    log: Log
    manifest: Manifest
    strict: bool
    tokenizer: Path | None

    def run(
        self, scores: Scores, prune: bool, limits: Limits, jobs: int, progress: Progress | None
    ) -> BuildReport:
        last = self.folder.last()
        found = survey(self.log, scores)
        self.log.problems += _unknown(scores, found)
        if self.strict:
            _require_whole(self.log.problems)
        standing = standing_in(self.folder)
        gone = standing.executions.keys() - {one.key for one in found}
        if gone and not prune:
            raise _vanished(self.folder, sorted(name for name, _ in gone), self.log.problems)
        parts = split(found, limits)
        key = build_key(self.manifest.options, self.manifest.tokenizer)
        todo = [part for part in parts if not _stands(part, standing, key)]
        surplus = set(self.folder.names()) - {part.name for part in parts}
        if todo or surplus:
            self.folder.write(MANIFEST, self.manifest.as_json())
        entries = {part.name: part for part in last.parts} if last else {}
        entries = {name: entry for name, entry in entries.items() if standing.parts.get(name) == entry.digest}
        tasks = self._tasks(todo, found, standing, entries, key)
        written, built, findings = self._carry_out(tasks, jobs, _counted(todo, progress))
        for name in surplus:
            self.folder.remove(name)
        entries |= written
        self.manifest.parts = [entries.get(part.name) or self._entry(part, standing) for part in parts]
        return self._finish(found, built, len(gone), len(written), [*self.log.problems, *findings])

    def _tasks(
        self,
        todo: list[Part],
        found: list[Found],
        standing: Standing,
        entries: dict[str, PartEntry],
        key: str,
    ) -> list[Task]:
        sums = {name: entry.checksums for name, entry in entries.items()}
        slicer = Slicer(self.log, found)
        return [
            Task(
                part=part,
                log=slicer.cut(part),
                options=self.manifest.options,
                strict=self.strict,
                tokenizer=self.tokenizer,
                folder=self.folder,
                kept=standing.kept(part, key),
                sums=sums,
                key=key,
            )
            for part in todo
        ]

    def _carry_out(
        self, tasks: list[Task], jobs: int, done: Callable[[str], None]
    ) -> tuple[dict[str, PartEntry], int, list[Finding]]:
        """Write the parts; one whose old files others are copied from counts when all are written."""
        needed = {name for task in tasks for name in task.kept.values() if name != task.part.name}
        written: dict[str, PartEntry] = {}
        findings: list[Finding] = []
        built = 0
        self.folder.sweep()
        try:
            for one in carry_out(tasks, jobs, done):
                written[one.entry.name] = one.entry
                findings += one.findings
                built += one.built
                if one.entry.name not in needed:
                    commit(self.folder, one.entry)
            for name in needed & written.keys():
                commit(self.folder, written[name])
        finally:
            self.folder.sweep()
        return written, built, findings

    def _entry(self, part: Part, standing: Standing) -> PartEntry:
        """Of a part that a killed build left finished."""
        sums = {table: checksum(self.folder.part(table, part.name)) for table in TABLES}
        return PartEntry(part.name, standing.parts[part.name], sums)

    def _finish(
        self, found: list[Found], built: int, removed: int, written: int, findings: Sequence[Finding]
    ) -> BuildReport:
        self.manifest.complete = True
        summaries = Trees(self.folder, self.manifest).executions()
        findings = sorted(
            set(findings), key=lambda each: (each.severity, each.code, each.where, each.message)
        )
        totals = report_of(self.manifest, summaries, findings)
        self.folder.write(REPORT, as_json(totals))
        self.folder.write(MANIFEST, self.manifest.as_json())
        skipped = {
            _name(one.execution_id, one.execution_attempt): one.skipped for one in summaries if one.skipped
        }
        return BuildReport(
            self.folder.root, len(found), built, removed, written, skipped, list(findings), totals
        )


def _stands(part: Part, standing: Standing, key: str) -> bool:
    """Whether the part is there as it should be. What was skipped for damage is always tried again."""
    digests = [one.digest for one in part.executions]
    return all(digests) and standing.parts.get(part.name) == part_digest(key, part, digests)


def _counted(todo: list[Part], progress: Progress | None) -> Callable[[str], None]:
    total = sum(len(part.executions) for part in todo)
    done = 0

    def tell(name: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, name)

    return tell


def _unknown(scores: Scores, found: list[Found]) -> list[Finding]:
    """A misspelt name must not pass for an execution without a score."""
    known = {one.key for one in found} | {(one.key[0], None) for one in found}
    names = [name if attempt is None else _name(name, attempt) for name, attempt in scores.keys() - known]
    told = [note("unknown_execution", name, "has a score and no rows") for name in sorted(names)[:UNKNOWN]]
    if len(names) > UNKNOWN:
        text = f"and {len(names) - UNKNOWN:,} more executions have a score and no rows"
        told.append(note("unknown_execution", "scores", text))
    return told


def _require_whole(problems: Sequence[Finding]) -> None:
    for problem in problems:
        if problem.severity == Severity.ERROR:
            raise CorruptLogError(f"{problem.where}: {problem.message}", "`gyre log check` tells more")


def _vanished(folder: TreesFolder, names: list[str], problems: Sequence[Finding]) -> TreeError:
    shown = ", ".join(f"`{name}`" for name in names[:3]) + (
        f" and {len(names) - 3} more" if names[3:] else ""
    )
    text = f"`{folder.root}` has trees of executions that are no longer in the log: {shown}"
    lost = next((each for each in problems if each.severity == Severity.ERROR), None)
    if lost is not None:
        hint = "they may be in what is damaged; `gyre log check` tells more, another folder keeps these trees"
        return TreeError(f"{text}; {lost.where}: {lost.message}", hint)
    return TreeError(text, "build with `--prune` to remove them, or into another folder to keep them")


def _name(execution_id: str, attempt: int) -> str:
    return execution_id if attempt == 0 else f"{execution_id} (attempt {attempt})"
