"""What a round needs of the place where replicas meet: objects by key, whole or absent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from corral.errors import CorralError

Buffer = bytes | bytearray | memoryview
# One piece of a key; what begins with a dot is the store's own.
_KEY = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_=.-]*(/[A-Za-z0-9_=-][A-Za-z0-9_=.-]*)*")
_LONGEST_KEY = 512


class StoreError(CorralError):
    """The store where replicas meet did not do what was asked; says what, where, and what to do next."""

    code = "round_store"
    hint = "Try again; if it persists, check the store, and the network of this machine."


class StoreRefused(StoreError):
    """The store is not for this process: a wrong key, a missing right, a folder that cannot be written to."""

    code = "round_store_refused"


class StoredObject(NamedTuple):
    """`modified` is the store's own time in seconds since 1970."""

    key: str
    size: int
    modified: float


class RoundStore(Protocol):
    """Objects that are visible whole or not at all, to all replicas at once.

    Calls block, try again where that can help, and raise StoreError. A key is words of letters, digits and
    `_=.-`, with slashes between. An etag names the content at one time; only equality means something.
    """

    def put(self, key: str, data: Buffer | Iterable[Buffer]) -> str:
        """Make or replace the object and return its etag. Pieces are streamed: memory stays bounded.

        Give pieces that can be iterated again, not an iterator: after a failure they are sent anew.
        """
        ...

    def create(self, key: str, data: Buffer) -> bool:
        """True if this call made the object, False if there is one: of all who try, exactly one wins.

        For small objects.
        """
        ...

    def replace(self, key: str, data: Buffer, etag: str) -> bool:
        """True if the object had that etag and is replaced. False if it is another by now, or gone.

        False as well where an answer was lost and another has replaced the object since.
        """
        ...

    def get(self, key: str) -> tuple[bytes, str] | None:
        """Content and etag; None if there is no such object."""
        ...

    def read_into(self, key: str, buffer: bytearray | memoryview, start: int = 0) -> int | None:
        """Fill the buffer from `start` on, and return how many bytes that was: fewer only where the object
        ends. None if there is no such object. All bytes are of one version of the object."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """Every object below the folder `prefix`; all if it is empty."""
        ...

    def delete(self, key: str) -> None:
        """No error if there is none."""
        ...

    def now(self) -> float:
        """The store's own time in seconds since 1970, by which `modified` goes; a bucket's has whole seconds.

        No clock of this machine is asked.
        """
        ...


def checked_key(key: str) -> str:
    if len(key) > _LONGEST_KEY or not _KEY.fullmatch(key):
        raise StoreError(
            f"not a key of a round store: {key[:80]!r}",
            hint="Use letters, digits and `_=.-`, with slashes between; no piece begins with a dot.",
        )
    return key


def checked_prefix(prefix: str) -> str:
    return checked_key(prefix.rstrip("/")) if prefix else ""
