"""Payloads of a client and a worker on the server's own machine: moved and read in place, and never wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.waiting import eventually

import corral
from calls import functions_for_tests as pier
from calls.test_faulty_store import FaultyBlobs, Ground, faulty, using, value
from corral.client.corral import Corral
from corral.client.files.blobs import BlobSink, BlobSource
from corral.domain.errors import TooLarge
from corral.files import large
from corral.functions import serialize as codec


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with faulty(tmp_path_factory.mktemp("near") / "home", handed_over=True) as made, using(made):
        yield made


@pytest.fixture
def ground(served: Ground) -> Iterator[Ground]:
    yield served
    served.mend()


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nothing may be sent or received."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("bytes were sent")

    monkeypatch.setattr(BlobSink, "put", never)
    monkeypatch.setattr(BlobSource, "whole", never)
    # Nor may the worker send any.
    monkeypatch.setattr(FaultyBlobs, "open_upload", never)


def near(ground: Ground) -> list[Path]:
    """What is left of files that were handed over."""
    home = ground.live.home
    given = [path for folder in (home / "near").iterdir() for path in folder.iterdir()]
    return given + [path for path in (home / "partial").iterdir() if path.name.startswith("near.")]


def large_value(n: int) -> bytes:
    """So large that it is read while it is written."""
    return value(n) * 10


def blobs(ground: Ground) -> set[str]:
    return {path.name for path in (ground.live.home / "blobs").glob("??/*")}


def folder(ground: Ground) -> Path:
    return Path(ground.live.ok("GET", "/v1/near")["folder"])


def hand(ground: Ground, path: Path, size: int) -> httpx.Response:
    return ground.live.call("POST", "/v1/projects/default/blobs/near", {"name": path.name, "size": size})


@pytest.mark.usefixtures("unsent")
def test_nothing_large_is_sent_and_nothing_is_left(ground: Ground) -> None:
    sent = value(1)
    assert pier.give_back.remote(sent) == sent
    assert pier.give_back.remote(bytearray(sent)) == bytearray(sent)
    assert list(pier.parts.stream(3, 200_000)) == list(pier.parts(3, 200_000))
    assert list(pier.parts.stream(3, 5 << 20)) == list(pier.parts(3, 5 << 20))
    assert pier.give_back.remote(sent := large_value(1)) == sent
    assert near(ground) == []


@pytest.mark.usefixtures("unsent")
def test_what_was_handed_over_is_a_blob_like_any_other(ground: Ground) -> None:
    call = pier.give_back.spawn(value(2))
    result = call.result(100)

    view = ground.live.ok("GET", f"/v1/calls/{call.id}")
    path = ground.live.home / "blobs" / view["result"]["blob"][:2] / view["result"]["blob"]

    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert (path.stat().st_mode & 0o777, path.stat().st_nlink) == (0o600, 1)
    assert result in path.read_bytes()


@pytest.mark.parametrize("times", [1, 10])
def test_a_store_that_does_not_take_it_is_sent_it(ground: Ground, times: int) -> None:
    """Of an argument and of a result."""
    ground.blobs.failing_writes = 2
    sent = value(3) * times
    assert pier.give_back.remote(sent) == sent
    assert ground.blobs.faults == ["write"] * 2

    ground.blobs.failing_writes = 2
    assert pier.makes.remote(510_000 * times) == pier.makes(510_000 * times)
    assert ground.blobs.faults == ["write"] * 4
    assert near(ground) == []


def test_an_instance_killed_while_it_writes_its_result_leaves_nothing(ground: Ground, tmp_path: Path) -> None:
    """kill -9 with half of it written, and read: the call is tried again, and there is no half of a blob."""
    before = blobs(ground)

    call = pier.killed_while_telling.spawn(str(tmp_path / "killed"), str(tmp_path / "go"), 6 << 20)
    eventually(lambda: near(ground) != [], "it is being written")
    (tmp_path / "go").touch()
    result = call.result(100)

    assert result == bytes(6 << 20)
    assert (tmp_path / "killed").read_text() == "killed\n"
    eventually(lambda: near(ground) == [], "nothing is left")
    (made,) = blobs(ground) - before
    assert hashlib.sha256(codec.encode(result)[1]).hexdigest() == made


def test_an_instance_that_cannot_write_its_result_says_so(ground: Ground, tmp_path: Path) -> None:
    before, go = blobs(ground), tmp_path / "go"

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(lambda: list(pier.fails_while_telling.stream(str(go), 6 << 20)))
        eventually(lambda: near(ground) != [], "it is being written")
        go.touch()
        with pytest.raises(OSError, match="No space left"):
            told.result(100)

    eventually(lambda: near(ground) == [], "nothing is left")
    assert blobs(ground) == before
    assert pier.give_back.remote(sent := large_value(7)) == sent


@pytest.mark.parametrize("size", [2 << 20, 8 << 20])
def test_a_result_for_which_there_is_no_room_is_an_error_and_the_instance_goes_on(
    ground: Ground, size: int
) -> None:
    assert pier.has_a_small_disk.remote(10) == b"z" * 10
    call = pier.has_a_small_disk.spawn(size)

    with pytest.raises(OSError, match="too large"):
        call.result(60)

    assert pier.has_a_small_disk.remote(10) == b"z" * 10
    seen = ground.live.ok("GET", f"/v1/calls/{call.id}")
    assert (seen["state"], seen["attempt"], seen["lost"]) == ("failed", 1, 0)


def test_a_result_that_is_written_slowly_is_waited_for(ground: Ground, tmp_path: Path) -> None:
    """And what others hand over meanwhile is not."""
    call = pier.slow_to_tell.spawn(str(tmp_path / "go"), 6 << 20)
    eventually(lambda: near(ground) != [], "it is being written")
    assert pier.give_back.remote(sent := large_value(8)) == sent

    (tmp_path / "go").touch()

    assert call.result(100) == b"y" * (6 << 20)
    assert near(ground) == []


def test_slow_writers_hold_nobody_up(ground: Ground) -> None:
    """More of them than the server has threads for files."""
    place, data = folder(ground), [large_value(n) for n in range(12)]
    with ThreadPoolExecutor(len(data)) as pool, ExitStack() as writing:
        paths = [place / f"{n:032x}" for n in range(len(data))]
        files = [writing.enter_context(large.new_file(path)) for path in paths]
        answers = [pool.submit(hand, ground, path, len(one)) for path, one in zip(paths, data, strict=True)]
        for file, one in zip(files, data, strict=True):
            large.write(file, [one[:1000]])
        eventually(lambda: list(place.iterdir()) == [], "all are taken")

        whole = place / ("f" * 32)
        whole.write_bytes(b"hay")
        assert hand(ground, whole, 3).json()["sha256"] == hashlib.sha256(b"hay").hexdigest()
        assert not any(one.done() for one in answers)

        for file, one in zip(files, data, strict=True):
            large.write(file, [one[1000:]])
        writing.close()
        said = [one.result(60) for one in answers]
    assert [one.status_code for one in said] == [201] * len(data)
    assert [one.json()["sha256"] for one in said] == [hashlib.sha256(one).hexdigest() for one in data]


WRITER = """
import sys, time
from corral.files import large
with large.new_file(sys.argv[1]) as file:
    large.write(file, [b"half of it"])
    print("written", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_a_writer_that_ends_too_soon_makes_no_blob(ground: Ground, killed: bool) -> None:
    before, path = blobs(ground), folder(ground) / ("a" * 32)
    argv = [sys.executable, "-c", WRITER, str(path)]
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == b"written\n"
        answer = pool.submit(hand, ground, path, 20)
        eventually(lambda: not path.exists(), "it is taken")
        assert not answer.done()
        if killed:
            writer.kill()
        else:
            writer.stdin.close()
        refused = answer.result(60)

    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert "20 bytes of the file were announced, and 10 were written" in refused.json()["message"]
    assert (near(ground), blobs(ground)) == ([], before)


def test_a_writer_that_stands_still_is_given_up(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground.live.clock, "monotonic", lambda: time.monotonic() * 1000)
    with large.new_file(path := folder(ground) / ("a" * 32)) as file:
        large.write(file, [b"hay"])
        refused = hand(ground, path, 8)
    assert refused.status_code == 409
    assert "nothing was written to the file for 60 s after its first 3 bytes" in refused.json()["message"]
    assert near(ground) == []


def test_what_is_too_large_is_refused_before_it_is_written(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, most = blobs(ground), replace(ground.live.services.limits, max_blob_bytes=5 << 20)
    pier.give_back.remote(0)
    monkeypatch.setattr(ground.live.services, "limits", most)

    with large.new_file(path := folder(ground) / ("a" * 32)) as file:
        large.write(file, [b"hay"])
        assert hand(ground, path, (5 << 20) + 1).status_code == 413
        # More than was announced.
        refused = hand(ground, path, 2)
        assert (refused.status_code, near(ground)) == (409, [])
    with pytest.raises(TooLarge):
        pier.give_back.remote(bytes(6 << 20))
    with pytest.raises(corral.ResultTooLarge, match="could not be stored"):
        list(pier.parts.stream(1, 6 << 20))

    eventually(lambda: near(ground) == [], "nothing is left")
    assert blobs(ground) == before


def test_a_file_of_another_file_system_is_copied_too(ground: Ground) -> None:
    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm") as file,
        Corral(ground.live.url, ground.live.operator) as c,
    ):
        path = Path(file.name)
        if path.stat().st_dev == ground.live.home.stat().st_dev:
            pytest.skip("there is only one")
        path.write_bytes(b"hay")
        for size in (None, 3):
            stored = c.sink("default").hand_over(path, size=size)
            assert stored is not None
            assert stored.sha256 == hashlib.sha256(b"hay").hexdigest()
        assert path.read_bytes() == b"hay"
    assert near(ground) == []


def stored(ground: Ground, call_id: str, what: str) -> Path:
    """The file of what a call was given or gave."""
    found = ground.live.ok("GET", f"/v1/calls/{call_id}")[what]["blob"]
    return Path(ground.live.home / "blobs" / found[:2] / found)


def is_whole(path: Path) -> bool:
    return hashlib.sha256(path.read_bytes()).hexdigest() == path.name


@pytest.mark.parametrize("size", [600_000, 6 << 20])
def test_an_instance_that_writes_to_its_arguments_changes_nothing_stored(ground: Ground, size: int) -> None:
    """ATK-04: the file of an argument is the instance's own, and never the stored one."""
    sent = os.urandom(size)
    pier.changes_arguments.remote(b"")
    before = blobs(ground)

    pier.changes_arguments.remote(sent)

    (made,) = blobs(ground) - before
    assert is_whole(ground.live.home / "blobs" / made[:2] / made)


@pytest.mark.parametrize("size", [600_000, 6 << 20])
def test_an_instance_that_keeps_its_result_open_changes_nothing_stored(ground: Ground, size: int) -> None:
    """ATK-04: a result that was handed over is written to by nobody, whoever has its first file open."""
    call = pier.keeps_its_result_open.spawn(size)
    call.result(100)

    assert int(pier.keeps_its_result_open.remote(0)) > 0

    assert is_whole(stored(ground, call.id, "result"))
    assert corral.Call.from_id(call.id).result(30) == pier.makes(1) * size


def test_a_file_that_has_another_name_is_not_taken(ground: Ground) -> None:
    """ATK-04: as a worker of an earlier release hands a result over; it sends the bytes then."""
    before, path = blobs(ground), folder(ground) / ("a" * 32)
    (ground.live.home / "other").write_bytes(b"hay with another name")
    os.link(ground.live.home / "other", path)

    refused = hand(ground, path, 21)

    assert refused.status_code == 503
    assert "it has another name" in refused.json()["message"]
    assert (near(ground), blobs(ground)) == ([], before)


def test_a_blob_that_was_written_to_is_not_read_in_place_though_its_time_was_put_back(ground: Ground) -> None:
    """ATK-04: whoever can do that can do worse, but a reader in place does not hash."""
    call = pier.makes.spawn(530_000)
    call.result(100)
    path = stored(ground, call.id, "result")
    asked = f"/v1/blobs/{path.name}/place?project=default"
    assert ground.live.ok("GET", asked)["path"] is not None

    descriptor = os.open(path, os.O_RDWR)
    pier.change(descriptor)
    os.close(descriptor)

    assert ground.live.ok("GET", asked)["path"] is None
    with pytest.raises(corral.ResultLost, match="damaged"):
        corral.Call.from_id(call.id).result(30)


def test_a_result_that_changed_on_disk_is_never_a_value(ground: Ground) -> None:
    call = pier.makes.spawn(510_000)
    call.result(100)
    digest = ground.live.ok("GET", f"/v1/calls/{call.id}")["result"]["blob"]
    path = ground.live.home / "blobs" / digest[:2] / digest
    data = path.read_bytes()

    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    with pytest.raises(corral.ResultLost, match="damaged"):
        corral.Call.from_id(call.id).result(30)


def test_the_folder_of_a_server_that_is_gone_is_found_anew(ground: Ground) -> None:
    """As after a restart: its name is another then."""
    assert pier.give_back.remote(value(4))
    (before,) = (ground.live.home / "near").iterdir()
    real = ground.blobs.real
    real._near._own = before.parent / ("0" * 32)  # type: ignore[attr-defined]
    before.rmdir()

    assert pier.give_back.remote(sent := value(5)) == sent

    assert (before.parent / ("0" * 32)).is_dir()


def test_a_file_is_taken_only_by_its_name_and_only_if_it_is_one(ground: Ground) -> None:
    folder = Path(ground.live.ok("GET", "/v1/near")["folder"])
    secret = ground.live.home / "secret"
    secret.write_text("not yours")
    (folder / ("a" * 32)).symlink_to(secret)
    (folder / ("b" * 32)).mkdir()

    for name, status in [("a" * 32, 404), ("b" * 32, 404), ("c" * 32, 404), ("../secret", 422), ("", 422)]:
        answer = ground.live.call("POST", "/v1/projects/default/blobs/near", {"name": name})
        assert answer.status_code == status, name

    assert secret.read_text() == "not yours"


def test_a_hash_is_not_a_key(ground: Ground) -> None:
    """The place of a blob is told only to those who may read it."""
    call = pier.makes.spawn(520_000)
    call.result(100)
    digest = ground.live.ok("GET", f"/v1/calls/{call.id}")["result"]["blob"]

    mine = ground.live.ok("GET", f"/v1/blobs/{digest}/place?project=default")["path"]
    other = ground.live.call("GET", f"/v1/blobs/{digest}/place?project=another")

    assert os.path.samefile(mine, ground.live.home / "blobs" / digest[:2] / digest)
    assert other.status_code == 404
