"""Verifying artifacts: every content once, in the project's turn, and nobody else waits for it."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.live_server import LiveServer, serve
from support.waiting import eventually

from corral.domain.ids import Digest
from corral.ports.blobs import BlobStore


@dataclass
class SlowBlobs:
    """A store in front of a real one, which counts what is read whole, and lets it wait."""

    real: BlobStore
    begun: Counter[str] = field(default_factory=Counter)
    may_go_on: threading.Event = field(default_factory=threading.Event)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def _wait(self, digest: Digest) -> None:
        self.begun[digest] += 1
        assert self.may_go_on.wait(60)

    def read(self, digest: Digest, **more: Any) -> Iterator[bytes]:
        self._wait(digest)
        return self.real.read(digest, **more)

    def verify(self, digest: Digest) -> bool:
        self._wait(digest)
        return self.real.verify(digest)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("verify") / "home") as made:
        yield made


@pytest.fixture
def blobs(live: LiveServer) -> Iterator[SlowBlobs]:
    real = live.services.blobs
    live.services.blobs = made = SlowBlobs(real)
    yield made
    made.may_go_on.set()
    live.services.blobs = real


def put(live: LiveServer, project: str, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    assert live.call("PUT", f"/v1/projects/{project}/blobs/{digest}", content=data).status_code in (200, 201)
    return digest


def artifact(live: LiveServer, project: str, *contents: bytes) -> str:
    digests = [put(live, project, data) for data in contents]
    files = [
        {"path": f"f{n:03}", "sha256": digest, "size": len(data)}
        for n, (digest, data) in enumerate(zip(digests, contents, strict=True))
    ]
    made = live.ok("POST", f"/v1/projects/{project}/artifacts", {"kind": "input", "files": files})
    return str(made["id"])


def ask(live: LiveServer, artifact_id: str) -> socket.socket:
    """A caller that can hang up."""
    asking = socket.create_connection(("127.0.0.1", live.port))
    asking.sendall(
        f"POST /v1/artifacts/{artifact_id}/verify HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        f"Authorization: Bearer {live.operator}\r\n\r\n".encode()
    )
    return asking


def test_equal_files_are_read_once(live: LiveServer, blobs: SlowBlobs) -> None:
    """ATK-07: three thousand names of one file of 20 MB were 60 GB to read, for one call."""
    blobs.may_go_on.set()
    made = artifact(live, "alpha", *[b"the same"] * 40, b"another")

    answer = live.ok("POST", f"/v1/artifacts/{made}/verify")

    assert (answer["files"], answer["problems"]) == (41, [])
    assert sorted(blobs.begun.values()) == [1, 1]


def test_of_equal_files_that_are_damaged_each_is_named(live: LiveServer, blobs: SlowBlobs) -> None:
    """ATK-07: what is wrong with the one content is said of every file."""
    blobs.may_go_on.set()
    made = artifact(live, "alpha", *[b"to be damaged"] * 2, b"whole")
    digest = hashlib.sha256(b"to be damaged").hexdigest()
    (Path(live.home) / "blobs" / digest[:2] / digest).write_bytes(b"was damaged!!")

    answer = live.ok("POST", f"/v1/artifacts/{made}/verify")

    assert [one.partition(":")[0] for one in answer["problems"]] == ["f000", "f001"]


def test_verifying_holds_up_nobody_elses_files(live: LiveServer, blobs: SlowBlobs) -> None:
    """ATK-07: of one project one goes on at a time, and in threads that no upload or download needs."""
    slow = artifact(live, "alpha", b"slow")
    with ExitStack() as callers:
        for _ in range(12):
            callers.enter_context(ask(live, slow))
        eventually(lambda: blobs.begun.total() == 1, "the first has begun")

        put(live, "beta", b"an upload of another")
        assert blobs.begun.total() == 1


def test_nothing_is_read_for_callers_that_hung_up(live: LiveServer, blobs: SlowBlobs) -> None:
    """ATK-07: neither for those that waited for their turn, nor the rest for the one whose turn it was."""
    made = artifact(live, "alpha", b"first", b"second", b"third")
    with ExitStack() as callers:
        for _ in range(5):
            callers.enter_context(ask(live, made))
        eventually(lambda: blobs.begun.total() == 1, "the first has begun")
    live.ok("GET", f"/v1/artifacts/{made}")
    blobs.may_go_on.set()

    answer = live.ok("POST", f"/v1/artifacts/{made}/verify")

    assert (answer["files"], answer["problems"]) == (3, [])
    assert blobs.begun.total() == 1 + 3
