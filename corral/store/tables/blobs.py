"""Which project has which bytes, and what keeps them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from corral.domain.artifacts import Blob
from corral.domain.ids import Digest
from corral.store.connection import Connection
from corral.store.rows import BLOB

# One unit of work stays short; the next sweep goes on where this one ended.
_PINS_AT_ONCE = 1000
_LOOKS_PER_FIND = 8


class SqlBlobs:
    """A row is loose while it may have neither manifest nor pin: collection looks only at loose rows.

    It is born loose, and made loose again whenever a pin or a manifest that named it goes.
    """

    def __init__(self, connection: Connection) -> None:
        self._db = connection

    def get(self, project: str, digest: Digest) -> Blob | None:
        row = self._db.one("blob_get", {"project": project, "digest": digest})
        return None if row is None else BLOB.read(row)

    def put(self, blob: Blob) -> None:
        """Insert, or clear nothing if it is there already."""
        new = {"project": blob.project, "digest": blob.digest, "size": blob.size}
        self._db.tell("project_bytes_add", new)
        self._db.put("blob_put", BLOB, blob)

    def present(self, project: str, digests: Sequence[Digest]) -> dict[Digest, int]:
        """Of these, the ones the project has and that are not condemned, with their sizes."""
        params = {"project": project, "digests": json.dumps(list(digests))}
        return {Digest(row[0]): row[1] for row in self._db.all("blob_present", params)}

    def pin(self, project: str, digests: Sequence[Digest], *, holder: str, expires_at: float | None) -> None:
        params = {
            "project": project,
            "digests": json.dumps(list(digests)),
            "holder": holder,
            "expires_at": expires_at,
        }
        self._db.tell("blob_pin", params)

    def unpin(self, holder: str) -> None:
        pinned = [(row[0], row[1]) for row in self._db.all("pin_of_holder", {"holder": holder})]
        if pinned:
            self._db.tell("unpin", {"holder": holder})
            self._loosen(pinned)

    def expire_pins(self, now: float) -> int:
        expired = self._db.all("pin_expired", {"now": now, "limit": _PINS_AT_ONCE})
        for project, digest, holder in expired:
            params = {"project": project, "digest": digest, "holder": holder, "now": now}
            self._db.tell("pin_delete", params)
        self._loosen((row[0], row[1]) for row in expired)
        return len(expired)

    def condemn(self, older_than: float, now: float, limit: int) -> list[Blob]:
        """Mark rows with neither manifest nor pin, and return them together with those marked before."""
        marked = 0
        # Rows that turn out to be held cost a look each and are not loose afterwards.
        for _ in range(_LOOKS_PER_FIND):
            params = {"older_than": older_than, "limit": limit}
            loose = [(row[0], row[1]) for row in self._db.all("blob_loose", params)]
            marked += sum(self._judge(project, digest, now) for project, digest in loose)
            if marked >= limit or len(loose) < limit:
                break
        return [BLOB.read(row) for row in self._db.all("blob_condemned", {"limit": limit})]

    def _judge(self, project: str, digest: str, now: float) -> bool:
        key = {"project": project, "digest": digest}
        if self._db.one("blob_held", key) is not None:
            self._db.tell("blob_tighten", key)
            return False
        self._db.tell("blob_condemn", {**key, "now": now})
        return True

    def drop(self, project: str, digest: Digest) -> bool:
        """Delete a condemned row; True if no other project has the bytes either."""
        # As for an upload: nobody counts the project's bytes in between.
        self._db.one("blob_lock_project", {"project": project})
        self._db.tell("project_bytes_take", {"project": project, "digest": digest})
        self._db.tell("blob_drop", {"project": project, "digest": digest})
        return self._db.one("blob_elsewhere", {"digest": digest}) is None

    def page(self, after: tuple[str, Digest] | None, limit: int) -> list[Blob]:
        project, digest = after or ("", "")
        params = {"after_project": project, "after_digest": digest, "limit": limit}
        return [BLOB.read(row) for row in self._db.all("blob_page", params)]

    def any_project_has(self, digest: Digest) -> bool:
        """Whether a row that is not condemned names these bytes."""
        return self._db.one("blob_anywhere", {"digest": digest}) is not None

    def is_condemned(self, digest: Digest) -> bool:
        """Whether a row of any project that names these bytes is on its way out."""
        return self._db.one("blob_condemned_anywhere", {"digest": digest}) is not None

    def project_bytes(self, project: str) -> int:
        """How many bytes the project's files have, those on their way out included. In a transaction that
        writes, no other one asks this until it ends: what is added to the answer stays true."""
        self._db.one("blob_lock_project", {"project": project})
        known = self._db.one("project_bytes_get", {"project": project})
        (row,) = [known] if known is not None else self._db.all("blob_project_bytes", {"project": project})
        return int(row[0])

    def count_bytes(self, project: str) -> None:
        """Count them, and keep the count: from then on `project_bytes` need not look at every file. Done
        again now and then, since servers of before did not keep it."""
        self._db.one("blob_lock_project", {"project": project})
        (row,) = self._db.all("blob_project_bytes", {"project": project})
        self._db.tell("project_bytes_put", {"project": project, "bytes": int(row[0])})

    def _loosen(self, blobs: Iterable[tuple[str, str]]) -> None:
        by_project: defaultdict[str, list[str]] = defaultdict(list)
        for project, digest in blobs:
            by_project[project].append(digest)
        for project, digests in sorted(by_project.items()):
            self._db.tell("blob_loosen", {"project": project, "digests": json.dumps(digests)})
