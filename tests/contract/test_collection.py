"""Retention and collection on both databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support.clock import ManualClock

from contract.conftest import Database
from contract.samples import a_run, digest_of
from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments
from corral.core.policy import ServerPolicy
from corral.core.storage.gc import PAGE, GarbageCollector
from corral.domain.artifacts import Segment
from corral.domain.runs.states import RunState
from corral.store.transaction import Tx

T = TypeVar("T")


async def _at_once(work: Callable[[], T]) -> T:
    return work()


def _add_ended(tx: Tx, count: int) -> None:
    for number in range(count):
        run = a_run(state=RunState.SUCCEEDED, ended_at=200.0, identity=digest_of(str(number)))
        tx.runs.insert(run, "{}")
        tx.logs.put(Segment(run.id, 1, 0, "log", 1, 0, 0, 150.0))


def test_old_logs_go_until_none_is_left(db: Database, tmp_path: Path) -> None:
    """STO-06: more runs than a page ended since the last time, and one collection takes the logs of all."""
    clock, policy = ManualClock(wall=1e9), ServerPolicy()
    blobs, segments = DirectoryBlobs(tmp_path / "b"), DirectorySegments(tmp_path / "s")
    collector = GarbageCollector(db.store, blobs, segments, clock, policy)
    db.write(lambda tx: _add_ended(tx, PAGE + 3))

    done = db.do(collector.collect(_at_once))

    assert done.logs == PAGE + 3
    assert db.read(lambda tx: tx.runs.ended_before(clock.now(), 10)) == []
