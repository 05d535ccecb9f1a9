"""The store of payloads fails, or gives other bytes than it was given: calls fail plainly or go on, and no
wrong bytes are ever taken for a value."""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support import forked
from support.live_server import LiveServer, serve
from support.local_cluster import CLEAN, marked
from support.waiting import eventually

import corral
from calls import functions_for_tests as pier
from corral.client.corral import Corral
from corral.client.http.outage import OutageRules
from corral.client.http.transport import Backoff
from corral.domain.errors import CorralError, StoreUnavailable
from corral.domain.ids import Digest
from corral.functions import backend
from corral.functions.find_app import find_app
from corral.functions.function import Function
from corral.functions.http_backend import HttpBackend
from corral.ports.blobs import BlobStore, HandedOverFile, Upload

LARGE = bytes(range(256)) * 2000


@dataclass
class FaultyBlobs:
    """A store in front of a real one, which fails as often as it is told to, and can be told to lie."""

    real: BlobStore
    failing_writes: int = 0
    failing_reads: int = 0
    lying: str | None = None
    faults: list[str] = field(default_factory=list)
    # Off, since bytes that are not sent cannot be harmed on the way.
    handed_over: bool = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def near(self) -> Path | None:
        return self.real.near() if self.handed_over else None

    def take(self, name: str) -> HandedOverFile:
        self._may_fail()
        return self.real.take(name)

    def open_upload(self, digest: Digest, *, uploader: str, offset: int | None) -> Upload:
        self._may_fail()
        return self.real.open_upload(digest, uploader=uploader, offset=offset)

    def _may_fail(self) -> None:
        if self.failing_writes:
            self.failing_writes -= 1
            self.faults.append("write")
            raise StoreUnavailable("the disk does not answer")

    def read(self, digest: Digest, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        chunks = self.real.read(digest, start=start, length=length)
        if self.lying is not None:
            return self._wrong(b"".join(chunks))
        return self._broken(chunks) if self.failing_reads else chunks

    def _broken(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        """Half of it, then an error of the disk."""
        self.failing_reads -= 1
        self.faults.append("read")
        first = next(chunks)
        yield first[: len(first) // 2]
        raise OSError(5, "Input/output error")

    def _wrong(self, data: bytes) -> Iterator[bytes]:
        self.faults.append("lie")
        yield data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :]


@dataclass(frozen=True)
class Ground:
    live: LiveServer
    blobs: FaultyBlobs

    def damage(self, digest: str) -> None:
        path = self.live.home / "blobs" / digest[:2] / digest
        data = path.read_bytes()
        path.write_bytes(data[: len(data) - 7])

    def mend(self) -> None:
        """What was made to fail."""
        self.blobs.failing_writes = self.blobs.failing_reads = 0
        self.blobs.lying = None
        self.blobs.faults.clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with faulty(tmp_path_factory.mktemp("faulty") / "home", handed_over=False) as made, using(made):
        yield made


@contextmanager
def faulty(home: Path, *, handed_over: bool) -> Iterator[Ground]:
    """A server on a store that can be made to fail, and a worker."""
    with serve(home) as live:
        blobs = FaultyBlobs(live.services.blobs, handed_over=handed_over)
        live.services.blobs = blobs
        env = {**CLEAN, "CORRAL_HOME": str(home), "CORRAL_URL": live.url, "CORRAL_WORKER_SLOTS": "20"}
        with (home / "worker.log").open("wb") as log:
            worker = forked.start("corral.worker", env, output=log.fileno())
        try:
            yield Ground(live, blobs)
        finally:
            worker.kill()
            worker.wait(120)
            for pid in marked(home / "worker"):
                subprocess.run(["kill", "-9", str(pid)], check=False)


@pytest.fixture
def ground(served: Ground) -> Iterator[Ground]:
    yield served
    served.mend()


@contextmanager
def using(served: Ground) -> Iterator[None]:
    """Calls of this process go there; what is called again finds its instance warm."""
    patient = Backoff(tries=20, first_s=0.02, most_s=0.1)
    rules = OutageRules(patience_s=2)
    with Corral(served.live.url, served.live.operator, backoff=patient, outage=rules) as client:
        backend.set_backend(HttpBackend(client, "default"))
        yield
        backend.set_backend(None)


def value(n: int) -> bytes:
    """Large, and never the same: equal bytes are stored once, and would not be sent."""
    return f"{time.time_ns()} {n} ".encode() + LARGE


def test_writes_that_fail_for_a_while_lose_nothing(ground: Ground) -> None:
    """RF-C32: of arguments, and then of results; both are larger than what travels inline."""
    sent = value(1)
    ground.blobs.failing_writes = 3
    call = pier.give_back.spawn(sent)
    assert ground.blobs.faults == ["write"] * 3
    assert call.result(100) == sent

    ground.blobs.failing_writes = 3
    made = pier.makes.remote(400_000)
    assert made == pier.makes(400_000)
    assert ground.blobs.faults == ["write"] * 6


def test_what_is_large_is_sent_where_nothing_can_be_handed_over(ground: Ground) -> None:
    sent = value(20) * 10

    assert pier.give_back.remote(sent) == sent

    assert not (ground.live.home / "near").exists()


def test_reads_that_break_in_the_middle_go_on_where_they_were(ground: Ground) -> None:
    sent = value(2)
    ground.blobs.failing_reads = 2

    assert pier.give_back.remote(sent) == sent

    assert ground.blobs.faults == ["read"] * 2


def test_a_store_that_stays_away_is_told_to_the_caller(ground: Ground) -> None:
    ground.blobs.failing_writes = 1_000_000

    with pytest.raises(StoreUnavailable, match="does not answer"):
        pier.give_back.spawn(value(3))


def test_damaged_arguments_are_never_given_to_the_function(ground: Ground, tmp_path: Path) -> None:
    log = tmp_path / "log"
    ground.blobs.lying = "about everything"

    with pytest.raises(corral.CannotStart, match="damaged"):
        pier.work.spawn(str(log), value(4).decode("latin-1")).result(100)

    assert not log.exists(), "the function was never run"
    assert "lie" in ground.blobs.faults


def test_a_result_that_is_cut_short_on_disk_is_never_a_value(ground: Ground) -> None:
    call = pier.makes.spawn(500_000)
    call.result(100)
    view = ground.live.ok("GET", f"/v1/calls/{call.id}")

    ground.damage(view["result"]["blob"])

    with pytest.raises(corral.ResultLost, match="damaged"):
        corral.Call.from_id(call.id).result(30)


def test_in_a_map_only_what_is_damaged_is_lost(ground: Ground) -> None:
    sizes = [300_001, 300_002, 300_003]
    calls = [pier.makes.with_options(key=f"map:broken:{n}").spawn(size) for n, size in enumerate(sizes)]
    for call in calls:
        call.result(100)
    ground.damage(ground.live.ok("GET", f"/v1/calls/{calls[1].id}")["result"]["blob"])

    found = list(pier.makes.map(sizes, resume="broken", return_exceptions=True))

    assert [type(one) for one in found] == [bytes, corral.ResultLost, bytes]
    assert found[0] == pier.makes(sizes[0])


def test_chunks_that_are_large_survive_a_store_that_fails(ground: Ground) -> None:
    ground.blobs.failing_writes = 2
    ground.blobs.failing_reads = 2

    found = list(pier.parts.stream(3, 200_000))

    assert found == list(pier.parts(3, 200_000))


def test_a_result_over_the_limit_is_an_error_and_the_next_call_works(ground: Ground) -> None:
    """RF-C17: the limit is the server's to set, and is told."""
    limits = ground.live.services.limits
    ground.live.services.limits = type(limits)(max_blob_bytes=200_000)
    try:
        with pytest.raises(corral.ResultTooLarge, match="200000"):
            pier.makes.spawn(250_000).result(60)
        with pytest.raises(CorralError, match="200000"):
            pier.give_back.spawn(value(5))
        with pytest.raises(corral.ResultTooLarge):
            list(pier.parts.stream(2, 250_000))
        assert pier.makes.spawn(150_000).result(60) == pier.makes(150_000)
    finally:
        ground.live.services.limits = limits


def test_what_the_store_has_lost_is_named(ground: Ground) -> None:
    call = pier.makes.spawn(610_000)
    call.result(100)
    digest = ground.live.ok("GET", f"/v1/calls/{call.id}")["result"]["blob"]
    eventually(lambda: (ground.live.home / "blobs" / digest[:2] / digest).exists(), "it to be there")
    ground.blobs.real.delete(Digest(digest))

    with pytest.raises(corral.ResultLost, match=digest):
        corral.Call.from_id(call.id).result(30)


def test_code_that_is_damaged_fails_each_call_with_that_reason(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RF-D47: a failed unpack is never taken for done, by this call or by the next."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "brittle.py"
    file.write_text("import corral\napp = corral.App('brittle')\n@app.function()\ndef f(): return 1\n")
    _, member = find_app(f"{file}::f")
    assert member is not None
    backend.backend().find(member)
    ground.damage(hashlib.sha256(file.read_bytes()).hexdigest())
    brittle: Function[[], int] = Function(member, member.target)

    for _ in range(2):
        with pytest.raises((corral.CannotStart, CorralError), match="does not match its entry"):
            brittle.spawn().result(100)
