"""Uploads that are not files yet, of projects whose quota limits their bytes."""

from __future__ import annotations

from corral.domain.ids import Digest
from corral.store.table import Table


def name_of_open(request: str) -> str:
    """Of an upload that a request is making."""
    return f"open:{request}"


def name_of_partial(digest: Digest, uploader: str) -> str:
    """Of one that broke off, and that its uploader may go on with."""
    return f"{digest}.{uploader}"


class SqlUploads(Table):
    def put(self, project: str, name: str, size: int, *, now: float) -> None:
        """It has, or may have soon, so many bytes; none are no upload."""
        if size:
            self._tell("upload_put", project=project, name=name, bytes=size, now=now)
        else:
            self.drop(project, name)

    def drop(self, project: str, name: str) -> None:
        self._tell("upload_drop", project=project, name=name)

    def bytes_of(self, project: str) -> int:
        return self._number("upload_bytes", project=project)

    def sweep(self, *, before: float, open_before: float) -> None:
        """Forget those that were not touched since then: their partial files are deleted, or never were."""
        self._tell("upload_sweep", before=before, open_before=open_before)
