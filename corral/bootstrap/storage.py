"""The part of bootstrap that opens where files are stored, and keeps a home and its bucket together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters.blobs.folder import DirectoryBlobs
from corral.domain.errors import Conflict, CorralError, InvalidInput
from corral.files.atomic import write_private
from corral.ports.blobs import BlobStore
from corral.settings import Settings

if TYPE_CHECKING:
    # It loads obstore, an extra.
    from corral.files.bucket import Bucket

# Beside the blobs: whose they are.
_OWNER = "installation.json"
# `corral up` waits a minute for the server.
_START_PATIENCE_S = 5.0


class ObstoreMissing(CorralError):
    code = "obstore_missing"
    hint = "Install it with `pip install 'corral[s3]'`."


def open_bucket(settings: Settings, *, patience_s: float = 60.0) -> Bucket:
    try:
        from corral.files.bucket import Bucket  # noqa: PLC0415 - an extra; most have no obstore
    except ImportError:
        raise ObstoreMissing("CORRAL_STORAGE_URL names a bucket, but obstore is not installed") from None
    return Bucket(settings.storage_url or "", endpoint=settings.storage_endpoint, patience_s=patience_s)


def open_blobs(settings: Settings) -> BlobStore:
    hand_over = settings.hand_over == "on"
    if settings.storage_url is None:
        return DirectoryBlobs(settings.home, min_free_bytes=settings.min_free_bytes, hand_over=hand_over)
    bucket = open_bucket(settings)
    from corral.adapters.blobs.bucket import BucketBlobs  # noqa: PLC0415 - it loads obstore, an extra

    return BucketBlobs(bucket, settings.home, min_free_bytes=settings.min_free_bytes, hand_over=hand_over)


def join_storage(settings: Settings, installation: str) -> None:
    """Refuse a bucket that cannot be used, is another installation's, or lacks what is stored already."""
    known, wanted = _known(settings.storage_file), _normal(settings.storage_url)
    if known is not None and known != wanted:
        raise Conflict(
            f"the files of this installation are in {known}, and CORRAL_STORAGE_URL is {wanted or 'not set'}",
            hint=f"Set it to {known}. To move them, copy everything below {known}/blobs to the new place, "
            f"then remove {settings.storage_file}.",
        )
    if wanted is None:
        return
    bucket = open_bucket(settings, patience_s=_START_PATIENCE_S)
    bucket.check()
    _claim(bucket, installation)
    if known is None:
        _check_moved(bucket, settings.home / "blobs")
        write_private(settings.storage_file, json.dumps({"url": wanted}) + "\n")


def _normal(url: str | None) -> str | None:
    return None if url is None else url.rstrip("/")


def _known(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["url"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} cannot be read: {error}", hint="Restore it from a backup, or remove it to go on without."
        ) from None


def _claim(bucket: Bucket, installation: str) -> None:
    """Two installations in one place would delete each other's files: each knows only its own as used."""
    if bucket.create(_OWNER, json.dumps({"id": installation}).encode() + b"\n"):
        return
    found = b"".join(bucket.read(_OWNER) or ())
    try:
        owner = json.loads(found)["id"]
    except (ValueError, KeyError, TypeError):
        owner = "unknown"
    if owner != installation:
        raise Conflict(
            f"{bucket.url} has the files of another installation ({owner}), and this is {installation}",
            hint="Give each installation a prefix of its own in CORRAL_STORAGE_URL.",
        )


def _check_moved(bucket: Bucket, blobs: Path) -> None:
    for folder in sorted(blobs.iterdir()) if blobs.is_dir() else ():
        there = {one.key.rpartition("/")[2] for one in bucket.list(f"blobs/{folder.name}")}
        for path in folder.iterdir():
            if path.name not in there:
                raise Conflict(
                    f"files of this installation are in {blobs} and not in {bucket.url}: {path.name} is one",
                    hint=f"Copy the folder to {bucket.url}/blobs first: `aws s3 cp --recursive` does.",
                )
