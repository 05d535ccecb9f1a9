"""Room for uploads within a project's quota, from their first byte: what is under way counts like a file."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from corral.core.quotas import check_room
from corral.core.storage.blobs import BlobHolder, remember
from corral.domain.errors import ProjectFull
from corral.domain.ids import Digest
from corral.store.tables.uploads import name_of_open, name_of_partial
from corral.store.transaction import Tx

# An upload whose size was not announced is let grow in steps of this size.
STEP_BYTES = 8 << 20


class ReservedSpace(NamedTuple):
    """`known` bytes the project has already, so they cost nothing more."""

    known: int
    reserved: int

    def holds(self, size: int) -> bool:
        return size <= self.known + self.reserved


@dataclass(frozen=True)
class UploadSpace:
    """The room that one request takes: `reserve`, perhaps `grow`, then `become_files` or `leave`.

    Only of a project whose quota limits its bytes is anything written down.
    """

    holder: BlobHolder
    digests: tuple[Digest, ...]
    _name: str = field(default_factory=lambda: name_of_open(secrets.token_hex(8)))

    def reserve(self, tx: Tx, size: int, *, anew: bool, now: float) -> ReservedSpace:
        """ProjectFull if the project has no room for so many bytes; `anew` forgets what broke off before."""
        if anew:
            self._put_partials(tx, 0, now=now)
        known = sum(tx.blobs.present(self.holder.project, self.digests).values())
        return self._take(tx, ReservedSpace(known, 0), size, now=now)

    def grow(self, tx: Tx, space: ReservedSpace, size: int, *, now: float) -> ReservedSpace:
        """More came than there is room for yet."""
        with suppress(ProjectFull):
            return self._take(tx, space, size + STEP_BYTES, now=now)
        return self._take(tx, space, size, now=now)

    def become_files(
        self, tx: Tx, space: ReservedSpace | None, sizes: Mapping[Digest, int], *, now: float
    ) -> bool:
        """The bytes are stored: they count as files now. See `remember`."""
        if space is not None:
            self.leave(tx, 0, now=now)
        return remember(tx, self.holder, sizes, now=now)

    def leave(self, tx: Tx, partial: int, *, now: float) -> None:
        """The upload is over; so many bytes of one that broke off stay for a while."""
        tx.uploads.drop(self.holder.project, self._name)
        self._put_partials(tx, partial, now=now)

    def _take(self, tx: Tx, space: ReservedSpace, size: int, *, now: float) -> ReservedSpace:
        wanted = max(0, size - space.known)
        check_room(tx, self.holder.project, wanted - space.reserved)
        tx.uploads.put(self.holder.project, self._name, wanted, now=now)
        return space._replace(reserved=wanted)

    def _put_partials(self, tx: Tx, size: int, *, now: float) -> None:
        for digest in self.digests:
            name = name_of_partial(digest, self.holder.name)
            tx.uploads.put(self.holder.project, name, size, now=now)
