"""Which queued run comes next. Kept in memory as hints; SQL only guards.

A lane is the queued runs that only age tells apart: one shape, one priority, one project. For each the
oldest few are held here, so that a claim costs the same whether ten runs wait or a million, and a host
that fits no shape costs no SQL at all. A hint that is stale is harmless: the claim checks the run. A hint
that is missing is found by the reconciling loop, which asks for the lanes anew.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.domain.ids import Digest
from corral.ports.store import Lane, Ready, Tx

REFILL = 256
KEEP = 2048


class Candidate(NamedTuple):
    lane: Lane
    ready: Ready


@dataclass
class _Buffer:
    """The oldest runs of a lane, in order. Complete when nothing of the lane is only in the database."""

    waiting: list[Ready] = field(default_factory=list)
    complete: bool = False

    def add(self, ready: Ready) -> None:
        at = bisect_left(self.waiting, ready)
        if at < len(self.waiting) and self.waiting[at] == ready:
            return
        if at == len(self.waiting) and not self.complete:
            return
        self.waiting.insert(at, ready)
        if len(self.waiting) > KEEP:
            del self.waiting[KEEP // 2 :]
            self.complete = False


class Lanes:
    """Thread-safe: on Postgres several units run at once."""

    def __init__(self) -> None:
        self._shapes: dict[Digest, dict[Lane, _Buffer]] = {}
        self._lock = threading.Lock()

    def heard(self, lane: Lane, ready: Ready) -> None:
        """A run was queued."""
        with self._lock:
            self._buffer(lane).add(ready)

    def put_back(self, candidates: Iterable[Candidate]) -> None:
        """What was taken by a unit that did not commit."""
        for candidate in candidates:
            self.heard(candidate.lane, candidate.ready)

    def reconcile(self, lanes: Iterable[Lane]) -> None:
        """Make sure that every lane of the database is known, and distrust what is held of it."""
        with self._lock:
            for lane in lanes:
                self._shapes.setdefault(lane.shape, {})[lane] = _Buffer()

    def may_have(self, shape: Digest) -> bool:
        """False if, for all that is known here, no run of the shape waits."""
        with self._lock:
            lanes = self._shapes.get(shape, {}).values()
            return any(buffer.waiting or not buffer.complete for buffer in lanes)

    def shapes(self) -> list[Digest]:
        with self._lock:
            return list(self._shapes)

    def take(
        self,
        tx: Tx,
        fits: Callable[[Digest], bool],
        usage: Callable[[str], float],
        *,
        may: Callable[[Candidate], bool] | None = None,
    ) -> Candidate | None:
        """The next run of a shape that fits: by priority, then the project that used least, then age."""
        with self._lock:
            best: tuple[int, float, Ready] | None = None
            chosen: Lane | None = None
            for shape in list(self._shapes):
                if not fits(shape):
                    continue
                for lane, head in self._heads(tx, shape):
                    key = (-lane.priority, usage(lane.project), head)
                    if may is not None and not may(Candidate(lane, head)):
                        continue
                    if best is None or key < best:
                        best, chosen = key, lane
            if chosen is None:
                return None
            return Candidate(chosen, self._shapes[chosen.shape][chosen].waiting.pop(0))

    def _buffer(self, lane: Lane) -> _Buffer:
        return self._shapes.setdefault(lane.shape, {}).setdefault(lane, _Buffer())

    def _heads(self, tx: Tx, shape: Digest) -> list[tuple[Lane, Ready]]:
        lanes = self._shapes[shape]
        heads: list[tuple[Lane, Ready]] = []
        for lane, buffer in list(lanes.items()):
            if not buffer.waiting and not buffer.complete:
                buffer.waiting = tx.runs.ready(lane, after=None, limit=REFILL)
                buffer.complete = len(buffer.waiting) < REFILL
            if buffer.waiting:
                heads.append((lane, buffer.waiting[0]))
            else:
                del lanes[lane]
        if not lanes:
            del self._shapes[shape]
        return heads
