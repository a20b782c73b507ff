"""What `gyre-trees` says of a build, of many executions, of two builds, of an export."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gyre.cli import output
from gyre.treebuilder.views.stats import Stats, shared_share

if TYPE_CHECKING:
    from gyre.proxy.log.findings import Finding
    from gyre.treebuilder.build import BuildReport
    from gyre.treebuilder.export.source import ExportReport
    from gyre.treebuilder.views.diff import Change, TreesDiff

SCHEMA = 1
GROUPS = 20
"""Groups in the table; `--json` has all."""
NOTES = 50
"""Lines about what is odd in executions; the report has all."""


REMEDIES = {
    "reasoning_stripped": "the template or the harness drops earlier reasoning, so each answer is a stub "
    "beside its path; a switch that preserves thinking (Qwen: chat_template_kwargs) makes one path of them",
    "retokenized": "the engine renders answers with other ids than it sampled, so each is a stub; what puts "
    "sampled text back as it was makes one path of them",
}
"""What to do about prefix breaks that cost shared computation; nothing is lost by them."""


def tell_build(report: BuildReport, json: bool) -> None:
    """The summary on stdout; what was skipped, and what is odd, on stderr."""
    if json:
        output.print_json({"schema": SCHEMA, **report.as_dict()})
    else:
        output.print_table("", ("", "number"), _build_rows(report))
        _table("sampled tokens that are no targets", ("reason", "tokens"), _most(report.totals["untrained"]))
        _table("targets that were not kept", ("reason", "tokens"), _most(report.totals["left_out"]))
    for cause, remedy in REMEDIES.items():
        if count := report.totals["causes"].get(cause):
            output.say(f"note: {output.counted(count, 'call')} {cause}: {remedy}")
    for finding in report.findings:
        text = f"{finding.severity}: {finding.where}: {finding.message}"
        if finding.severity == "error":
            print(text, file=sys.stderr)
        else:
            output.say(text)
    odd = report.totals["disagreements"] + report.totals["problems"]
    for one in odd[:NOTES]:
        output.say(f"note: `{_name((one['execution_id'], one['execution_attempt']))}`: {one['text']}")
    if len(odd) > NOTES:
        output.say(f"note: and {len(odd) - NOTES:,} more; `{report.path / 'report.json'}` has all")
    for name, reason in report.skipped.items():
        print(f"skipped: `{name}`: {reason}", file=sys.stderr)
    if report.skipped:
        all_of_them = output.counted(report.executions, "execution")
        print(f"{len(report.skipped):,} of {all_of_them} could not be rebuilt", file=sys.stderr)


def _build_rows(report: BuildReport) -> list[tuple[str, object]]:
    totals = report.totals
    shared = shared_share(totals["prompt_tokens"], totals["tree_tokens"], totals["sampled_tokens"])
    rows: list[tuple[str, object]] = [
        ("executions", report.executions),
        ("built now", report.rebuilt),
        ("unchanged", report.executions - report.rebuilt),
        ("removed", report.removed),
        ("skipped", len(report.skipped)),
        ("calls", totals["calls"]),
        ("prompt tokens", totals["prompt_tokens"]),
        ("share of these that is shared", shared),
        ("tokens in trees", totals["tree_tokens"]),
        ("sampled", totals["sampled_tokens"]),
        ("targets", totals["targets"]),
        ("kept", totals["kept_targets"]),
        ("kept share", totals["kept_share"]),
        ("delivered share", totals["delivered_share"]),
        ("quarantined links", totals["quarantined"]),
        ("headers and tokens disagree", len(totals["disagreements"])),
    ]
    return [row for row in rows if row[1] or row[0] in _ALWAYS]


def _most(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def print_stats(stats: Stats) -> None:
    _print_totals(stats)
    roles = [
        (role.value, s.contexts, s.calls, s.prompt_tokens, s.output_tokens, s.targets, s.kept_targets)
        for role, s in stats.roles.items()
    ]
    columns = ("role", "contexts", "calls", "prompt tokens", "output tokens", "targets", "kept")
    _table("roles", columns, roles)
    kinds = sorted({confidence for _, confidence in stats.links})
    causes = sorted({cause for cause, _ in stats.links})
    links = [(cause, *(stats.links[cause, kind] for kind in kinds)) for cause in causes]
    _table("links", ("cause", *kinds), links)
    shares = [(name, share) for name, share in stats.kept_quantiles().items()]
    _table("kept share of targets, over executions", ("quantile", "share"), shares)
    _table("sampled tokens that are no targets", ("reason", "tokens"), stats.untrained.most_common())
    _table("targets that were not kept", ("reason", "tokens"), stats.left_out.most_common())
    _table("executions that are not trained", ("reason", "executions"), stats.unscored.most_common())
    _print_groups(stats)


def _print_totals(stats: Stats) -> None:
    rows: list[tuple[str, object]] = [
        ("executions", stats.executions),
        ("skipped", sum(stats.skipped.values())),
        ("superseded by a later attempt", stats.superseded),
        ("from texts only", stats.text_only),
        ("calls", stats.calls),
        ("contexts", stats.contexts),
        ("prompt tokens", stats.prompt_tokens),
        ("share of these that is shared", stats.shared_share),
        ("tokens in trees", stats.tree_tokens),
        ("sampled", stats.sampled_tokens),
        ("targets", stats.targets),
        ("kept", stats.kept_targets),
        ("kept share", stats.kept_share),
        ("quarantined links", stats.quarantined),
        ("headers and tokens disagree", stats.disagreements),
    ]
    output.print_table("", ("", "number"), [row for row in rows if row[1] or row[0] in _ALWAYS])


_ALWAYS = ("executions", "built now", "unchanged", "calls", "targets", "kept")


def _print_groups(stats: Stats) -> None:
    groups = stats.groups()
    rows = [
        (
            g.name if g.kind == "group" else f"{g.name} ({g.kind})",
            g.executions,
            g.mean,
            g.least,
            g.most,
            min(g.advantages.values()),
            max(g.advantages.values()),
        )
        for g in groups[:GROUPS]
    ]
    columns = ("group", "executions", "mean", "least", "most", "least advantage", "most advantage")
    _table("scores", columns, rows)
    if len(groups) > GROUPS:
        output.say(f"{GROUPS} of {len(groups):,} groups; `--json` has all")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A further table, unless it would be empty."""
    if rows:
        # Not as the table's own title, which would be folded to its width.
        print(f"\n{title}")
        output.print_table("", columns, rows)


def tell_findings(findings: Sequence[Finding], json: bool) -> bool:
    """Whether none is an error."""
    ok = not any(finding.severity == "error" for finding in findings)
    if json:
        document = {"schema": SCHEMA, "ok": ok, "findings": [finding.as_dict() for finding in findings]}
        output.print_json(document)
        return ok
    if findings:
        rows = [(f.severity, f.code, f.where, f.message) for f in findings]
        output.print_table("", ("severity", "code", "where", "what"), rows)
    proven = "no errors, but see the notes" if findings else "the trees are what the log says"
    output.say(proven if ok else "the trees are not what the log says")
    return ok


def print_diff(diff: TreesDiff, limit: int) -> None:
    """At most `limit` executions, and changes of each; 0 for all."""
    for name, (before, after) in diff.options.items():
        print(f"built with {name} {before} and {after}")
    _print_names("only in the second", diff.added, limit)
    _print_names("only in the first", diff.removed, limit)
    for one in diff.changed[: limit or None]:
        print(f"{_name((one.execution_id, one.execution_attempt))}: {_summed(one.changes)}")
        for change in one.changes[: limit or None]:
            print(f"  {_change(change)}")
        if limit and len(one.changes) > limit:
            print(f"  ... and {len(one.changes) - limit:,} more")
    if limit and len(diff.changed) > limit:
        print(f"... and {output.counted(len(diff.changed) - limit, 'more execution')}")
    output.say(f"{diff.same:,} the same, {len(diff.changed):,} changed")


def _print_names(title: str, names: Sequence[tuple[str, int]], limit: int) -> None:
    if names:
        shown = ", ".join(map(_name, names[: limit or None]))
        print(
            f"{title}: {output.counted(len(names), 'execution')}: {shown}"
            + (", ..." if 0 < limit < len(names) else "")
        )


def _summed(changes: Sequence[Change]) -> str:
    counts: dict[str, int] = {}
    for change in changes:
        counts[change.what] = counts.get(change.what, 0) + 1
    return ", ".join(f"{what} {count:,}" for what, count in counts.items())


def _change(change: Change) -> str:
    where = f"{change.call.call_id} " if change.call else ""
    if change.what == "trajectories" and isinstance(change.before, list) and isinstance(change.after, list):
        gone = [f"\n    - {path}" for path in change.before]
        return "trajectories" + "".join(gone + [f"\n    + {path}" for path in change.after])
    return f"{where}{change.what}: {_value(change.before)} -> {_value(change.after)}"


def _value(value: object) -> str:
    """A call by its id alone."""
    if isinstance(value, tuple) and value:
        return str(value[0])
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _name(key: tuple[str, int]) -> str:
    return f"{key[0]} attempt {key[1]}" if key[1] else key[0]


def tell_export(report: ExportReport, json: bool) -> None:
    if json:
        names = ("executions", "rows", "tokens", "targets", "left_out")
        numbers = {name: getattr(report, name) for name in names}
        output.print_json({"schema": SCHEMA, "format": report.format, "path": report.path, **numbers})
        return
    rows = [("executions", report.executions), ("rows", report.rows)]
    rows += [("tokens", report.tokens), ("targets", report.targets)]
    output.print_table("", (report.format.value, "number"), rows)
    tell_reasons("executions that are not in it", report.left_out)
    if not report.rows and report.left_out.get("no_score"):
        output.say("nothing is in it: `gyre log score` records what executions are worth")
    output.say(f"written to {report.path}")


def tell_reasons(what: str, reasons: Mapping[str, int]) -> None:
    if reasons:
        output.say(
            f"{what}: " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
        )
