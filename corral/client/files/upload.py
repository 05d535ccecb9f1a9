"""Sends the files of a scanned tree: only what is missing, small ones together, large ones resumable."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from corral.client.files.blobs import PACK_HEADER_BYTES, PACK_MAX_BYTES, BlobSink
from corral.client.files.digest import FileChanged, FileUnreadable
from corral.client.files.tree import FileEntry, Tree, batches
from corral.domain.errors import DigestMismatch, OffsetMismatch, ServerUnreachable, StoreUnavailable
from corral.files.untrusted import NotARegularFile, open_regular

QUERY_BATCH = 5_000
SMALL_BYTES = 64 << 10
CHUNK_BYTES = 1 << 20
# Each small file costs the server a disk flush; shorter packs spread them over the threads.
PACK_MAX_FILES = 500
THREADS = 4

Progress = Callable[[int, int, int], None]
"""Called with (bytes done, bytes in all, files done), from several threads but never at once."""


@dataclass
class TransferTally:
    """Counts what has arrived; a file taken up again is not counted twice."""

    total: int
    progress: Progress | None
    done: int = 0
    files: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, size: int, files: int = 0) -> None:
        with self._lock:
            self.done += size
            self.files += files
            if self.progress:
                self.progress(self.done, self.total, self.files)


def upload(
    tree: Tree, root: Path, sink: BlobSink, *, progress: Progress | None = None, threads: int = THREADS
) -> None:
    """Bring every blob of `tree`, scanned at `root`, to the server. Files it has are not sent.

    Raises FileChanged when a file is no longer what was scanned, and what the server says.
    """
    first: dict[str, FileEntry] = {}
    for entry in tree.files:
        first.setdefault(entry.digest, entry)
    absent: set[str] = set()
    offsets: dict[str, int] = {}
    digests = list(first)
    for start in range(0, len(digests), QUERY_BATCH):
        answer = sink.query(digests[start : start + QUERY_BATCH])
        absent.update(answer.missing)
        offsets.update(answer.offsets)
    missing = [entry for digest, entry in first.items() if digest in absent]
    spared = [entry for entry in tree.files if entry.digest not in absent or entry != first[entry.digest]]
    tally = TransferTally(tree.total_bytes, progress)
    tally.add(sum(entry.size for entry in spared), len(spared))
    _send_all(missing, offsets, _Sender(root, sink, tally), threads)


def _send_all(missing: Sequence[FileEntry], offsets: dict[str, int], sender: _Sender, threads: int) -> None:
    large = sorted((e for e in missing if e.size >= SMALL_BYTES), key=lambda e: e.size, reverse=True)
    small = [e for e in missing if e.size < SMALL_BYTES]
    # The largest first: a big file begun last would keep one thread busy after the others are done.
    tasks = [partial(sender.large, entry, offsets.get(entry.digest, 0)) for entry in large]
    packs = batches(small, max_files=PACK_MAX_FILES, max_bytes=PACK_MAX_BYTES, header_bytes=PACK_HEADER_BYTES)
    tasks += [partial(sender.pack, pack) for pack in packs]
    if len(tasks) <= 1 or threads <= 1:
        for task in tasks:
            task()
        return
    with ThreadPoolExecutor(min(threads, len(tasks)), thread_name_prefix="corral-upload") as pool:
        # After an error `map` begins nothing new; what is under way ends by itself.
        list(pool.map(lambda task: task(), tasks))


@dataclass(frozen=True)
class _Sender:
    root: Path
    sink: BlobSink
    tally: TransferTally

    def pack(self, entries: Sequence[FileEntry]) -> None:
        blobs = [(entry.digest, b"".join(self._chunks(entry))) for entry in entries]
        try:
            self.sink.pack(blobs)
        except DigestMismatch as error:
            raise FileChanged(entries[0].path, f"or one of {len(entries)} sent with it: {error}") from error
        self.tally.add(sum(entry.size for entry in entries), len(entries))

    def large(self, entry: FileEntry, offset: int) -> None:
        """One file, taken up where the server says after every break."""
        backoff = self.sink.transport.backoff
        sent = _FileProgress(self.tally)
        for failures in range(1, backoff.tries + 1):
            try:
                self._put(entry, offset, sent)
                break
            except DigestMismatch as error:
                raise FileChanged(entry.path, "its content is not what was scanned") from error
            except (ServerUnreachable, StoreUnavailable, OffsetMismatch):
                if failures == backoff.tries:
                    raise
                self.sink.transport.sleep(backoff.delay_s(failures))
                answer = self.sink.query([entry.digest])
                if entry.digest not in answer.missing:
                    break
                offset = answer.offsets.get(entry.digest, 0)
        sent.reach(entry.size)
        self.tally.add(0, 1)

    def _put(self, entry: FileEntry, offset: int, sent: _FileProgress) -> None:
        offset = offset if offset < entry.size else 0
        sent.reach(offset)
        chunks = self._chunks(entry, offset, sent)
        self.sink.put(entry.digest, chunks, length=entry.size - offset, offset=offset or None)

    def _chunks(
        self, entry: FileEntry, offset: int = 0, sent: _FileProgress | None = None
    ) -> Iterator[bytes]:
        try:
            # A link inside the folder was listed as what it leads to. One that came since leads to bytes of
            # another digest, which the server refuses.
            with open_regular(os.path.realpath(self.root / entry.path)) as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.size:
                    raise FileChanged(entry.path, f"expected {entry.size} bytes, found {size}")
                file.seek(offset)
                while offset < entry.size:
                    chunk = file.read(min(CHUNK_BYTES, entry.size - offset))
                    if not chunk:
                        raise FileChanged(entry.path, f"expected {entry.size} bytes, found {offset}")
                    yield chunk
                    offset += len(chunk)
                    if sent is not None:
                        sent.reach(offset)
        except NotARegularFile as error:
            raise FileChanged(entry.path, "it was replaced by something else") from error
        except OSError as error:
            raise FileUnreadable(entry.path, error) from error


@dataclass
class _FileProgress:
    """How far one file got; only advances, so that a second try of the same bytes counts nothing."""

    tally: TransferTally
    at: int = 0

    def reach(self, offset: int) -> None:
        if offset > self.at:
            self.tally.add(offset - self.at)
            self.at = offset
