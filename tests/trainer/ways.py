"""The ways to run a tree that the tests compare, by name."""

from __future__ import annotations

from collections.abc import Callable

from gyre.trainer.passes.dfs import DfsPass
from gyre.trainer.passes.flat import FlatPass
from gyre.trainer.passes.packed import PackedPass
from gyre.trainer.passes.policy import Policy
from gyre.trainer.passes.run import TreePass

Make = Callable[[Policy], TreePass]

LARGE = 1 << 20
WAYS: dict[str, Make] = {
    "flat": FlatPass,
    "flat in batches": lambda policy: FlatPass(policy, rows_tokens=40),
    "packed": PackedPass,
    "packed in tiles": lambda policy: PackedPass(policy, tile_rows=6, tile_call=0),
    "dfs": lambda policy: DfsPass(policy, budget=LARGE, recompute=False, together=0),
    "dfs, small subtrees at once": lambda policy: DfsPass(policy, budget=LARGE, recompute=False, together=8),
    "dfs, computed twice": lambda policy: DfsPass(policy, budget=4, recompute=True),
    "dfs as it comes": lambda policy: DfsPass(policy, budget=LARGE),
}
"""Trees of tests are small: `dfs` as it comes takes a whole one for one visit, and `packed` for one tile."""
