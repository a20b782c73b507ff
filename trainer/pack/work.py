"""How much a piece takes, and how much it would take path by path."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gyre.trainer.pack.piece import Piece

LINEAR = 4096.0
"""What a token's matrix multiplications cost in attention pairs: about six times the hidden size, for
24 D^2 FLOPs of a layer's weights a token against 4 D of a pair. Right for models of 100M to 1B; a larger
model's is higher, and long paths then weigh less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Of one piece, or of several added up.

    Pairs are those that attention has to look at: a token with itself and all before it on its path.
    """

    tokens: int = 0
    context: int = 0
    """Of the tokens those that a piece before computes as well."""
    targets: int = 0
    pairs: int = 0
    paths: int = 0
    """From a root to a leaf."""
    flat_tokens: int = 0
    """Of all paths, each alone."""
    flat_pairs: int = 0
    longest_path: int = 0
    """Tokens."""

    def __add__(self, other: Work) -> Work:
        return Work(
            tokens=self.tokens + other.tokens,
            context=self.context + other.context,
            targets=self.targets + other.targets,
            pairs=self.pairs + other.pairs,
            paths=self.paths + other.paths,
            flat_tokens=self.flat_tokens + other.flat_tokens,
            flat_pairs=self.flat_pairs + other.flat_pairs,
            longest_path=max(self.longest_path, other.longest_path),
        )

    @property
    def shared(self) -> float:
        """Share of the tokens of all paths that need not be computed; 0 to 1."""
        return 1 - self.tokens / self.flat_tokens if self.flat_tokens else 0.0


def measure(piece: Piece) -> Work:
    lengths_N = piece.position_ids_N + 1
    lengths = lengths_N[piece.tout_N == np.arange(1, len(piece) + 1)]
    return Work(
        tokens=len(piece),
        context=piece.context,
        targets=len(piece.source_K),
        pairs=int(lengths_N.sum()),
        paths=len(lengths),
        flat_tokens=int(lengths.sum()),
        flat_pairs=int((lengths * (lengths + 1) // 2).sum()),
        longest_path=int(lengths.max(initial=0)),
    )


def cost(tokens: int, pairs: int, linear: float = LINEAR) -> float:
    """Work in attention pairs; `linear` is what one token's matrix multiplications are worth.

    The head is left out: targets are nearly as many as tokens in some trees and few in others, but they lie
    where the tokens do.
    """
    return tokens * linear + pairs
