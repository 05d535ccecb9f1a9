"""Blobs: which are there, and where clients on the server's machine find them."""

from __future__ import annotations

from pydantic import Field

from corral.wire.base import Answer, DigestText, Strict


class BlobQuery(Strict):
    """Which of these does the project hold? Those it holds are pinned for the caller."""

    blobs: list[DigestText] = Field(max_length=10_000)


class BlobAnswer(Answer):
    """`missing` must be uploaded; `offsets` says where a broken upload of one may go on."""

    missing: list[str]
    offsets: dict[str, int] = {}


class StoredBlob(Answer):
    sha256: str
    size: int
    existed: bool


class HandoverFolder(Answer):
    """A folder of the machine that the server and the caller share; none if they share none."""

    folder: str | None


class HandoverRequest(Strict):
    """A file that was put into that folder. With `size` it may still be written, under a lock."""

    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    size: int | None = Field(default=None, ge=0)


class BlobPlace(Answer):
    """Where on that machine a blob can be read."""

    path: str | None
