"""Completion indexes as text: "0,2-4"."""

from __future__ import annotations

from collections.abc import Iterable


def compressed(indexes: Iterable[int]) -> str:
    """Three or more in a row are written with a hyphen, two with a comma."""
    runs: list[list[int]] = []
    for index in sorted(set(indexes)):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def parsed(text: str, *, below: int) -> frozenset[int]:
    """The indexes that a text names, without those that a Job that shrank no longer has."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(index for index in found if index < below)


def wrong_indexes(text: str, *, below: int) -> str:
    """What is wrong with indexes that a user wrote; empty when nothing is."""
    last_seen = -1
    for part in text.split(","):
        bounds = part.split("-")
        if len(bounds) > 2 or not all(bound.isascii() and bound.isdigit() for bound in bounds):
            return f"cannot convert string to integer for index: {part!r}"
        first, last = int(bounds[0]), int(bounds[-1])
        if len(bounds) == 2 and first >= last:
            return f"non-increasing order, previous: {first}, current: {last}"
        if first <= last_seen:
            return f"non-increasing order, previous: {last_seen}, current: {first}"
        if last >= below:
            return f"too large index: {last}"
        last_seen = last
    return ""
