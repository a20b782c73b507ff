"""Sampling noise as a function of (seed, position): a continuation needs no saved generator. Pure."""

from __future__ import annotations

import hashlib
import struct

_PERSON = b"gyre noise"
_SCALE = 2.0**-53
_MASK = (1 << 64) - 1


def uniforms(seed: int, position: int) -> list[float]:
    """Four numbers in [0, 1) for the token at `position` of a sequence."""
    return [(number >> 11) * _SCALE for number in _hash(seed, position)]


def seed_of_choice(seed: int, choice: int) -> int:
    """The seed of a call's n-th choice: its own for the first, others that follow from it."""
    return seed if choice == 0 else _hash(seed, -choice)[0] >> 1


def _hash(seed: int, position: int) -> tuple[int, ...]:
    packed = struct.pack("<Qq", seed & _MASK, position)
    return struct.unpack("<4Q", hashlib.blake2b(packed, digest_size=32, person=_PERSON).digest())
