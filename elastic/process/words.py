"""What a program said last: for whoever has to tell why it is gone."""

from __future__ import annotations

from pathlib import Path

from gyre.elastic.process.left import read_end

_TAIL = 8192
_LINE = 300


def last_lines(path: Path, count: int) -> list[str]:
    """Its last lines that are not blank, each cut to a readable length; none where it cannot be read."""
    try:
        text = (read_end(path, _TAIL) or b"").decode(errors="replace")
    except OSError:
        return []
    lines = ("".join(c for c in line if c.isprintable()).strip() for line in text.splitlines())
    return [line[:_LINE] for line in lines if line][-count:]


def complaint(path: Path) -> tuple[str, str]:
    """(what is wrong, what to do) as a gyre command says it; of another program its last line, if any."""
    lines = last_lines(path, 40)
    said = dict(line.split(": ", 1) for line in lines if line.startswith(("error: ", "hint: ")))
    return said.get("error", lines[-1] if lines else ""), said.get("hint", "")
