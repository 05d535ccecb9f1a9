"""Cross-check everything: rows against each other, and bytes against their digests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from corral.core.logs import segment_key
from corral.core.volumes import newest
from corral.domain.artifacts import Blob, KeptObject, Segment
from corral.domain.audit import AuditChain
from corral.domain.canonical import canonical
from corral.domain.errors import CorralError
from corral.domain.ids import Digest, RunId
from corral.domain.leases import LeaseState
from corral.domain.runs.runs import Run
from corral.domain.runs.states import FINAL, LEASED, LIVE_RANKS, RankState, RunState
from corral.domain.volumes import VolumeRecord
from corral.ports.blobs import BlobStore, SegmentStore
from corral.store.store import Store
from corral.store.transaction import Tx

PAGE = 200
_USERS_NAMED = 5
Item = TypeVar("Item")


class FsckFinding(NamedTuple):
    check: str
    checked: int
    problem: str | None


@dataclass(frozen=True)
class Fsck:
    """Pages by key, so that no read lasts; what it reports is true of the moment of its page."""

    store: Store
    blobs: BlobStore
    segments: SegmentStore
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]

    async def check(self) -> AsyncIterator[FsckFinding]:
        """The database first. A check that cannot go on is a problem like any other, and others follow."""
        checks = {
            "database": self._database,
            "runs": self._runs,
            "blobs": self._blob_rows,
            "volumes": self._volumes,
            "kept objects": self._kept_objects,
            "unclaimed bytes": self._stray_bytes,
            "audit": self._audit,
        }
        for name, check in checks.items():
            try:
                async for finding in check():
                    yield finding
            except CorralError as error:
                yield FsckFinding(name, 0, f"the check could not go on: {error.message}")

    async def _database(self) -> AsyncIterator[FsckFinding]:
        for problem in await self.store.damage():
            yield FsckFinding("database", 1, f"it is damaged: {problem}")
        yield FsckFinding("database", 1, None)

    async def _pages(
        self, read: Callable[[Any, Tx], list[Item]], key: Callable[[Item], Any]
    ) -> AsyncIterator[list[Item]]:
        """Pages until one is not full; at least one. `key` is where the next page begins."""
        page = await self.store.read(partial(read, None))
        yield page
        while len(page) == PAGE:
            page = await self.store.read(partial(read, key(page[-1])))
            yield page

    async def _runs(self) -> AsyncIterator[FsckFinding]:
        done = 0
        async for page in self._pages(lambda after, tx: tx.runs.page_by_id(after, PAGE), lambda run: run.id):
            for run in page:
                for problem in await self._check_run(run):
                    yield FsckFinding("runs", done, problem)
            done += len(page)
            yield FsckFinding("runs", done, None)

    async def _check_run(self, run: Run) -> list[str]:
        found = await self.store.read(lambda tx: check_run(tx, run.id))
        rows = await self.store.read(
            lambda tx: [*tx.logs.segments(run.id, "log"), *tx.logs.segments(run.id, "metric")]
        )
        for segment in rows:
            if segment.bytes and not await self.in_thread(partial(self._is_whole, segment)):
                found.append(f"run {run.id}: segment {segment_key(segment)} is shorter than its row says")
        return found

    def _is_whole(self, segment: Segment) -> bool:
        try:
            return self.segments.read(segment_key(segment), segment.bytes - 1, 1) == b"\n"
        except KeyError:
            return False

    async def _blob_rows(self) -> AsyncIterator[FsckFinding]:
        done = 0
        pages = self._pages(lambda after, tx: tx.blobs.page(after, PAGE), lambda b: (b.project, b.digest))
        async for page in pages:
            for blob in page:
                problem = await self._check_blob(blob)
                done += 1
                if problem or done % 50 == 0:
                    yield FsckFinding("blobs", done, problem)
        yield FsckFinding("blobs", done, None)

    async def _check_blob(self, blob: Blob) -> str | None:
        name = f"blob {blob.digest} of project {blob.project}"
        try:
            if await self.in_thread(lambda: self.blobs.verify(blob.digest)):
                return None
        except KeyError:
            if blob.condemned_at is not None:
                return None
            gone = await self.store.read(lambda tx: tx.blobs.get(blob.project, blob.digest) is None)
            if gone:
                return None
            return f"{name} is not in the store, or was set aside as damaged; {await self._users(blob)}"
        await self.in_thread(partial(self.blobs.set_aside, blob.digest))
        return f"{name} does not match its digest; its bytes are set aside; {await self._users(blob)}"

    async def _users(self, blob: Blob) -> str:
        """What is harmed, in the words by which a user knows it."""
        found = await self.store.read(
            lambda tx: tx.artifacts.with_blob(blob.project, blob.digest, limit=_USERS_NAMED)
        )
        named = [f"{path} of {of}" + (f" (run {run})" if run else "") for of, path, run in found]
        more = " and more" if len(found) == _USERS_NAMED else ""
        return f"it is {', '.join(named)}{more}" if named else "no artifact names it"

    async def _volumes(self) -> AsyncIterator[FsckFinding]:
        """The newest version of each is there; its bytes are looked at with all others."""
        done = 0
        async for page in self._pages(_volume_page, lambda item: (item[0].project, item[0].name)):
            done += len(page)
            for volume, whole in page:
                if not whole:
                    why = f"volume {volume.project}/{volume.name}: its version {volume.head} is not there"
                    yield FsckFinding("volumes", done, why)
        yield FsckFinding("volumes", done, None)

    async def _kept_objects(self) -> AsyncIterator[FsckFinding]:
        """Each names a blob that its project has; the bytes are looked at with all others."""
        done = 0
        async for page in self._pages(_kept_page, lambda item: (item[0].run_id, item[0].key)):
            done += len(page)
            for one, size in page:
                if size != one.size:
                    why = f"run {one.run_id}: its object {one.key} has no blob of {one.size} bytes"
                    yield FsckFinding("kept objects", done, why)
        yield FsckFinding("kept objects", done, None)

    async def _audit(self) -> AsyncIterator[FsckFinding]:
        chain = AuditChain()
        while page := await self.store.read(lambda tx: tx.audit.after(chain.n, PAGE)):
            if not chain.follow(page):
                yield FsckFinding("audit", chain.n, f"the audit is broken: {chain.problem}")
                return
            yield FsckFinding("audit", chain.n, None)

    async def _stray_bytes(self) -> AsyncIterator[FsckFinding]:
        """Bytes without a row are harmless (a crash between the two); they are counted, not a problem."""
        stray = 0
        for prefix in (f"{i:02x}" for i in range(256)):
            for digest in await self.in_thread(partial(self._names, prefix)):
                stray += not await self._is_claimed(digest)
        yield FsckFinding("unclaimed bytes", stray, None)

    def _names(self, prefix: str) -> list[Digest]:
        return list(self.blobs.digests(prefix))

    async def _is_claimed(self, digest: Digest) -> bool:
        return await self.store.read(lambda tx: tx.blobs.any_project_has(digest))


def _volume_page(after: tuple[str, str] | None, tx: Tx) -> list[tuple[VolumeRecord, bool]]:
    found = tx.volumes.page(None, after=after, limit=PAGE)
    return [(one, one.head == 0 or newest(tx, one).artifact is not None) for one in found]


def _kept_page(after: tuple[str, str] | None, tx: Tx) -> list[tuple[KeptObject, int | None]]:
    return tx.kept.page(after, PAGE)


def check_run(tx: Tx, run_id: RunId) -> list[str]:
    """What contradicts the promises in one run's rows."""
    run = tx.runs.get(run_id)
    if run is None:
        return []
    return [
        f"run {run.id}: {problem}"
        for problem in [*_check_leases(tx, run), *_check_events(tx, run), *_check_result(tx, run)]
    ]


def _check_leases(tx: Tx, run: Run) -> list[str]:
    found: list[str] = []
    live = tx.leases.live_of_run(run.id)
    ranks = tx.attempts.ranks(run.id, run.attempt) if run.attempt else []
    if len({(lease.attempt, lease.rank) for lease in live}) != len(live):
        found.append("two live leases on one rank")
    # An elastic run may wait for a host for its last ranks, while the others are done.
    waits = run.elastic and any(rank.state is RankState.ENDED for rank in ranks)
    if run.state in LEASED and not live and not waits:
        found.append(f"is {run.state} without a live lease")
    if run.state not in LEASED and live:
        found.append(f"is {run.state} with a live lease {live[0].id}")
    if any(lease.epoch > run.epoch for lease in live):
        found.append("a lease has a newer epoch than the run")
    running = {rank.lease_id for rank in ranks if rank.state in LIVE_RANKS}
    if running != {lease.id for lease in live if lease.state is LeaseState.LIVE}:
        found.append("its ranks and its live leases disagree")
    if run.state in FINAL and run.ended_at is None:
        found.append("has ended but does not say when")
    return found


def _check_events(tx: Tx, run: Run) -> list[str]:
    after, last = 0, None
    while True:
        events = tx.events.of_run(run.id, after=after, limit=1000)
        for event in events:
            if event.n != after + 1:
                return [f"event {after + 1} is missing"]
            after = event.n
            last = event
        if len(events) < 1000:
            break
    if after != run.event_n:
        return [f"has {after} events but counts {run.event_n}"]
    if last is not None and '"state":' in last.data and canonical(str(run.state)) not in last.data:
        return [f"is {run.state} but its last event says {last.data}"]
    return []


def _check_result(tx: Tx, run: Run) -> list[str]:
    if run.artifact_id is None:
        return []
    artifact = tx.artifacts.get(run.artifact_id)
    if artifact is None:
        return [f"its result {run.artifact_id} is gone"]
    if run.state is not RunState.SUCCEEDED and run.world_size == 1:
        return [f"is {run.state} but has the result {run.artifact_id}"]
    found: list[str] = []
    after = ""
    while True:
        files = tx.artifacts.files(artifact.id, after=after, limit=1000)
        have = tx.blobs.present(run.project, [f.digest for f in files])
        found += [f"result file {f.path!r} has no blob" for f in files if have.get(f.digest) != f.size]
        if len(files) < 1000:
            return found
        after = files[-1].path
