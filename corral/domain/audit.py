"""Who did what, when, to anything that is not a run: a chain in which no row can be changed unseen."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from corral.domain.canonical import canonical


class AuditEntry(NamedTuple):
    """`origin` is the address that the call came from; `hash` covers this row and the hash before it."""

    n: int
    at: float
    actor: str
    origin: str
    action: str
    target: str
    data: str
    hash: str


class AuditFilter(NamedTuple):
    """What is None is not looked at. `action` is a whole one, or what stands before its dot."""

    target: str | None = None
    actor: str | None = None
    action: str | None = None
    since: float | None = None


EVERYTHING = AuditFilter()


def chained(before: str, entry: AuditEntry) -> str:
    """The hash of an entry that follows the one with the hash `before`."""
    return hashlib.sha256((before + canonical(list(entry[:-1]))).encode()).hexdigest()


class AuditChain:
    """Follows the chain from its beginning; stops at the first entry that does not fit."""

    def __init__(self) -> None:
        self.n = 0
        self.hash = ""
        self.problem: str | None = None

    def follow(self, entries: Iterable[AuditEntry]) -> bool:
        """False, with `problem` set, as soon as one is missing or was changed."""
        for entry in entries:
            if entry.n != self.n + 1:
                self.problem = f"entry {self.n + 1} is missing: the next one is {entry.n}"
                return False
            if entry.hash != chained(self.hash, entry):
                self.problem = f"entry {entry.n} is not as it was written, or one before it was exchanged"
                return False
            self.n, self.hash = entry.n, entry.hash
        return True
