"""Masks as numbers to add to scores, and the one of which those of all runs are parts.

Shapes: R rows, L keys of a run, C all keys of a band.
"""

from __future__ import annotations

import torch


def near(distance: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys so far above a query it sees, along a path; `window`: so many, itself counted."""
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def bias(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """To be added to scores. A boolean mask would be turned into this in every layer, and kept there."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def band(rows: int, keys: int, window: int | None, like: torch.Tensor) -> torch.Tensor:
    """(R, C) for runs of up to so many rows and keys. Row i sees itself, which is number C - R + i."""
    index_R1 = torch.arange(rows, device=like.device)[:, None]
    distance_RC = index_R1 + keys - torch.arange(keys + rows, device=like.device)
    return bias(near(distance_RC, window), like.dtype)


def cut_out(band_RC: torch.Tensor, rows: int, keys: int) -> torch.Tensor:
    """(R, L) of a run: the last key is its last row's own."""
    stop = band_RC.shape[1] - band_RC.shape[0] + rows
    return band_RC[:rows, stop - keys : stop]
