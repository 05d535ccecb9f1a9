"""How long is waited before a cluster is asked once more."""

from __future__ import annotations

# Twice as long each time, up to here: more would not fit into a number after a day.
_DOUBLINGS = 16


def pause_s(tries: int, *, most_s: float) -> float:
    """After so many tries."""
    return min(most_s, 2.0 ** min(tries, _DOUBLINGS))
