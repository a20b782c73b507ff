"""One execution's row: what it was, how it ended, what of it is trained. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ExecutionSummary:
    execution_id: str
    execution_attempt: int = 0
    skipped: str | None = None
    """Why it could not be rebuilt; then it has no nodes, links or trajectories."""
    superseded: bool = False
    """A later attempt of the same name exists: at most one attempt is trained."""
    exact: bool = True
    task: str | None = None
    group: str | None = None
    outcome: str | None = None
    """`ExecutionOutcome` as recorded; None while nothing was said."""
    score: float | None = None
    reason: str | None = None
    artifact: str | None = None
    evaluation: bool = False
    calls: int = 0
    contexts: int = 0
    prompt_tokens: int = 0
    """Sum of all prompts as the engine saw them."""
    tree_tokens: int = 0
    """Tokens in the tree: each shared prefix once."""
    sampled_tokens: int = 0
    """Unique sampled tokens."""
    targets: int = 0
    kept_targets: int = 0
    trajectories: int = 0
    """Admitted slots, at most `cap`."""
    quarantined: int = 0
    """Links that were not decided."""
    left_out: dict[str, int] = field(default_factory=dict)
    untrained: dict[str, int] = field(default_factory=dict)
    causes: dict[str, int] = field(default_factory=dict)
    """Links by cause."""
    disagreements: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log_digest: str = ""
    """Changes with every row of the log that this tree depends on."""

    @property
    def kept_share(self) -> float:
        return self.kept_targets / self.targets if self.targets else 1.0
