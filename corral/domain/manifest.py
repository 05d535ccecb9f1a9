"""A manifest as it was last applied: the hosts and runs that an operator declared in one file."""

from __future__ import annotations

from typing import NamedTuple

from corral.domain.ids import Digest


class Manifest(NamedTuple):
    """`body` is its canonical form as JSON; `revision` counts the applies that changed something."""

    project: str
    name: str
    body: str
    digest: Digest
    revision: int
    applied_at: float
    applied_by: str
