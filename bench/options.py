"""What the runner tells every script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """`quick` is a smoke test of a few seconds, without rivals and without meaning."""

    quick: bool = False
