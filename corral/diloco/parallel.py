"""Work on parts of large arrays by several threads: numpy, hashlib and files let the interpreter go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

# So many parts are held in memory at once; more threads than this gain little.
_THREADS = min(8, os.cpu_count() or 1)
# Each of those waits for a store most of the time.
READERS = 4
# Numbers in a part of an array: 4 MB, which a core's cache nearly holds.
STRETCH = 1 << 20


def each(work: Callable[[T], R], parts: Iterable[T], threads: int = _THREADS) -> list[R]:
    """What `work` gives for every part, in order. One part alone needs no thread."""
    parts = list(parts)
    if len(parts) < 2 or threads < 2:
        return [work(part) for part in parts]
    # A pool that stays would be broken in a forked child.
    with ThreadPoolExecutor(min(threads, len(parts)), "corral-diloco") as pool:
        return list(pool.map(work, parts))


def stretches(size: int, most: int = STRETCH) -> list[slice]:
    """Slices that cover `size` things, each of `most` but the last."""
    return [slice(at, min(at + most, size)) for at in range(0, size, most)]
