"""An installation whose files are in a bucket, as an operator meets it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.installation import Installation
from support.seaweed import CREDENTIALS, seaweed
from support.waiting import eventually

from corral.files.bucket import Bucket

MADE = "open(__import__('os').environ['CORRAL_OUTPUT_DIR'] + '/model.bin', 'wb').write(b'model' * 100_000)"


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Installation]:
    settings = {
        "CORRAL_STORAGE_URL": seaweed().fresh_url(),
        "CORRAL_STORAGE_ENDPOINT": seaweed().endpoint,
        **CREDENTIALS,
    }
    one = Installation(tmp_path / "home", settings, tmp_path)
    one.home.mkdir()
    yield one
    one.down()


def bucket_of(made: Installation) -> Bucket:
    return Bucket(made.settings["CORRAL_STORAGE_URL"], endpoint=seaweed().endpoint)


def why_not(made: Installation) -> str:
    """The words with which a server refuses to start."""
    made._start("server")
    eventually(lambda: made._started[-1].poll() is not None, "the server to end")
    assert not (made.home / "server.json").exists()
    return made._log("server")


def without(made: Installation, **settings: str) -> Installation:
    changed = {**made.settings, **settings}
    return Installation(made.home, {name: value for name, value in changed.items() if value}, made.folder)


def test_files_are_in_the_bucket_and_every_command_knows_them(made: Installation, tmp_path: Path) -> None:
    """Run, download, fsck, damage, collection, backup and restore."""
    made.up()
    assert made.python(MADE, "--name", "first").returncode == 0
    run = made.json("ls")[0]["id"]
    made.ok("artifacts", "get", run, str(tmp_path / "got"))
    assert (tmp_path / "got" / "model.bin").read_bytes() == b"model" * 100_000
    assert not (made.home / "blobs").exists()
    bucket, digest = bucket_of(made), hashlib.sha256(b"model" * 100_000).hexdigest()
    key = f"blobs/{digest[:2]}/{digest}"
    assert bucket.head(key) is not None
    assert "no problems" in made.ok("fsck")

    said = made.ok("backup", str(tmp_path / "backup"))
    assert f"stored files are not in it: they stay in {bucket.url}" in said

    bucket.put(key, b"damaged")
    checked = made("fsck")
    assert checked.returncode == 1
    assert f"blob {digest}" in checked.stdout
    assert "model.bin" in checked.stdout
    assert [one.key.startswith(f"damaged/{digest}") for one in bucket.list("damaged")] == [True]

    bucket.put(key, b"model" * 100_000)
    made.ok("rm", run, "--yes", "--now")
    assert bucket.head(key) is None

    # The database of the backup names it; the bucket has to have kept it.
    bucket.put(key, b"model" * 100_000)
    made.down()
    shutil.rmtree(made.home)
    made.ok("restore", str(tmp_path / "backup"))
    again = without(made)
    again.up()
    try:
        assert "no problems" in again.ok("fsck")
    finally:
        again.down()


def test_a_home_and_its_bucket_stay_together(made: Installation, tmp_path: Path) -> None:
    """Neither another bucket, nor none, nor another installation's is taken without a word."""
    made._start("server")
    eventually((made.home / "server.json").exists, lambda: made._log("server"))
    made.down()
    url = made.settings["CORRAL_STORAGE_URL"]

    words = why_not(without(made, CORRAL_STORAGE_URL=""))
    assert f"the files of this installation are in {url}, and CORRAL_STORAGE_URL is not set" in words
    assert f"Set it to {url}" in words

    other = Installation(tmp_path / "other", made.settings, tmp_path)
    other.home.mkdir()
    assert "has the files of another installation" in why_not(other)


def test_files_that_were_not_copied_to_the_bucket_are_missed_at_the_start(made: Installation) -> None:
    before = without(made, CORRAL_STORAGE_URL="")
    before.up()
    assert before.python(MADE).returncode == 0
    before.down()

    words = why_not(made)
    assert f"files of this installation are in {made.home / 'blobs'} and not in" in words
    assert "aws s3 cp --recursive" in words

    bucket = bucket_of(made)
    for path in (made.home / "blobs").rglob("*"):
        if path.is_file():
            bucket.put(path.relative_to(made.home).as_posix(), path)
    after = without(made)
    after.up()
    try:
        assert "no problems" in after.ok("fsck")
    finally:
        after.down()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "does not accept the credentials"),
        ("CORRAL_STORAGE_ENDPOINT", "http://127.0.0.1:9", "cannot be reached"),
        ("CORRAL_STORAGE_URL", "/a/folder", "CORRAL_STORAGE_URL"),
    ],
)
def test_up_says_what_is_wrong_with_the_storage(
    made: Installation, name: str, value: str, words: str
) -> None:
    done = without(made, **{name: value})("up", "--detach")

    assert done.returncode != 0
    assert words in done.stderr
    assert "hint:" in done.stderr
