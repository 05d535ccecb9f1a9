"""What is peculiar to stores in a directory: damage, full disks, other processes, other file systems."""

import errno
import hashlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.adapters.blobs.disk import translated
from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments
from corral.domain.errors import Conflict, DiskFull, StoreUnavailable
from corral.domain.ids import Digest

MIB = 1 << 20
LORA = Digest(hashlib.sha256(b"lora").hexdigest())


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def put(blobs: DirectoryBlobs, data: bytes) -> None:
    upload = blobs.open_upload(digest_of(data), uploader="lease-1", offset=None)
    upload.write(data)
    upload.commit()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if os.name == "nt" or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def blob_file(root: Path, digest: Digest) -> Path:
    return root / "blobs" / digest[:2] / digest


def partials(root: Path) -> list[Path]:
    return list((root / "partial").iterdir())


def test_blobs_and_partials_lie_where_the_documentation_says_and_only_the_owner_reads_them(
    root: Path,
) -> None:
    blobs = DirectoryBlobs(root)
    upload = blobs.open_upload(LORA, uploader="lease/../1", offset=None)
    (partial,) = partials(root)
    assert partial.name.startswith(f"{LORA}.")
    upload.write(b"lora")
    upload.commit()

    assert partials(root) == []
    assert blob_file(root, LORA).read_bytes() == b"lora"
    assert blob_file(root, LORA).stat().st_mode & 0o777 == 0o600
    assert root.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("damaged", [b"", b"lor", b"LORA", b"lora and more"])
def test_an_upload_heals_a_damaged_blob(root: Path, damaged: bytes) -> None:
    blobs = DirectoryBlobs(root)
    put(blobs, b"lora")
    blob_file(root, LORA).write_bytes(damaged)
    assert not blobs.verify(LORA)

    put(blobs, b"lora")
    assert blobs.verify(LORA)

    blob_file(root, LORA).write_bytes(damaged)
    blobs.put_many([(LORA, b"lora")])
    assert blobs.verify(LORA)


def test_a_blob_cut_while_it_is_read_is_an_error_and_not_a_short_answer(root: Path) -> None:
    blobs = DirectoryBlobs(root)
    data = secrets.token_bytes(3 * MIB)
    put(blobs, data)
    reading = blobs.read(digest_of(data))
    assert next(reading) == data[:MIB]

    os.truncate(blob_file(root, digest_of(data)), MIB + 5)

    assert next(reading) == data[MIB : MIB + 5]
    with pytest.raises(StoreUnavailable, match="before its end"):
        next(reading)


def test_a_partial_that_another_process_writes_cannot_be_continued_but_begun_beside(root: Path) -> None:
    """FL-D16. Two stores on one directory know as little of each other as two processes do."""
    here, elsewhere = DirectoryBlobs(root), DirectoryBlobs(root)
    theirs = elsewhere.open_upload(LORA, uploader="lease-1", offset=None)
    theirs.write(b"lora")

    with pytest.raises(Conflict):
        here.open_upload(LORA, uploader="lease-1", offset=0)
    put(here, b"lora")

    assert theirs.commit() == 4
    assert here.verify(LORA)
    assert partials(root) == []


def test_an_upload_begun_beside_another_leaves_nothing_when_it_is_closed(root: Path) -> None:
    blobs = DirectoryBlobs(root)
    first = blobs.open_upload(LORA, uploader="lease-1", offset=None)
    beside = blobs.open_upload(LORA, uploader="lease-1", offset=None)
    beside.write(b"lo")
    assert len(partials(root)) == 2

    beside.close()

    assert len(partials(root)) == 1
    first.close()


def test_a_request_that_died_without_closing_does_not_keep_the_partial(root: Path) -> None:
    blobs = DirectoryBlobs(root)
    forgotten = blobs.open_upload(LORA, uploader="lease-1", offset=None)
    forgotten.write(b"lora")
    del forgotten

    upload = blobs.open_upload(LORA, uploader="lease-1", offset=0)
    upload.write(b"lora")
    assert upload.commit() == 4


def test_a_stored_blob_that_kept_its_partial_name_is_never_written_to(root: Path) -> None:
    """A power cut may keep both names of a renamed file."""
    blobs = DirectoryBlobs(root)
    first = blobs.open_upload(LORA, uploader="lease-1", offset=None)
    (partial,) = partials(root)
    first.write(b"lora")
    first.commit()
    partial.hardlink_to(blob_file(root, LORA))

    upload = blobs.open_upload(LORA, uploader="lease-1", offset=None)
    upload.write(b"something else")
    upload.close()

    assert blobs.verify(LORA)


def test_nothing_is_written_while_the_disk_has_less_than_is_to_be_kept_free(root: Path) -> None:
    """FL-D23: the disk has a quota."""
    DirectoryBlobs(root).open_upload(LORA, uploader="lease-1", offset=None).close()
    blobs = DirectoryBlobs(root, min_free_bytes=1 << 60)

    with pytest.raises(DiskFull):
        blobs.open_upload(LORA, uploader="lease-1", offset=0)
    with pytest.raises(DiskFull):
        blobs.put_many([(LORA, b"lora")])
    assert not blobs.has(LORA)


def test_a_disk_that_fills_gets_its_space_back(small_disk: Path) -> None:
    """FL-D23."""
    blobs = DirectoryBlobs(small_disk)
    data = secrets.token_bytes(6 * MIB)
    upload = blobs.open_upload(digest_of(data), uploader="lease-1", offset=None)

    with pytest.raises(DiskFull):
        upload.write(data)
    assert partials(small_disk) == []
    upload.close()

    with pytest.raises(DiskFull):
        blobs.put_many([(digest_of(piece), piece) for piece in (data[:MIB], data[MIB:])])
    assert partials(small_disk) == []
    assert not blobs.has(digest_of(data))


def test_a_full_disk_leaves_a_segment_as_it_was(small_disk: Path) -> None:
    segments = DirectorySegments(small_disk)
    segments.append("r-1/1-0-logs-0", 0, b"one\n")

    with pytest.raises(DiskFull):
        segments.append("r-1/1-0-logs-0", 4, bytes(6 * MIB))

    assert segments.read("r-1/1-0-logs-0", 0, 8 * MIB) == b"one\n"
    segments.append("r-1/1-0-logs-0", 4, b"two\n")


def test_a_store_on_a_file_system_of_its_own_works(small_disk: Path) -> None:
    """FL-D23: nothing is renamed from the system's temporary folder."""
    blobs = DirectoryBlobs(small_disk / "store")
    put(blobs, b"lora")
    assert blobs.verify(LORA)


def test_the_last_segment_of_a_run_takes_its_folder_along(tmp_path: Path) -> None:
    segments = DirectorySegments(tmp_path)
    segments.append("r-1/1-0-logs-0", 0, b"x")
    segments.delete("r-1/1-0-logs-0")

    assert list((tmp_path / "segments").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StoreUnavailable)],
)
def test_a_failure_of_the_disk_is_told_in_our_words(number: int, kind: type[StoreUnavailable]) -> None:
    with pytest.raises(StoreUnavailable, match="cannot write: ") as caught, translated("cannot write"):
        raise OSError(number, os.strerror(number))
    assert type(caught.value) is kind
