"""What every side does: the same counts, the same clock."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

WARM = 50


def sizes() -> tuple[int, int, int, int]:
    """How many calls one after the other, how many at once, how many MB, how many starts; 0 for none."""
    one, many, mb, starts = (int(text) for text in sys.argv[1:5])
    return one, many, mb, starts


def one_by_one(call: Callable[[int], Any], count: int) -> list[float]:
    for n in range(min(WARM, count)):
        call(n)
    spent = []
    for n in range(count):
        began = time.perf_counter()
        got = call(n)
        spent.append((time.perf_counter() - began) * 1000)
        if got != n:
            raise RuntimeError(f"{got!r} came back for {n}")
    return spent


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    got = work()
    return time.perf_counter() - began, got


def large(call: Callable[[Any], Any], mb: int) -> dict[str, float]:
    """Bytes and an array of that size, there and back: of each the best of three."""
    data = os.urandom(1 << 20) * mb
    found = {"big_s": float("inf"), "array_s": float("inf")}
    for n in range(3):
        part = data[:-4] + n.to_bytes(4, "big")
        array: Any = numpy.frombuffer(part, dtype=numpy.float32)
        for name, given in (("big_s", part), ("array_s", array)):
            spent, got = timed(partial(call, given))
            if type(got) is not type(given) or bytes(memoryview(got).cast("B")) != part:
                raise RuntimeError("something else came back")
            found[name] = min(found[name], spent)
    return found


def copied_twice(mb: int) -> float:
    """The same bytes as a file, copied there and back, each copy synced; the best of three."""
    best = float("inf")
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in "abc"]
        with open(paths[0], "wb") as file:
            file.write(os.urandom(1 << 20) * mb)
        for _ in range(3):
            best = min(best, timed(partial(_copied, paths))[0])
            for path in paths[1:]:
                os.unlink(path)
    return best


def _copied(paths: list[str]) -> None:
    for source, target in itertools.pairwise(paths):
        shutil.copyfile(source, target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())


def tell(**found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
