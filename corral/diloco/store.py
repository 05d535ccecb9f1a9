"""Opens the store where replicas meet, by its URL."""

from __future__ import annotations

import secrets
from pathlib import Path

from corral.diloco.folder_store import FolderStore
from corral.diloco.round_store import RoundStore, StoredObject, StoreError, StoreRefused

__all__ = ["RoundStore", "StoreError", "StoredObject", "check_store", "open_store"]

_BUCKETS = ("s3://", "gs://", "az://")
# That of the control plane, for replicas that are ranks of a run.
OWN_STORE = "corral"


def open_store(url: str, *, endpoint: str | None = None, patience_s: float = 60.0) -> RoundStore:
    """A folder by its path, or `s3://bucket/prefix` (`gs://`, `az://`).

    `endpoint` is for a store that speaks S3 and is not Amazon's. Each call is tried for `patience_s`.
    """
    if url == OWN_STORE:
        raise StoreRefused(
            "the control plane has no store for rounds",
            hint="Name one: a folder that all hosts share, or s3://bucket/prefix.",
        )
    if not url.startswith(_BUCKETS):
        path = url.removeprefix("file://")
        if "://" in path or not path:
            raise StoreError(
                f"no store is known by {url!r}", hint="Name a folder, or s3://, gs:// or az:// and a bucket."
            )
        return FolderStore(Path(path))
    try:
        from corral.diloco.bucket_store import BucketStore  # noqa: PLC0415 - obstore is an extra
    except ImportError:
        raise StoreRefused(
            f"{url} needs obstore, which is not installed", hint="Install it with `pip install 'corral[s3]'`."
        ) from None
    return BucketStore(url, endpoint=endpoint, patience_s=patience_s)


def check_store(store: RoundStore) -> None:
    """StoreError unless the store does what rounds rely on: they would lose updates without a word."""
    folder = f"corral-check-{secrets.token_hex(8)}"
    key = f"{folder}/object"
    try:
        if not store.create(key, b"first"):
            raise _unfit("says that an object is there which was never made")
        if store.create(key, b"second"):
            raise _unfit("lets two writers create the same object")
        if (found := store.get(key)) is None or found[0] != b"first":
            raise _unfit("does not give back what was just written")
        if [one.key for one in store.list(folder)] != [key]:
            raise _unfit("does not list what was just written")
        if not store.replace(key, b"third", found[1]) or store.replace(key, b"fourth", found[1]):
            raise _unfit("replaces an object whatever its etag is")
    finally:
        store.delete(key)


def _unfit(why: str) -> StoreError:
    return StoreError(
        f"this store cannot hold rounds: it {why}",
        hint="Use a folder of one file system, or an S3 that honours If-None-Match and If-Match.",
    )
