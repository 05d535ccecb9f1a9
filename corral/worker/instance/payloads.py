"""Arguments and results of an instance's calls: small ones travel inline, large ones as files and blobs."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets as random
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from corral.client.files.blobs import beside
from corral.client.files.digest import digest_file
from corral.client.files.tree import FileEntry, Tree
from corral.client.files.upload import upload
from corral.client.files.walk import ListedFile
from corral.domain.calls import INLINE_BYTES
from corral.files.untrusted import HeldFolder
from corral.instance.channel import INLINE_MAX
from corral.wire.blobs import StoredBlob
from corral.wire.payloads import PayloadBody
from corral.worker.lease import LeaseSession
from corral.worker.server_link import PASSING, Pauses


class InstancePayloads:
    """`folder` is where worker and instance leave each other files; `given_up` ends all patience."""

    def __init__(self, session: LeaseSession, folder: Path, *, given_up: Callable[[], bool]) -> None:
        self._session = session
        self._folder = folder
        self._held: HeldFolder | None = None
        self._given_up = given_up
        # Files that the instance is still writing, on their way to the server already.
        self._growing: dict[Path, Future[StoredBlob | None]] = {}

    def open(self) -> Path:
        """Make the folder, before the instance starts. The way to it is the worker's own, whatever the
        instance makes of the folder's name."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._held = HeldFolder(self._folder)
        return self._held.path

    def own(self, path: str) -> Path:
        """A file that the instance names: only one in their folder, whatever it says."""
        assert self._held is not None, "it is open"
        return self._held.path / Path(path).name

    def bring(self, args: PayloadBody) -> tuple[bytes, str | None]:
        """Arguments for the instance: in memory, or in a file, by the name that the instance knows."""
        path = str(self._folder / random.token_hex(8))
        if args.blob is not None:
            self._download(args.blob, self.own(path))
            return b"", path
        body = args.payload().body or b""
        if len(body) <= INLINE_MAX:
            return body, None
        self.own(path).write_bytes(body)
        return b"", path

    def grow(self, path: Path, size: int) -> None:
        """The instance begins to write a file of this size; what it holds is said later."""
        self._growing[path] = beside(lambda: self._session.sink().hand_over(path, size=size))

    def drop(self, path: Path) -> None:
        """The instance gave up writing it."""
        self._growing.pop(path, None)
        path.unlink(missing_ok=True)

    def store(self, form: str, body: bytes | Path) -> PayloadBody:
        """A result as it travels: a small one inline, a large one uploaded first."""
        if isinstance(body, bytes) and len(body) <= INLINE_BYTES:
            return PayloadBody(format=form, body=base64.b64encode(body).decode("ascii"), size=len(body))
        try:
            return self._upload(form, body)
        finally:
            if isinstance(body, Path):
                body.unlink(missing_ok=True)

    @property
    def given_up(self) -> bool:
        """Nobody wants what the instance gives any more."""
        return self._given_up()

    def read(self, digest: str) -> bytes:
        return self._session.source().whole(digest)

    def _upload(self, form: str, body: bytes | Path) -> PayloadBody:
        sink = self._session.sink()
        growing = self._growing.pop(body, None) if isinstance(body, Path) else None
        whole = body if isinstance(body, Path) else [body]
        stored = sink.hand_over(whole) if growing is None else growing.result()
        if stored is not None:
            return PayloadBody(format=form, blob=stored.sha256, size=stored.size)
        if isinstance(body, Path):
            tree = _scanned(body)
            self._patiently(lambda: upload(tree, body.parent, sink))
            return PayloadBody(format=form, blob=tree.files[0].digest, size=tree.total_bytes)
        digest = hashlib.sha256(body).hexdigest()
        self._patiently(lambda: sink.keep(digest, body))
        return PayloadBody(format=form, blob=digest, size=len(body))

    def _download(self, digest: str, path: Path) -> None:
        source = self._session.source()
        if not source.copy(digest, path):
            self._patiently(lambda: source.save(digest, path))

    def _patiently(self, work: Callable[[], None]) -> None:
        pauses = Pauses()
        while not self._given_up():
            try:
                work()
                return
            except PASSING:
                self._session.link.look_again()
                time.sleep(pauses.next_s())


def _scanned(path: Path) -> Tree:
    """One file that the instance wrote, which must be a file itself: a link is not followed."""
    found = ListedFile.of(path.name, str(path), os.lstat(path))
    return Tree((FileEntry(found.path, found.size, found.mode, digest_file(found, None)[0]),))
