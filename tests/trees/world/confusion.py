"""Links that were found, against the truth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gyre.treebuilder.trees import CallKey, Confidence, ExecutionTree, Link, Role
from tests.trees.world.row import Row
from tests.trees.world.truth import Decided, Truth


def quarantined(link: Link) -> bool:
    return link.confidence is Confidence.QUARANTINED


def wrong(link: Link, truth: Truth) -> list[str]:
    """In what a link differs from the truth."""
    pairs = {
        "cause": (link.cause, truth.cause),
        "step": (link.step, truth.step),
        "origin": (truth.origin if link.origin == truth.also else link.origin, truth.origin),
        "role": (link.role, truth.role),
        "family": (link.family if truth.family else None, truth.family),
    }
    return [f"{name}: found {found}, is {real}" for name, (found, real) in pairs.items() if found != real]


def misgrouped(tree: ExecutionTree, rows: list[Row], labels: bool) -> list[str]:
    """Calls whose contexts are not those of the truth, one to one."""
    found: dict[int, int] = {}
    real: dict[int, int] = {}
    wrong = []
    truths = {row.key: row.truth for row in rows}
    for link in tree.links:
        truth = truths[link.call]
        if truth.open_to(labels) or quarantined(link):
            continue
        same = real.setdefault(link.context_id, truth.context) == truth.context
        if found.setdefault(truth.context, link.context_id) != link.context_id or not same:
            wrong.append(f"{link.call} is in context {link.context_id}, truly {truth.context}")
    return wrong


@dataclass
class Confusion:
    """Counts over many trees."""

    labels: bool
    ids: bool = True
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    decidable: int = 0
    right: int = 0
    silent: list[str] = field(default_factory=list)
    """Wrong, and not quarantined."""
    guessed: list[str] = field(default_factory=list)
    """Open by construction, and not quarantined."""

    def add(self, tree: ExecutionTree, rows: list[Row]) -> None:
        truths = {row.key: row.truth if self.ids else row.truth.without_ids() for row in rows}
        for link in tree.links:
            self._add(link, truths[link.call], link.call)

    def _add(self, link: Link, truth: Truth, key: CallKey) -> None:
        found = "quarantined" if quarantined(link) else name_of(link.cause, link.step)
        if truth.open_to(self.labels):
            self.counts["open", found] += 1
            if not quarantined(link) or link.role is not Role.UNKNOWN:
                self.guessed.append(f"{key}: {link}")
            return
        differences = wrong(link, truth)
        self.counts[name_of(truth.cause, truth.step), found] += 1
        if self.labels or truth.decided not in (Decided.HARDLY, Decided.NEVER_HARDLY):
            self.decidable += 1
            self.right += not differences
        claimed = [text for text in differences if not text.startswith("role: found unknown")]
        if claimed and not quarantined(link):
            self.silent.append(f"{key}: {'; '.join(differences)}")

    def merge(self, other: Confusion) -> None:
        self.counts += other.counts
        self.decidable += other.decidable
        self.right += other.right
        self.silent += other.silent
        self.guessed += other.guessed

    @property
    def share(self) -> float:
        return self.right / self.decidable

    def table(self) -> str:
        """The matrix, without its zeros: a line per truth, what was found most first."""
        lines = [f"{'truth':36}{'calls':>6}  found"]
        for real in sorted({real for real, _ in self.counts}):
            found = Counter({name: count for (row, name), count in self.counts.items() if row == real})
            cells = ", ".join(f"{name} {count}" for name, count in found.most_common())
            lines.append(f"{real:36}{found.total():6}  {cells}")
        lines.append(f"right: {self.right} of {self.decidable} decidable ({100 * self.share:.2f} %)")
        return "\n".join(lines)


def name_of(cause: str, step: str | None) -> str:
    return f"{cause} {step}" if step else str(cause)
