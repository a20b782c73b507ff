"""Sampling noise as a function of (seed, position): a continuation needs no saved generator. Pure."""

from __future__ import annotations

import hashlib
import struct

_PERSON = b"gyre noise"
_SCALE = 2.0**-53
_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) for the token at `position` of a sequence."""
    return (_hash(seed, position) >> 11) * _SCALE


def seed_of_choice(seed: int, choice: int) -> int:
    """The seed of a call's n-th choice: its own for the first, others that follow from it."""
    return seed if choice == 0 else _hash(seed, -choice) >> 1


def _hash(seed: int, position: int) -> int:
    packed = struct.pack("<Qq", seed & _MASK, position)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8, person=_PERSON).digest(), "little")
