"""Retention and collection: logs by age, uploads nobody names, blobs that nothing keeps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from corral.core.hosts import samples
from corral.core.hosts.enroll import retire_run_hosts
from corral.core.logs import segment_key
from corral.core.policy import ServerPolicy
from corral.core.storage.kept_objects import drop_kept_of_ended
from corral.core.storage.objects import drop_ended
from corral.core.volumes import drop_old
from corral.domain.artifacts import Blob
from corral.domain.ids import RunId
from corral.ports.blobs import BlobStore, SegmentStore
from corral.ports.clock import Clock
from corral.store.store import Store
from corral.store.transaction import Tx

PAGE = 500
# An upload that took no step for so long is not under way any more: its server died.
OPEN_S = 3600.0
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


@dataclass(frozen=True)
class GcResult:
    logs: int
    uploads: int
    blobs: int
    partials: int


@dataclass(frozen=True)
class GarbageCollector:
    """Blobs go in three steps, each safe to be cut short: condemn rows, delete bytes, delete rows."""

    store: Store
    blobs: BlobStore
    segments: SegmentStore
    clock: Clock
    policy: ServerPolicy

    async def collect(self, in_thread: InThread) -> GcResult:
        logs = await self._old_logs(in_thread)
        uploads = await self._unused_uploads()
        await self._old_volume_versions()
        await self._until_less(lambda tx: samples.drop_old(tx, now=self.clock.now(), limit=PAGE))
        await self._until_less(lambda tx: drop_ended(tx, limit=PAGE))
        await self._until_less(lambda tx: drop_kept_of_ended(tx, limit=PAGE))
        await self._until_less(lambda tx: retire_run_hosts(tx, now=self.clock.now(), limit=PAGE))
        await self.store.write(lambda tx: tx.blobs.expire_pins(self.clock.now()))
        for project in await self.store.read(_limited_projects):
            await self.store.write(partial(_count_bytes, project=project))
        blobs = await self._unkept_blobs(in_thread)
        partials = await in_thread(lambda: self.blobs.sweep_partials(self.policy.user_pin_s))
        now = self.clock.now()
        before, open_before = now - self.policy.user_pin_s, now - OPEN_S
        await self.store.write(lambda tx: tx.uploads.sweep(before=before, open_before=open_before))
        return GcResult(logs, uploads, blobs, partials)

    async def _old_logs(self, in_thread: InThread) -> int:
        """Until nothing is left to take: runs may end faster than a page of them each time would go."""
        before = self.clock.now() - self.policy.log_retention_s
        total = 0
        while runs := await self.store.read(
            lambda tx: [*tx.runs.ended_before(before, PAGE), *tx.logs.removed_runs(PAGE)]
        ):
            await self._drop_logs(runs, in_thread)
            total += len(runs)
        return total

    async def _drop_logs(self, runs: Sequence[RunId], in_thread: InThread) -> None:
        """First the files, then the rows in one transaction: what a crash leaves is found again."""
        for run_id in runs:
            for key in await self.store.read(partial(_segment_keys, run_id=run_id)):
                await in_thread(partial(self.segments.delete, key))
        await self.store.write(lambda tx: _forget_logs(tx, runs))

    async def _unused_uploads(self) -> int:
        before = self.clock.now() - self.policy.upload_retention_s

        def delete_unused(tx: Tx) -> int:
            unused = tx.artifacts.unused_uploads(before, PAGE)
            for artifact_id in unused:
                tx.artifacts.delete(artifact_id)
            return len(unused)

        return await self._until_less(delete_unused)

    async def _old_volume_versions(self) -> None:
        now = self.clock.now()
        await self._until_less(lambda tx: drop_old(tx, now=now, limit=PAGE))

    async def _until_less(self, unit: Callable[[Tx], int]) -> int:
        """Again and again, a page in a transaction, until one is not full; how many it was."""
        total = 0
        while (done := await self.store.write(unit)) == PAGE:
            total += done
        return total + done

    async def _unkept_blobs(self, in_thread: InThread) -> int:
        total = 0
        while True:
            condemned = await self.store.write(self._condemn)
            for blob in condemned:
                await self._drop_blob(blob, in_thread)
            total += len(condemned)
            if len(condemned) < PAGE:
                return total

    def _condemn(self, tx: Tx) -> list[Blob]:
        now = self.clock.now()
        return tx.blobs.condemn(now - self.policy.blob_grace_s, now, PAGE)

    async def _drop_blob(self, blob: Blob, in_thread: InThread) -> None:
        # Another project may hold the same bytes; its row keeps them.
        if not await self.store.read(lambda tx: tx.blobs.any_project_has(blob.digest)):
            await in_thread(partial(self.blobs.delete, blob.digest))
        await self.store.write(lambda tx: tx.blobs.drop(blob.project, blob.digest))


def _limited_projects(tx: Tx) -> list[str]:
    return [quota.project for quota in tx.quotas.all() if quota.max_bytes is not None]


def _count_bytes(tx: Tx, project: str) -> None:
    tx.blobs.count_bytes(project)


def _forget_logs(tx: Tx, runs: Sequence[RunId]) -> None:
    for run_id in runs:
        tx.logs.delete(run_id)


def _segment_keys(tx: Tx, run_id: RunId) -> list[str]:
    return [segment_key(s) for stream in ("log", "metric") for s in tx.logs.segments(run_id, stream)]
