"""Stored files that are read whole for one caller: in threads of their own, and for each project in turn.

The threads that receive and send files are few and everybody's: whoever had them read terabytes would hold up
all uploads and downloads.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from corral.domain.artifacts import ArtifactFile
from corral.domain.ids import Digest
from corral.ports.blobs import BlobStore

T = TypeVar("T")

_THREADS = 2
# After so much, others have their turn, and it is seen whether the caller is still there.
TURN_BYTES = 32 << 20


class BulkReads:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "corral-bulk")
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, whose: str) -> AsyncIterator[None]:
        """Wait until nothing else of the same name is under way."""
        turn = self._turns.setdefault(whose, asyncio.Lock())
        async with turn:
            yield

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class CallerGone(Exception):
    """Nobody waits for the answer any more."""


class FileCheck:
    """Compares stored files with their digests, each content once. CallerGone once `gone` says so."""

    def __init__(self, blobs: BlobStore, reads: BulkReads, gone: Callable[[], Awaitable[bool]]) -> None:
        self._blobs = blobs
        self._reads = reads
        self._gone = gone
        # By digest and announced size, what is wrong with it.
        self._known: dict[tuple[Digest, int], str | None] = {}

    async def problem(self, file: ArtifactFile) -> str | None:
        key = file.digest, file.size
        if key not in self._known:
            self._known[key] = await self._problem(*key)
        found = self._known[key]
        return None if found is None else f"{file.path}: {found}"

    async def _problem(self, digest: Digest, size: int) -> str | None:
        try:
            there = await self._in_thread(partial(self._blobs.size, digest))
            if there == size and await self._matches(digest):
                return None
            await self._reads.in_thread(partial(self._blobs.set_aside, digest))
            return f"the stored bytes do not match {digest} and are set aside"
        except KeyError:
            return f"the bytes of {digest} are missing"

    async def _matches(self, digest: Digest) -> bool:
        sha = hashlib.sha256()
        chunks = await self._in_thread(partial(self._blobs.read, digest))
        while not await self._in_thread(partial(_hash_on, chunks, sha.update)):
            pass
        return sha.hexdigest() == digest

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if await self._gone():
            raise CallerGone
        return await self._reads.in_thread(work)


def _hash_on(chunks: Iterator[bytes], update: Callable[[bytes], None]) -> bool:
    """Whether that was all."""
    done = 0
    for chunk in chunks:
        update(chunk)
        done += len(chunk)
        if done >= TURN_BYTES:
            return False
    return True
