"""Blobs in a bucket whose answers are lost, late, torn or errors."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from support.faulty_s3 import COMMON, Fault, FaultyS3, faulty
from support.seaweed import seaweed

from corral.adapters.blobs.bucket import BucketBlobs
from corral.domain.errors import StoreUnavailable
from corral.domain.ids import Digest
from corral.files.bucket import Bucket
from corral.files.bucket_errors import BucketError, BucketRefused, explain

MIB = 1 << 20
DATA = secrets.token_bytes(20 * MIB)
DIGEST = Digest(hashlib.sha256(DATA).hexdigest())


class _Scene(NamedTuple):
    blobs: BucketBlobs
    plan: FaultyS3
    # Of the same objects, past the proxy.
    bucket: Bucket


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[_Scene]:
    url = seaweed().fresh_url()
    with faulty(seaweed().endpoint) as (address, plan):
        blobs = BucketBlobs(Bucket(url, endpoint=address, patience_s=20), tmp_path)
        yield _Scene(blobs, plan, Bucket(url, endpoint=seaweed().endpoint))


def upload(blobs: BucketBlobs) -> None:
    one = blobs.open_upload(DIGEST, uploader="lease-1", offset=None)
    one.write(DATA)
    assert one.commit() == len(DATA)


@pytest.mark.parametrize("fault", COMMON)
def test_a_blob_goes_through_a_bucket_with_faults(scene: _Scene, fault: Fault) -> None:
    scene.plan.plan(fault, method="POST", path="uploads")
    scene.plan.plan(fault, method="PUT")
    scene.plan.plan(fault, method="POST", path="uploadId")

    upload(scene.blobs)
    scene.plan.plan(fault, fault, method="GET")
    assert b"".join(scene.blobs.read(DIGEST)) == DATA
    scene.plan.plan(fault, method="HEAD")

    assert scene.blobs.has(DIGEST)
    assert scene.blobs.verify(DIGEST)
    assert [one.key for one in scene.bucket.list("")] == [f"blobs/{DIGEST[:2]}/{DIGEST}"]


def test_an_upload_that_the_bucket_did_not_take_goes_on_without_being_sent_again(
    scene: _Scene, tmp_path: Path
) -> None:
    """The bucket is away while the upload is committed: its bytes stay where they are."""
    gone = BucketBlobs(Bucket("s3://corral/x", endpoint="http://127.0.0.1:9", patience_s=0.1), tmp_path)
    one = gone.open_upload(DIGEST, uploader="lease-1", offset=None)
    one.write(DATA)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        one.commit()
    one.close()

    offset = scene.blobs.partial_size(DIGEST, uploader="lease-1")
    assert offset == len(DATA)
    again = scene.blobs.open_upload(DIGEST, uploader="lease-1", offset=offset)
    assert again.commit() == len(DATA)
    assert scene.blobs.verify(DIGEST)
    assert list((tmp_path / "partial").iterdir()) == []


def test_an_object_with_other_bytes_is_found_and_healed_by_an_upload(scene: _Scene) -> None:
    upload(scene.blobs)
    key = f"blobs/{DIGEST[:2]}/{DIGEST}"
    scene.bucket.put(key, b"other bytes")

    assert not scene.blobs.verify(DIGEST)
    scene.blobs.set_aside(DIGEST)
    (aside,) = scene.bucket.list("damaged")
    assert aside.size == len(b"other bytes")
    upload(scene.blobs)
    assert scene.blobs.verify(DIGEST)


def test_a_reading_never_mixes_two_versions(scene: _Scene) -> None:
    """The connection breaks, and the object is another one when it is opened again."""
    upload(scene.blobs)
    scene.plan.plan(Fault.TORN, method="GET")
    reading = scene.blobs.read(DIGEST)
    scene.bucket.put(f"blobs/{DIGEST[:2]}/{DIGEST}", bytes(len(DATA)))

    with pytest.raises(StoreUnavailable):
        b"".join(reading)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "does not accept the credentials"),
        ("AWS_ACCESS_KEY_ID", "nobody", "does not accept the credentials"),
    ],
)
def test_wrong_credentials_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    url = seaweed().fresh_url()
    monkeypatch.setenv(name, value)

    with pytest.raises(BucketError, match=words) as caught:
        Bucket(url, endpoint=seaweed().endpoint, patience_s=5).check()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.parametrize(
    ("answer", "words", "hint"),
    [
        (
            "status code: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>",
            "no such bucket",
            "Create it",
        ),
        (
            "status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>",
            "do not allow",
            "list objects",
        ),
        ("status code: 301: <Error><Code>PermanentRedirect</Code></Error>", "another region", "AWS_REGION"),
        (
            "Error performing PUT http://169.254.169.254/latest/api/token",
            "no credentials",
            "AWS_ACCESS_KEY_ID",
        ),
    ],
)
def test_what_amazon_answers_is_put_into_words(answer: str, words: str, hint: str) -> None:
    """What only Amazon's own answers say: SeaweedFS makes a bucket that is missing."""
    found = explain(OSError(answer), "write a", "s3://bucket/prefix")

    assert isinstance(found, BucketRefused)
    assert words in found.message
    assert "s3://bucket/prefix" in found.message
    assert hint in found.hint
