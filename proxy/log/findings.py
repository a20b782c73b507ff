"""What reading a log may have to tell: values that `read_log`, `check` and `seal` share."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    """Recorded data is missing or differs from what was captured."""
    NOTE = "note"
    """Worth knowing; the rest of the log is whole."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    code: str
    """Stable name of the kind of finding, for scripts."""
    where: str
    """The file or call it is about."""
    message: str

    def as_dict(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def error(code: str, where: str, message: str) -> Finding:
    return Finding(Severity.ERROR, code, where, message)


def note(code: str, where: str, message: str) -> Finding:
    return Finding(Severity.NOTE, code, where, message)
