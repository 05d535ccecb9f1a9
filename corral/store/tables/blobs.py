"""Which project has which bytes, and what keeps them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from corral.domain.artifacts import Blob
from corral.domain.ids import Digest
from corral.store.rows import BLOB, Row
from corral.store.table import Table

# One unit of work stays short; the next sweep goes on where this one ended.
_PINS_AT_ONCE = 1000
_LOOKS_PER_FIND = 8


class SqlBlobs(Table):
    """A row is loose while perhaps no manifest and no pin names it: collection looks only at loose rows.

    It is inserted loose, and becomes loose again whenever a pin or a manifest that named it is deleted.
    """

    def get(self, project: str, digest: Digest) -> Blob | None:
        return self._one(BLOB, "blob_get", project=project, digest=digest)

    def put(self, blob: Blob) -> None:
        """Insert; a row that is there already stays as it is."""
        self._tell("project_bytes_add", project=blob.project, digest=blob.digest, size=blob.size)
        self._db.put("blob_put", BLOB, blob)

    def present(self, project: str, digests: Sequence[Digest]) -> dict[Digest, int]:
        """The sizes of those blobs that the project has and that are not condemned."""
        params = {"project": project, "digests": json.dumps([*digests])}
        return {Digest(row[0]): row[1] for row in self._db.all("blob_present", params)}

    def pin(self, project: str, digests: Sequence[Digest], *, holder: str, expires_at: float | None) -> None:
        named = json.dumps([*digests])
        self._tell("blob_pin", project=project, digests=named, holder=holder, expires_at=expires_at)

    def pinned_by(self, holder: str, project: str, digests: Sequence[Digest]) -> set[Digest]:
        """Those of the blobs that the holder pins."""
        params = {"holder": holder, "project": project, "digests": json.dumps([*digests])}
        return {Digest(row[0]) for row in self._db.all("pin_of_these", params)}

    def let_go(self, holder: str, *, at: float) -> None:
        """Its pins end then, unless it comes back and keeps them."""
        self._tell("pins_until", holder=holder, at=at)

    def keep(self, holder: str) -> None:
        """Its pins stay until they are unpinned."""
        self._tell("pins_until", holder=holder, at=None)

    def unpin(self, holder: str) -> None:
        pinned = self._db.all("pin_of_holder", {"holder": holder})
        if pinned:
            self._tell("unpin", holder=holder)
            self._loosen(pinned)

    def unpin_passing(self, holder: str, project: str, digest: Digest) -> None:
        """Its pin of this blob, if that one is only for a time."""
        params = {"project": project, "digest": digest, "holder": holder}
        if self._db.run("unpin_passing", params):
            self._loosen([(project, digest)])

    def expire_pins(self, now: float) -> int:
        expired = self._db.all("pin_expired", {"now": now, "limit": _PINS_AT_ONCE})
        for project, digest, holder in expired:
            self._tell("pin_delete", project=project, digest=digest, holder=holder, now=now)
        self._loosen(row[:2] for row in expired)
        return len(expired)

    def condemn(self, older_than: float, now: float, limit: int) -> list[Blob]:
        """Condemn rows that neither a manifest nor a pin names; return them and those condemned before."""
        marked = 0
        # Rows that turn out to be held cost a look each and are not loose afterwards.
        for _ in range(_LOOKS_PER_FIND):
            loose = self._db.all("blob_loose", {"older_than": older_than, "limit": limit})
            marked += sum(self._judge(project, digest, now) for project, digest in loose)
            if marked >= limit or len(loose) < limit:
                break
        return self._all(BLOB, "blob_condemned", limit=limit)

    def _judge(self, project: str, digest: str, now: float) -> bool:
        if self._exists("blob_held", project=project, digest=digest):
            self._tell("blob_tighten", project=project, digest=digest)
            return False
        self._tell("blob_condemn", project=project, digest=digest, now=now)
        return True

    def drop(self, project: str, digest: Digest) -> bool:
        """Delete a condemned row; True if no other project has the bytes either."""
        # As for an upload: no other transaction counts the project's bytes in between.
        self._lock_project(project)
        self._tell("project_bytes_take", project=project, digest=digest)
        self._tell("blob_drop", project=project, digest=digest)
        return not self._exists("blob_elsewhere", digest=digest)

    def page(self, after: tuple[str, Digest] | None, limit: int) -> list[Blob]:
        project, digest = after or ("", "")
        return self._all(BLOB, "blob_page", after_project=project, after_digest=digest, limit=limit)

    def any_project_has(self, digest: Digest) -> bool:
        """Whether a row that is not condemned names these bytes."""
        return self._exists("blob_anywhere", digest=digest)

    def is_condemned(self, digest: Digest) -> bool:
        """Whether a row of any project that names these bytes is condemned."""
        return self._exists("blob_condemned_anywhere", digest=digest)

    def project_bytes(self, project: str) -> int:
        """How many bytes the project's files have, condemned ones included.

        No other transaction that writes can ask this until this one ends, so what it adds stays counted.
        """
        self._lock_project(project)
        kept = self._column("project_bytes_get", project=project)
        return int(kept[0]) if kept else self._number("blob_project_bytes", project=project)

    def count_bytes(self, project: str) -> None:
        """Keep the count of `project_bytes`, which then need not look at every file.

        Repeated now and then, since older servers do not update it.
        """
        self._lock_project(project)
        total = self._number("blob_project_bytes", project=project)
        self._tell("project_bytes_put", project=project, bytes=total)

    def _lock_project(self, project: str) -> None:
        self._db.one("blob_lock_project", {"project": project})

    def _loosen(self, blobs: Iterable[Row]) -> None:
        by_project: defaultdict[str, list[str]] = defaultdict(list)
        for project, digest in blobs:
            by_project[project].append(digest)
        for project, digests in sorted(by_project.items()):
            self._tell("blob_loosen", project=project, digests=json.dumps(digests))
