"""Objects in a bucket (S3, Google Cloud Storage, Azure): whole or not at all, with retries that do not lie.

Each write carries a name of its own, so that one whose answer was lost is recognised afterwards.
The only module that loads obstore, which is an extra: whoever imports it does so when a bucket is named.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url

from corral.files.bucket_errors import BucketError, BucketRefused, explain

T = TypeVar("T")
Buffer = bytes | bytearray | memoryview
Source = Buffer | Path | Iterable[Buffer]

# S3 takes 10,000 parts at most, so an object whose size is not known beforehand may have 160 GB.
PART_BYTES = 16 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_CHUNK_BYTES = 1 << 20
_WRITER = "corral-writer"
# No byte for so long is a line that is dead. It is also the time that one part may take to be sent.
_STALL_S = 120
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_ERRORS = (BaseError, OSError)


class ObjectInfo(NamedTuple):
    """`modified` is the store's own time in seconds since 1970."""

    key: str
    size: int
    etag: str
    modified: float


class _Found(NamedTuple):
    info: ObjectInfo
    writer: str | None


class Bucket:
    """The objects below one URL. Calls block and may come from any thread, but not from a forked child."""

    def __init__(self, url: str, *, endpoint: str | None = None, patience_s: float = 60.0) -> None:
        """Nothing is asked of the store yet. Each call tries again for `patience_s` before it fails."""
        self.url = url.rstrip("/")
        self._patience_s = patience_s
        self._where = f"{self.url} at {endpoint}" if endpoint else self.url
        try:
            self._store: Any = from_url(self.url, **_options(url, endpoint, patience_s))
        except (BaseError, ValueError) as error:
            raise explain(error, "open the store", self._where) from error

    def put(self, key: str, source: Source) -> str:
        """Make or replace the object, in parts where it is large; return its etag.

        Pieces that can be iterated again are sent again where that can help; an iterator is read once, so a
        failure that the store's own retries of a part did not mend is told to the caller.
        """
        if not isinstance(source, Buffer | Path):
            return self._pour(key, source)
        etag = self._write(key, source, "overwrite")
        if etag is None:
            raise BucketError(f"cannot write {key} in {self._where}: the store calls it conditional")
        return etag

    def create(self, key: str, data: Buffer) -> bool:
        """True if this call made the object; False if there is one already."""
        return self._write(key, data, "create") is not None

    def replace(self, key: str, data: Buffer, etag: str) -> str | None:
        """The new etag; None if the object is not the one with that etag any more.

        None as well where the answer was lost and another has replaced the object since.
        """
        return self._write(key, data, {"e_tag": etag})

    def head(self, key: str) -> ObjectInfo | None:
        found = self._look(key)
        return None if found is None else found.info

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> ObjectReading | None:
        """The bytes from `start`; None if there is no such object. The reading ends where the object ends."""
        opened = self._again(lambda: self._get(key, _range(start, length)), f"read {key}")
        return None if opened is None else ObjectReading(self, key, opened, start)

    def list(self, folder: str) -> Iterator[ObjectInfo]:
        """Every object below the folder, in the order of their keys; all of them if it is empty."""
        after: str | None = None
        for pause in self._pauses():
            try:
                for page in obstore.list(self._store, folder or None, offset=after):
                    for meta in page:
                        yield _info(meta)
                        after = meta["path"]
                return
            except _ERRORS as error:
                pause(explain(error, f"list {folder or 'the objects'}", self._where))

    def delete(self, key: str) -> None:
        """No error if there is none."""

        def work() -> None:
            with suppress(FileNotFoundError):
                obstore.delete(self._store, key)

        self._again(work, f"delete {key}")

    def check(self) -> None:
        """Write, read, list and delete a small object; BucketRefused says what is not allowed."""
        key = f".corral/check-{secrets.token_hex(8)}"
        self.put(key, b"corral")
        reading = self.read(key)
        listed = any(one.key == key for one in self.list(".corral"))
        self.delete(key)
        if reading is None or b"".join(reading) != b"corral" or not listed:
            raise BucketRefused(
                f"{self._where} does not give back what was just written to it",
                hint="Use a store that reads and lists what was written at once, as S3 does.",
            )

    def _pour(self, key: str, pieces: Iterable[Buffer]) -> str:
        writer = secrets.token_hex(16)
        for pause in self._pauses():
            try:
                self._pour_once(key, pieces, writer)
                problem = BucketError(f"{key} in {self._where} was replaced by another writer meanwhile")
            except BucketRefused:
                raise
            except BucketError as error:
                problem = error
            # Its answer may be what was lost.
            if (etag := self._etag_by(writer, key, problem)) is not None:
                return etag
            if isinstance(pieces, Iterator):
                raise problem
            pause(problem)
        raise AssertionError("the pauses end with an error")

    def _pour_once(self, key: str, pieces: Iterable[Buffer], writer: str) -> None:
        # Not `obstore.put`, which takes the pieces in a thread of its own, where they may not use a store.
        file = obstore.open_writer(
            self._store,
            key,
            attributes=_attributes(writer),
            buffer_size=PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )
        for piece in pieces:
            self._pass(partial(file.write, piece), key)
        # Without it there is no object: what the caller did not end is never seen.
        self._pass(file.close, key)

    def _pass(self, work: Callable[[], object], key: str) -> None:
        try:
            work()
        except _ERRORS as error:
            raise explain(error, f"write {key}", self._where) from error

    def _write(self, key: str, source: Buffer | Path, mode: Any) -> str | None:
        """The etag; None if the condition did not hold."""
        writer = secrets.token_hex(16)
        options = {
            "attributes": _attributes(writer),
            "mode": mode,
            "chunk_size": max(PART_BYTES, _size(source) // _MOST_PARTS + 1),
            "max_concurrency": _PARTS_AT_ONCE,
        }
        for pause in self._pauses():
            try:
                return str(obstore.put(self._store, key, source, **options)["e_tag"])
            except (AlreadyExistsError, PreconditionError):
                found = self._look(key)
                if found is not None and found.writer == writer:
                    return found.info.etag
                if not _may_hold(mode, found):
                    return None
                problem = BucketError(f"cannot write {key} in {self._where}: others write it as well")
            except _ERRORS as error:
                problem = explain(error, f"write {key}", self._where)
                if isinstance(problem, BucketRefused):
                    raise problem from error
                # Its answer may be what was lost.
                if (etag := self._etag_by(writer, key, problem)) is not None:
                    return etag
            pause(problem)
        raise AssertionError("the pauses end with an error")

    def _etag_by(self, writer: str, key: str, problem: BucketError) -> str | None:
        """Of the object if this writer wrote it; where that cannot be seen, the problem is raised."""
        try:
            found = self._look(key)
        except BucketError:
            raise problem from None
        return found.info.etag if found is not None and found.writer == writer else None

    def _look(self, key: str) -> _Found | None:
        answer = self._again(lambda: self._get(key, {"head": True}), f"look for {key}")
        if answer is None:
            return None
        return _Found(_info(answer.meta), answer.attributes.get(_WRITER))

    def _get(self, key: str, options: dict[str, Any]) -> Any:
        try:
            return obstore.get(self._store, key, options=options)
        except FileNotFoundError as error:
            problem = explain(error, f"read {key}", self._where)
            if isinstance(problem, BucketRefused):
                raise problem from error
            return None

    def _again(self, work: Callable[[], T], doing: str) -> T:
        for pause in self._pauses():
            try:
                return work()
            except _ERRORS as error:
                pause(explain(error, doing, self._where))
        raise AssertionError("the pauses end with an error")

    def _pauses(self) -> Iterator[Callable[[BucketError], None]]:
        """For each try a function that takes why it failed: it waits, or raises that after all patience."""
        deadline = time.monotonic() + self._patience_s
        longest_s = _FIRST_PAUSE_S

        def pause(problem: BucketError) -> None:
            if isinstance(problem, BucketRefused) or time.monotonic() >= deadline:
                raise problem
            time.sleep(random.uniform(0, longest_s))

        while True:
            yield pause
            longest_s = min(2 * longest_s, _LONGEST_PAUSE_S)


class ObjectReading(Iterator[bytes]):
    """The bytes of one object as it was when opened. A broken connection is opened again where it broke."""

    def __init__(self, bucket: Bucket, key: str, opened: Any, start: int) -> None:
        self._bucket = bucket
        self._key = key
        self.info = _info(opened.meta)
        self._at, self._end = opened.range
        if self._at != start:
            raise BucketError(f"{bucket.url}/{key}: the store sent another part of the object than asked for")
        self._stream: Iterator[Any] = opened.stream(min_chunk_size=_CHUNK_BYTES)

    @property
    def left(self) -> int:
        return int(self._end - self._at)

    def __next__(self) -> bytes:
        if self._at >= self._end:
            raise StopIteration
        for pause in self._bucket._pauses():
            try:
                piece = bytes(next(self._stream))
                if piece:
                    self._at += len(piece)
                    return piece
            except StopIteration:
                problem = BucketError(f"{self._bucket.url}/{self._key} ended {self.left} bytes too early")
            except _ERRORS as error:
                problem = explain(error, f"read {self._key}", self._bucket._where)
            pause(problem)
            self._open_again()
        raise AssertionError("the pauses end with an error")

    def _open_again(self) -> None:
        options = {"range": (self._at, self._end), "if_match": self.info.etag}
        opened = self._bucket._again(
            lambda: self._bucket._get(self._key, options), f"go on reading {self._key}"
        )
        if opened is None:
            raise BucketError(f"{self._bucket.url}/{self._key} was deleted while it was read")
        self._stream = opened.stream(min_chunk_size=_CHUNK_BYTES)


def _options(url: str, endpoint: str | None, patience_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        # An endpoint says by its scheme whether it has TLS; the clouds' own always do.
        "client_options": {
            "allow_http": True,
            "timeout": timedelta(days=1),
            "read_timeout": timedelta(seconds=_STALL_S),
            "connect_timeout": timedelta(seconds=5),
        },
        "retry_config": {
            "max_retries": 20,
            "retry_timeout": timedelta(seconds=patience_s),
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_PAUSE_S),
                "max_backoff": timedelta(seconds=_LONGEST_PAUSE_S),
            },
        },
    }
    if endpoint is not None:
        options["config"] = {"endpoint": endpoint}
    if url.startswith("s3:") and (provider := _profile()) is not None:
        options["credential_provider"] = provider
    return options


def _profile() -> Any:
    """Who this is by the files of the AWS tools, which obstore does not read; variables go first."""
    if not (Path.home() / ".aws").is_dir() or find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - boto3 is large, and few need it

    try:
        return Boto3CredentialProvider()
    except ValueError:
        return None


def _range(start: int, length: int | None) -> dict[str, Any]:
    if length is not None:
        return {"range": (start, start + length)}
    return {"range": {"offset": start}} if start else {}


def _size(source: Buffer | Path) -> int:
    return source.stat().st_size if isinstance(source, Path) else memoryview(source).nbytes


def _attributes(writer: str) -> dict[str, str]:
    return {_WRITER: writer, "Content-Type": "application/octet-stream"}


def _may_hold(mode: Any, found: _Found | None) -> bool:
    """Whether the condition holds by now: S3 also refuses a write because another was under way."""
    if mode == "create":
        return found is None
    return found is not None and found.info.etag == mode["e_tag"]


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())
