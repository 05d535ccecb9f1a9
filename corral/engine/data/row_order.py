"""In which order rows are seen: a pure function of seed and step, so that a restart changes nothing."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class RowShare:
    """Which batches of the walk one replica takes: every `of`-th, from its own on. No two take the same."""

    replica: int = 0
    of: int = 1

    def batch_of(self, step: int) -> int:
        return step * self.of + self.replica


class RowOrder:
    """An endless walk over `n` rows, reshuffled for each epoch.

    Batches are consecutive pieces of the walk, so one may hold the end of an epoch and the beginning of the
    next. Nothing is kept between calls: any step can be asked for first.
    """

    def __init__(self, n: int, seed: int) -> None:
        if n < 1:
            raise ValueError(f"an order needs at least one row, not {n}")
        self.n = n
        self.seed = seed

    def batch(self, step: int, size: int, *, stop: int | None = None) -> list[int]:
        """The rows of `step` (from 0). With `stop`, the walk ends after that many rows: the last batch is
        then shorter, and later ones are empty."""
        if step < 0 or size < 1:
            raise ValueError(f"step must be at least 0 and size at least 1, not {step} and {size}")
        begin = step * size
        end = begin + size if stop is None else min(begin + size, stop)
        return [self[place] for place in range(begin, end)]

    def steps(self, size: int, epochs: float) -> int:
        """How many batches of `size` it takes to see every row `epochs` times."""
        return -(-self.rows(epochs) // size)

    def rows(self, epochs: float) -> int:
        """How many rows `epochs` are; the value for `stop`."""
        return max(1, round(self.n * epochs))

    def __getitem__(self, place: int) -> int:
        epoch, within = divmod(place, self.n)
        return permutation(self.n, self.seed, epoch)[within]


@lru_cache(maxsize=4)
def permutation(n: int, seed: int, epoch: int) -> Sequence[int]:
    """The order of `n` rows in one epoch, equal on every machine and Python version."""
    digest = hashlib.sha256(f"corral order {seed} {epoch}".encode()).digest()
    # Of Python's generator only random() is promised never to change; shuffle() is not.
    draw = random.Random(int.from_bytes(digest, "big")).random
    keys = [draw() for _ in range(n)]
    return array("q", sorted(range(n), key=keys.__getitem__))
