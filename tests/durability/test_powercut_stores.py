"""Blobs and segments after a power cut: what was answered is there, what is there is whole."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from powercut import PowerCutDisk

from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments
from corral.domain.ids import Digest

PRELUDE = """
import hashlib
from pathlib import Path
from corral.adapters.blobs.folder import DirectoryBlobs
from corral.adapters.blobs.segments import DirectorySegments

blobs = DirectoryBlobs(Path("a/b/store").absolute())
segments = DirectorySegments(Path("a/b/store").absolute())

def digest_of(data):
    return hashlib.sha256(data).hexdigest()

def say(*words):
    print(*words, flush=True)
"""

STORE_AND_DIE = """
import os
upload = blobs.open_upload(digest_of(b"lora" * 99_999), uploader="lease", offset=None)
upload.write(b"lora" * 99_999)
upload.commit()
blobs.put_many([(digest_of(bytes([n])), bytes([n])) for n in range(50)])
segments.append("r-1/1-0-logs-0", 0, b"one\\n")
segments.append("r-1/1-0-logs-0", 4, b"two\\n")
os._exit(0)
"""

STORE_FOR_EVER = """
for turn in range(100_000):
    data = str(turn).encode() * (turn % 9000)
    upload = blobs.open_upload(digest_of(data), uploader="lease", offset=None)
    upload.write(data)
    upload.commit()
    say(digest_of(data))
    pack = [(digest_of(piece), piece) for piece in (f"{turn}-{n}".encode() for n in range(5))]
    blobs.put_many(pack)
    for digest, _ in pack:
        say(digest)
"""


def start(disk: PowerCutDisk, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + program],
        cwd=disk.root,
        env=os.environ | disk.env(),
        stdout=subprocess.PIPE,
        text=True,
    )


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def stored(root: Path) -> set[str]:
    return {path.name for path in (root / "blobs").glob("*/*")}


def test_what_was_committed_survives_a_power_cut_even_in_new_folders(tmp_path: Path) -> None:
    """FL-D17: file, folder, and the folders above are durable before the answer."""
    disk = PowerCutDisk.create(tmp_path)
    with start(disk, STORE_AND_DIE) as child:
        assert child.wait() == 0

    disk.after_crash(tmp_path / "after")

    store = tmp_path / "after" / "a/b/store"
    blobs, segments = DirectoryBlobs(store), DirectorySegments(store)
    assert blobs.verify(digest_of(b"lora" * 99_999))
    assert all(blobs.verify(digest_of(bytes([number]))) for number in range(50))
    assert segments.read("r-1/1-0-logs-0", 0, 100) == b"one\ntwo\n"


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_time_loses_no_answered_blob_and_leaves_none_damaged(
    tmp_path: Path, seed: int
) -> None:
    """FL-D16, FL-D17, FL-D18: also the upload that is tried again after the cut succeeds."""
    disk = PowerCutDisk.create(tmp_path)
    with start(disk, STORE_FOR_EVER) as child:
        assert child.stdout is not None
        said = [child.stdout.readline().strip() for _ in range(7 + 11 * seed)]
        disk.cut()
        child.kill()
        said += child.stdout.read().split()

    disk.after_crash(tmp_path / "strict")
    disk.after_lucky_crash(tmp_path / "lucky", seed=seed)

    for crashed in ("strict", "lucky"):
        blobs = DirectoryBlobs(tmp_path / crashed / "a/b/store")
        there = stored(tmp_path / crashed / "a/b/store")
        assert set(said) <= there
        assert all(blobs.verify(Digest(name)) for name in there)
        again = blobs.open_upload(digest_of(b"again"), uploader="lease", offset=None)
        again.write(b"again")
        assert again.commit() == 5
