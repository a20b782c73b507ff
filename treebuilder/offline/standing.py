"""What a folder of trees holds already, by the parts' own word. Reads only footers and executions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from gyre.proxy.log.reading.ragged import values_of
from gyre.treebuilder.offline.parts import Part
from gyre.treebuilder.options import Options
from gyre.treebuilder.score import AttemptKey
from gyre.treebuilder.store.folder import TreesFolder, digest_in
from gyre.treebuilder.store.schema import FORMAT_VERSION, SCHEMA_VERSION, TABLES

RULES_VERSION = 3
"""Counts up when the same log and options would give other trees than an earlier gyre built."""
_COLUMNS = ["execution_id", "execution_attempt", "log_digest"]


@dataclass(slots=True)
class Standing:
    """The parts of a folder whose four files belong together."""

    parts: dict[str, str] = field(default_factory=dict)
    """Name -> digest of what it was built from."""
    executions: dict[AttemptKey, tuple[str, str]] = field(default_factory=dict)
    """Attempt -> (part, digest of what its tree was built from); in every readable part."""

    def kept(self, part: Part, key: str) -> dict[AttemptKey, str]:
        """Attempts of `part` that need not be built again, each with the part that has them."""
        return {
            one.key: name
            for one in part.executions
            for name, digest in [self.executions.get(one.key, ("", ""))]
            if digest and digest == one.digest and self.parts.get(name, "").startswith(f"{key}-")
        }


def standing_in(folder: TreesFolder) -> Standing:
    found = Standing()
    for name in folder.names():
        digests = {digest_in(folder.part(table, name)) for table in TABLES}
        digest = digests.pop() if len(digests) == 1 else None
        if digest is not None:
            found.parts[name] = digest
        try:
            table = pq.read_table(folder.part("executions", name), columns=_COLUMNS, partitioning=None)
        except (OSError, pa.ArrowException):
            # Removed or damaged: what it held is built again.
            found.parts.pop(name, None)
            continue
        rows = zip(*(values_of(table[column]) for column in _COLUMNS), strict=True)
        found.executions |= {(execution, attempt): (name, digest) for execution, attempt, digest in rows}
    return found


def build_key(options: Options, tokenizer: str | None) -> str:
    """Everything but the log that decides what trees look like."""
    told = (FORMAT_VERSION, SCHEMA_VERSION, RULES_VERSION, tuple(map(str, options)), tokenizer)
    return xxhash.xxh3_64_hexdigest(repr(told).encode())


def part_digest(key: str, part: Part, digests: Sequence[str]) -> str:
    """What a part is built from: `digests` of its executions, in row groups."""
    left = iter(digests)
    told = [[(one.key, next(left)) for one in group] for group in part.groups]
    return f"{key}-{xxhash.xxh3_128_hexdigest(repr(told).encode())}"
