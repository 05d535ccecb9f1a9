"""What every BlobStore promises. An adapter is done when its name is among the params."""

import hashlib
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.seaweed import seaweed

from corral.adapters.blobs.bucket import BucketBlobs
from corral.adapters.blobs.folder import DirectoryBlobs
from corral.domain.errors import Conflict, DigestMismatch, InvalidInput, OffsetMismatch, StoreUnavailable
from corral.domain.ids import Digest
from corral.files import large
from corral.files.bucket import Bucket
from corral.ports.blobs import BlobStore, HandedOverFile

MIB = 1 << 20
PREFIXES = [f"{number:02x}" for number in range(256)]


def _bucket() -> Bucket:
    return Bucket(seaweed().fresh_url(), endpoint=seaweed().endpoint, patience_s=20)


@pytest.fixture(params=["directory", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    makers: dict[str, Callable[[], BlobStore]] = {
        "directory": lambda: DirectoryBlobs(tmp_path / "store"),
        "s3": lambda: BucketBlobs(_bucket(), tmp_path / "store"),
    }
    return makers[request.param]()


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def put(blobs: BlobStore, data: bytes, *, uploader: str = "lease-1") -> Digest:
    upload = blobs.open_upload(digest_of(data), uploader=uploader, offset=None)
    upload.write(data)
    assert upload.commit() == len(data)
    return digest_of(data)


def content(blobs: BlobStore, digest: Digest) -> bytes:
    return b"".join(blobs.read(digest))


def everything(blobs: BlobStore) -> set[Digest]:
    return {digest for prefix in PREFIXES for digest in blobs.digests(prefix)}


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, 3 * MIB + 7])
def test_what_was_uploaded_is_read_back(blobs: BlobStore, size: int) -> None:
    data = secrets.token_bytes(size)

    digest = put(blobs, data)

    assert blobs.has(digest)
    assert blobs.size(digest) == size
    assert content(blobs, digest) == data
    assert blobs.verify(digest)
    assert everything(blobs) == {digest}


def test_small_pieces_add_up(blobs: BlobStore) -> None:
    data = secrets.token_bytes(2 * MIB + 5)
    upload = blobs.open_upload(digest_of(data), uploader="lease-1", offset=None)
    for start in range(0, len(data), 65_537):
        upload.write(data[start : start + 65_537])

    assert upload.offset == len(data)
    assert upload.commit() == len(data)
    assert content(blobs, digest_of(data)) == data


def test_a_part_of_a_blob_can_be_read(blobs: BlobStore) -> None:
    data = secrets.token_bytes(3 * MIB)
    digest = put(blobs, data)

    assert b"".join(blobs.read(digest, start=MIB + 1)) == data[MIB + 1 :]
    assert b"".join(blobs.read(digest, start=5, length=2 * MIB)) == data[5 : 5 + 2 * MIB]
    assert b"".join(blobs.read(digest, start=len(data))) == b""
    assert b"".join(blobs.read(digest, start=3, length=0)) == b""


def test_a_blob_shorter_than_expected_is_an_error_and_not_a_short_answer(blobs: BlobStore) -> None:
    digest = put(blobs, b"lora")

    with pytest.raises(StoreUnavailable, match="has 4 bytes, 5 were expected"):
        blobs.read(digest, length=5)
    with pytest.raises(StoreUnavailable):
        blobs.read(digest, start=5)


def test_an_absent_blob_is_a_key_error_at_the_call(blobs: BlobStore) -> None:
    absent = digest_of(b"absent")

    assert not blobs.has(absent)
    for call in (blobs.size, blobs.read, blobs.verify):
        with pytest.raises(KeyError):
            call(absent)
    blobs.delete(absent)


def test_a_deleted_blob_is_gone_but_a_reader_reaches_its_end(blobs: BlobStore) -> None:
    data = secrets.token_bytes(2 * MIB)
    digest = put(blobs, data)
    reading = blobs.read(digest)

    blobs.delete(digest)

    assert not blobs.has(digest)
    assert b"".join(reading) == data


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "A" * 64, "0" * 63, "0" * 64 + "\n", "../" + "0" * 61]
)
def test_what_is_no_digest_is_refused_by_every_entry(blobs: BlobStore, name: str) -> None:
    """FL-D19, FL-D21: no upload without a hash, and no name that leaves the store."""
    bad = Digest(name)
    calls: list[Callable[[], object]] = [
        lambda: blobs.open_upload(bad, uploader="lease-1", offset=None),
        lambda: blobs.partial_size(bad, uploader="lease-1"),
        lambda: blobs.has(bad),
        lambda: blobs.size(bad),
        lambda: blobs.read(bad),
        lambda: blobs.verify(bad),
        lambda: blobs.delete(bad),
    ]
    for call in calls:
        with pytest.raises(InvalidInput):
            call()
    with pytest.raises(DigestMismatch):
        blobs.put_many([(bad, b"x")])


def test_bytes_that_are_not_those_announced_are_refused_and_forgotten(blobs: BlobStore) -> None:
    digest = digest_of(b"good")
    upload = blobs.open_upload(digest, uploader="lease-1", offset=None)
    upload.write(b"evil")

    with pytest.raises(DigestMismatch):
        upload.commit()

    assert not blobs.has(digest)
    assert blobs.partial_size(digest, uploader="lease-1") == 0
    upload.close()


def test_a_broken_upload_goes_on_where_it_stopped(blobs: BlobStore) -> None:
    data = secrets.token_bytes(3 * MIB)
    digest = digest_of(data)
    first = blobs.open_upload(digest, uploader="lease-1", offset=None)
    first.write(data[: MIB + 17])
    first.close()

    offset = blobs.partial_size(digest, uploader="lease-1")
    second = blobs.open_upload(digest, uploader="lease-1", offset=offset)
    assert second.offset == offset == MIB + 17
    second.write(data[offset:])
    second.commit()

    assert content(blobs, digest) == data
    assert blobs.partial_size(digest, uploader="lease-1") == 0


@pytest.mark.parametrize("offset", [1, 3, 5])
def test_a_resumed_upload_must_start_where_the_partial_ends(blobs: BlobStore, offset: int) -> None:
    digest = digest_of(b"lora")
    first = blobs.open_upload(digest, uploader="lease-1", offset=0)
    first.write(b"lo")
    first.close()

    with pytest.raises(OffsetMismatch, match="is at 2"):
        blobs.open_upload(digest, uploader="lease-1", offset=offset)
    with pytest.raises(OffsetMismatch, match="is at 0"):
        blobs.open_upload(digest, uploader="another", offset=offset)


def test_an_upload_begun_anew_forgets_the_partial(blobs: BlobStore) -> None:
    digest = digest_of(b"lora")
    first = blobs.open_upload(digest, uploader="lease-1", offset=None)
    first.write(b"something else")
    first.close()

    assert put(blobs, b"lora") == digest


def test_equal_bytes_uploaded_at_once_are_one_blob_and_nobody_fails(blobs: BlobStore) -> None:
    """FL-C07, FL-D16: by two uploaders, and twice by one; every stored file re-hashes to its name."""
    data = secrets.token_bytes(2 * MIB)
    digest = digest_of(data)
    start = threading.Barrier(8)

    def upload(number: int) -> int:
        start.wait()
        one = blobs.open_upload(digest, uploader=f"lease-{number % 4}", offset=None)
        for at in range(0, len(data), 100_000):
            one.write(data[at : at + 100_000])
        return one.commit()

    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(upload, range(8)))

    assert sizes == [len(data)] * 8
    assert everything(blobs) == {digest}
    assert blobs.verify(digest)


def test_interleaved_uploads_of_one_uploader_do_not_mix(blobs: BlobStore) -> None:
    """FL-D16: the second request of one job comes while the first still runs."""
    data = secrets.token_bytes(2 * MIB)
    digest = digest_of(data)
    first = blobs.open_upload(digest, uploader="lease-1", offset=None)
    first.write(data[:MIB])
    second = blobs.open_upload(digest, uploader="lease-1", offset=None)
    second.write(data)
    first.write(data[MIB:])

    assert second.commit() == first.commit() == len(data)
    assert blobs.verify(digest)


def test_a_retry_takes_the_partial_from_the_request_that_stalled(blobs: BlobStore) -> None:
    data = secrets.token_bytes(MIB)
    digest = digest_of(data)
    stalled = blobs.open_upload(digest, uploader="lease-1", offset=None)
    stalled.write(data[:1000])

    offset = blobs.partial_size(digest, uploader="lease-1")
    retry = blobs.open_upload(digest, uploader="lease-1", offset=offset)

    with pytest.raises(Conflict, match="taken over"):
        stalled.write(data[1000:])
    stalled.close()
    retry.write(data[offset:])
    retry.commit()
    assert content(blobs, digest) == data


def test_a_request_that_makes_progress_is_not_disturbed_by_a_late_retry(blobs: BlobStore) -> None:
    running = blobs.open_upload(digest_of(b"lora"), uploader="lease-1", offset=None)
    running.write(b"lo")

    with pytest.raises(OffsetMismatch):
        blobs.open_upload(digest_of(b"lora"), uploader="lease-1", offset=1)

    running.write(b"ra")
    assert running.commit() == 4


def test_a_committed_upload_takes_no_more(blobs: BlobStore) -> None:
    upload = blobs.open_upload(digest_of(b"lora"), uploader="lease-1", offset=None)
    upload.write(b"lora")
    upload.commit()

    with pytest.raises(Conflict):
        upload.write(b"more")
    with pytest.raises(Conflict):
        upload.commit()
    upload.close()
    assert content(blobs, digest_of(b"lora")) == b"lora"


def test_many_small_blobs_are_stored_at_once(blobs: BlobStore) -> None:
    datas = [secrets.token_bytes(size) for size in range(300)]
    blobs.put_many([(digest_of(data), data) for data in [*datas, *datas[:5]]])

    assert everything(blobs) == {digest_of(data) for data in datas}
    assert all(content(blobs, digest_of(data)) == data for data in datas)
    blobs.put_many([])


def test_one_wrong_digest_among_many_stores_none(blobs: BlobStore) -> None:
    with pytest.raises(DigestMismatch):
        blobs.put_many([(digest_of(b"a"), b"a"), (digest_of(b"b"), b"c")])

    assert everything(blobs) == set()


def test_blobs_are_listed_by_prefix(blobs: BlobStore) -> None:
    stored = {put(blobs, bytes([number])) for number in range(20)}

    for prefix in PREFIXES:
        assert set(blobs.digests(prefix)) == {digest for digest in stored if digest.startswith(prefix)}
    for bad in ("", "a", "abc", "..", "AB", "0\n"):
        with pytest.raises(ValueError, match="two lower-case"):
            blobs.digests(bad)


def test_only_partials_that_nobody_came_back_to_are_swept(blobs: BlobStore) -> None:
    """FL-D23: no orphan stays for ever, and none is taken from a running upload."""
    left = blobs.open_upload(digest_of(b"left"), uploader="lease-1", offset=None)
    left.write(b"le")
    left.close()
    running = blobs.open_upload(digest_of(b"lora"), uploader="lease-1", offset=None)
    running.write(b"lora")

    assert blobs.sweep_partials(3600) == 0
    assert blobs.sweep_partials(-3600) == 1

    assert blobs.partial_size(digest_of(b"left"), uploader="lease-1") == 0
    assert running.commit() == 4
    assert blobs.free_bytes() != 0


def hand(blobs: BlobStore, data: bytes) -> str:
    folder = blobs.near()
    assert folder is not None
    name = secrets.token_hex(16)
    (folder / name).write_bytes(data)
    return name


def taken_whole(blobs: BlobStore, name: str) -> HandedOverFile:
    taken = blobs.take(name)
    while not taken.read_on():
        pass
    return taken


@pytest.mark.parametrize("size", [0, 1, 33 * MIB + 7])
def test_a_file_that_is_handed_over_is_a_blob_after_its_commit(blobs: BlobStore, size: int) -> None:
    data = secrets.token_bytes(size)
    name = hand(blobs, data)

    taken = taken_whole(blobs, name)
    assert (taken.digest, taken.size) == (digest_of(data), size)
    assert not blobs.has(taken.digest)
    taken.commit()
    taken.close()

    assert content(blobs, taken.digest) == data
    assert blobs.verify(taken.digest)
    with pytest.raises(KeyError):
        blobs.take(name)


def test_a_file_that_is_handed_over_and_not_committed_is_gone(blobs: BlobStore) -> None:
    taken = taken_whole(blobs, hand(blobs, b"hay"))

    taken.close()

    assert not blobs.has(taken.digest)
    assert everything(blobs) == set()
    assert blobs.sweep_partials(-60) == 0, "and nothing is left of it"


@pytest.mark.parametrize(("at", "what"), [(3, b"stack"), (0, b"hex")])
def test_a_file_that_is_written_to_after_it_was_handed_over_is_refused(
    blobs: BlobStore, at: int, what: bytes
) -> None:
    """Also where it is as long as before."""
    folder = blobs.near()
    assert folder is not None
    name = hand(blobs, b"hay")
    # Long ago: two writes may have the same time.
    os.utime(folder / name, (1, 1))
    with (folder / name).open("r+b", buffering=0) as file:
        taken = taken_whole(blobs, name)
        file.seek(at)
        file.write(what)
        with pytest.raises(StoreUnavailable, match="written to"):
            taken.commit()
    taken.close()

    assert everything(blobs) == set()


def test_a_file_is_read_while_it_is_written(blobs: BlobStore) -> None:
    """It is whole when its writer has let go, and not when there is nothing more for the moment."""
    folder = blobs.near()
    assert folder is not None
    first, second = secrets.token_bytes(17 * MIB + 3), secrets.token_bytes(5)
    with large.new_file(folder / ("a" * 32)) as file:
        taken = blobs.take("a" * 32)
        assert (taken.read_on(), taken.size) == (False, 0)
        large.write(file, [first])
        assert (taken.read_on(), taken.read_on(), taken.size) == (False, False, len(first))
        assert blobs.sweep_partials(-60) == 0, "it is the writer's"
        large.write(file, [second])
    assert taken.read_on()
    taken.commit()
    taken.close()

    assert taken.digest == digest_of(first + second)
    assert blobs.verify(taken.digest)


def test_a_file_that_is_given_up_while_it_is_written_is_gone(blobs: BlobStore) -> None:
    folder = blobs.near()
    assert folder is not None
    with large.new_file(folder / ("a" * 32)) as file:
        large.write(file, [b"hay"])
        taken = blobs.take("a" * 32)
        assert not taken.read_on()
        taken.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            taken.read_on()
        large.write(file, [b"stack"])

    assert everything(blobs) == set()
    assert blobs.sweep_partials(-60) == 0


def test_a_file_that_nobody_asks_for_is_swept(blobs: BlobStore) -> None:
    name = hand(blobs, b"hay")
    assert blobs.sweep_partials(60) == 0
    assert blobs.sweep_partials(-60) == 1
    with pytest.raises(KeyError):
        blobs.take(name)


def test_only_what_was_hashed_and_did_not_change_since_has_a_place(blobs: BlobStore) -> None:
    digest = put(blobs, b"hay")
    place = blobs.place(digest)
    with pytest.raises(KeyError):
        blobs.place(digest_of(b"nothing"))
    if place is None:
        assert isinstance(blobs, BucketBlobs), "only a bucket has no place on this machine"
        return
    assert place.read_bytes() == b"hay"

    place.write_bytes(b"hex")

    assert blobs.place(digest) is None
    put(blobs, b"hay")
    assert blobs.place(digest) is not None


def test_those_that_are_lacking_are_named(blobs: BlobStore) -> None:
    there = [put(blobs, bytes([number])) for number in range(3)]
    absent = [digest_of(b"absent"), digest_of(b"absent too")]

    assert blobs.lacking([absent[0], *there, absent[1]]) == absent
    assert blobs.lacking([]) == []


def test_damaged_bytes_are_set_aside_and_an_upload_replaces_them(blobs: BlobStore) -> None:
    digest = put(blobs, b"hay")

    blobs.set_aside(digest)

    assert not blobs.has(digest)
    assert everything(blobs) == set()
    put(blobs, b"hay")
    assert blobs.verify(digest)
    blobs.set_aside(digest_of(b"nothing"))
