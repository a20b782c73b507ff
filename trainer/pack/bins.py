"""Things of given sizes into the fewest bins, the emptiest as empty as it gets."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

_SEARCHED = 128
"""Things that one search for a full bin looks at: among that many nearly every size can be made up."""


def fill_bins(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of what each bin holds; what is larger than `capacity` has a bin of its own.

    Bin packing is NP-hard. This is the better of two heuristics, by number of bins and then by how unequal
    their loads are: best fit decreasing (never above 11/9 of the fewest bins + 4; Johnson 1973), and bins
    filled one by one to the highest sum that can be made up with the largest thing left.
    """
    order = sorted(range(len(sizes)), key=lambda index: (-sizes[index], index))
    alone = [[index] for index in order if sizes[index] > capacity]
    fitting = order[len(alone) :]
    if sum(sizes[index] for index in fitting) <= capacity:
        return [*alone, fitting] if fitting else alone
    tries = (_best_fit(sizes, capacity, fitting), _full_ones(sizes, capacity, fitting))
    return alone + min(tries, key=lambda bins: _spread(sizes, bins))


def _spread(sizes: Sequence[int], bins: Sequence[Sequence[int]]) -> tuple[int, int]:
    return len(bins), -sum(sum(sizes[index] for index in held) ** 2 for held in bins)


def _best_fit(sizes: Sequence[int], capacity: int, order: Sequence[int]) -> list[list[int]]:
    """Each into the fullest bin that has room, the largest first."""
    bins: list[list[int]] = []
    rooms: list[tuple[int, int]] = []
    for index in order:
        at = bisect_left(rooms, (sizes[index], 0))
        room, chosen = rooms.pop(at) if at < len(rooms) else (capacity, len(bins))
        if chosen == len(bins):
            bins.append([])
        bins[chosen].append(index)
        insort(rooms, (room - sizes[index], chosen))
    return bins


def _full_ones(sizes: Sequence[int], capacity: int, order: Sequence[int]) -> list[list[int]]:
    """One bin after the other: the largest left, and what fills it best."""
    bins, left = [], list(order)
    while left:
        first, *others = left
        held = {first, *_closest_sum(sizes, capacity - sizes[first], others[:_SEARCHED])}
        bins.append([index for index in left if index in held])
        left = [index for index in left if index not in held]
    return bins


def _closest_sum(sizes: Sequence[int], room: int, among: Sequence[int]) -> list[int]:
    """A subset with the highest sum that is not above `room`; sets of sums are the bits of an integer."""
    mask = (1 << room + 1) - 1
    sums = [1]
    for index in among:
        sums.append((sums[-1] | sums[-1] << sizes[index]) & mask)
    total, chosen = sums[-1].bit_length() - 1, []
    for index, reached in zip(reversed(among), reversed(sums[:-1]), strict=True):
        if not reached >> total & 1:
            chosen.append(index)
            total -= sizes[index]
    return chosen
