"""Which queued run comes next, kept in memory as hints that the claim checks in the database.

A lane is the queued runs that only age tells apart: one shape, one priority, one project. For each the
oldest few are held here, so that a claim costs the same whether ten runs wait or a million, and a host
that fits no shape costs no SQL at all. A hint that is stale is harmless: the claim checks the run. A hint
that is missing is found by the reconciling loop, which asks for the lanes anew.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop
from types import MappingProxyType
from typing import NamedTuple

from corral.domain.ids import Digest, RunId
from corral.domain.runs.queue import Lane, ReadyRun
from corral.store.transaction import Tx

REFILL = 256
KEEP = 2048
# For at most this many kinds of hosts the shapes that fit them are remembered.
KINDS = 20_000
# At most this many shapes are kept although no run of them waits.
EMPTY = 100
# For at most this many host policies a lane remembers which of its runs they refuse.
POLICIES = 1000


class Candidate(NamedTuple):
    lane: Lane
    ready: ReadyRun


@dataclass
class _Buffer:
    """The oldest runs of a lane, in order. Complete when nothing of the lane is only in the database."""

    waiting: list[ReadyRun] = field(default_factory=list)
    complete: bool = False

    def add(self, ready: ReadyRun) -> None:
        at = bisect_left(self.waiting, ready)
        if at < len(self.waiting) and self.waiting[at] == ready:
            return
        if at == len(self.waiting) and not self.complete:
            return
        self.waiting.insert(at, ready)
        if len(self.waiting) > KEEP:
            del self.waiting[KEEP // 2 :]
            self.complete = False

    def remove(self, ready: ReadyRun) -> None:
        at = bisect_left(self.waiting, ready)
        if at < len(self.waiting) and self.waiting[at] == ready:
            del self.waiting[at]


class Lanes:
    """Thread-safe: on Postgres several units run at once."""

    def __init__(self) -> None:
        self._shapes: dict[Digest, dict[Lane, _Buffer]] = {}
        # For a kind of host the shapes that fit it, as of a version of the set of shapes.
        self._fitting: dict[Hashable, tuple[int, list[Digest]]] = {}
        self._version = 0
        # For a lane and a policy, the place up to which all runs are refused by name.
        self._refused: dict[Lane, dict[Hashable, ReadyRun]] = {}
        self._lock = threading.Lock()

    def heard(self, lane: Lane, ready: ReadyRun) -> None:
        """A run was queued."""
        with self._lock:
            self._buffer(lane).add(ready)
            refused = self._refused.get(lane)
            if refused:
                # It may be one that kept its age, or has another name now.
                before = ReadyRun(ready.ready_at, RunId(""))
                self._refused[lane] = {who: min(place, before) for who, place in refused.items()}

    def put_back(self, candidates: Iterable[Candidate]) -> None:
        """What was taken by a unit that did not commit."""
        with self._lock:
            for candidate in candidates:
                self._buffer(candidate.lane).add(candidate.ready)

    def refused_to(self, lane: Lane, who: Hashable) -> ReadyRun | None:
        """Up to where all runs of the lane have names that `who` refuses."""
        with self._lock:
            return self._refused.get(lane, {}).get(who)

    def refuses(self, lane: Lane, who: Hashable, to: ReadyRun) -> None:
        with self._lock:
            known = self._refused.setdefault(lane, {})
            if len(known) > POLICIES:
                known.clear()
            known[who] = to

    def reconcile(self, lanes: Iterable[Lane]) -> None:
        """Make sure that every lane of the database is known, and distrust what is held of it."""
        with self._lock:
            for lane in lanes:
                self._lanes_of(lane.shape)[lane] = _Buffer()
            self._refused.clear()

    def check(self, heads: Iterable[tuple[Lane, ReadyRun]]) -> None:
        """Make sure that every lane of the database is known; distrust what begins otherwise there."""
        with self._lock:
            there = dict(heads)
            for lane in there:
                self._lanes_of(lane.shape).setdefault(lane, _Buffer())
            for lanes in self._shapes.values():
                for lane, buffer in lanes.items():
                    if not buffer.waiting or buffer.waiting[0] != there.get(lane):
                        lanes[lane] = _Buffer()
                        self._refused.pop(lane, None)
            empty = [shape for shape, lanes in self._shapes.items() if not lanes]
            # Some may stay: a shape that comes and goes should not have all hosts judged anew.
            if len(empty) > EMPTY + len(self._shapes) // 2:
                for shape in empty:
                    del self._shapes[shape]
                self._version += 1

    def may_have(self, shape: Digest, counts: Callable[[Lane], bool] | None = None) -> bool:
        """False if no run of the shape is known to wait in a lane that counts."""
        with self._lock:
            return any(
                (buffer.waiting or not buffer.complete) and (counts is None or counts(lane))
                for lane, buffer in self._shapes.get(shape, {}).items()
            )

    def shapes(self) -> list[Digest]:
        with self._lock:
            return [shape for shape, lanes in self._shapes.items() if lanes]

    def take(
        self,
        tx: Tx,
        fits: Callable[[Digest], bool],
        used: Callable[[str], float],
        *,
        key: Hashable | None = None,
        points: Callable[[ReadyRun], int] | None = None,
        may: Callable[[Candidate], bool] | None = None,
        instead: Mapping[Lane, ReadyRun | None] = MappingProxyType({}),
        first: Callable[[Digest], bool] = lambda shape: False,
    ) -> Candidate | None:
        """The next run of a shape that fits: by priority, then the project that used least, then age.

        Within a project, runs of the shapes that come `first` do not wait for older ones.

        What fits is remembered under `key`. `points` are added to a priority for the time waited. `may` is
        asked for one candidate after the other, in their order; the first that it lets pass is taken.
        `instead` gives a lane another run than its oldest to stand for it, or none.
        """
        with self._lock:
            usage: dict[str, float] = {}
            heads: list[tuple[int, float, bool, ReadyRun, Lane]] = []
            for shape in self._fits(key, fits):
                if not self._shapes[shape]:
                    continue
                for lane, oldest in self._heads(tx, shape):
                    head = instead.get(lane, oldest)
                    if head is None:
                        continue
                    project = lane.project
                    if project not in usage:
                        usage[project] = used(project)
                    priority = lane.priority if points is None else lane.priority + points(head)
                    heads.append((-priority, usage[project], not first(shape), head, lane))
            heapify(heads)
            while heads:
                *_, head, lane = heappop(heads)
                if may is None or may(Candidate(lane, head)):
                    self._shapes[lane.shape][lane].remove(head)
                    return Candidate(lane, head)
            return None

    def _fits(self, key: Hashable | None, fits: Callable[[Digest], bool]) -> list[Digest]:
        version, known = self._fitting.get(key, (-1, []))
        if key is None or version != self._version:
            known = [shape for shape in self._shapes if fits(shape)]
            if len(self._fitting) > KINDS:
                self._fitting.clear()
            self._fitting[key] = (self._version, known)
        return known

    def _lanes_of(self, shape: Digest) -> dict[Lane, _Buffer]:
        if shape not in self._shapes:
            self._shapes[shape] = {}
            self._version += 1
        return self._shapes[shape]

    def _buffer(self, lane: Lane) -> _Buffer:
        return self._lanes_of(lane.shape).setdefault(lane, _Buffer())

    def _heads(self, tx: Tx, shape: Digest) -> list[tuple[Lane, ReadyRun]]:
        lanes = self._shapes[shape]
        heads: list[tuple[Lane, ReadyRun]] = []
        gone: list[Lane] = []
        for lane, buffer in lanes.items():
            if not buffer.waiting and not buffer.complete:
                buffer.waiting = tx.runs.ready(lane, after=None, limit=REFILL)
                buffer.complete = len(buffer.waiting) < REFILL
            if buffer.waiting:
                heads.append((lane, buffer.waiting[0]))
            else:
                gone.append(lane)
        for lane in gone:
            del lanes[lane]
            self._refused.pop(lane, None)
        return heads
