"""Payloads of a client and a worker on the server's own machine: moved and read in place, and never wrong."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from calls import pier
from calls.test_faulty_store import Ground, faulty, using, value
from corral.client.blobs import BlobSink, BlobSource


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with faulty(tmp_path_factory.mktemp("near") / "home", handed_over=True) as made:
        yield made


@pytest.fixture
def ground(served: Ground) -> Iterator[Ground]:
    with using(served):
        yield served


@pytest.fixture
def unsent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process nothing may be sent or received."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("bytes were sent")

    monkeypatch.setattr(BlobSink, "put", never)
    monkeypatch.setattr(BlobSource, "whole", never)


def near(ground: Ground) -> list[Path]:
    return [path for folder in (ground.live.home / "near").iterdir() for path in folder.iterdir()]


@pytest.mark.usefixtures("unsent")
def test_nothing_large_is_sent_and_nothing_is_left(ground: Ground) -> None:
    sent = value(1)
    assert pier.give_back.remote(sent) == sent
    assert pier.give_back.remote(bytearray(sent)) == bytearray(sent)
    assert list(pier.parts.stream(3, 200_000)) == list(pier.parts(3, 200_000))
    assert near(ground) == []
    assert [path for path in (ground.live.home / "partial").iterdir() if path.name.startswith("near.")] == []


@pytest.mark.usefixtures("unsent")
def test_what_was_handed_over_is_a_blob_like_any_other(ground: Ground) -> None:
    call = pier.give_back.spawn(value(2))
    result = call.result(100)

    view = ground.live.ok("GET", f"/v1/calls/{call.id}")
    path = ground.live.home / "blobs" / view["result"]["blob"][:2] / view["result"]["blob"]

    assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    assert (path.stat().st_mode & 0o777, path.stat().st_nlink) == (0o600, 1)
    assert result in path.read_bytes()


def test_a_store_that_does_not_take_it_is_sent_it(ground: Ground) -> None:
    ground.blobs.failing_writes = 2

    sent = value(3)

    assert pier.give_back.remote(sent) == sent
    assert ground.blobs.faults == ["write"] * 2
    assert near(ground) == []


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
