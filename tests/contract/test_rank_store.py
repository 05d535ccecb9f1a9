"""The control plane's store beyond what every round store promises: lost answers, memory, secrets."""

from __future__ import annotations

import secrets
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.faulty_s3 import Fault, FaultyS3, faulty
from support.live_server import Lease, LiveServer, new_host, serve
from support.rank_place import rank_socket

from corral.diloco import OuterLoop, StoreError
from corral.diloco.store import RoundStore, open_store
from corral.domain.secrets.redact import SecretValues

MIB = 1 << 20
# An answer that never came, one that broke off, and one that trickles.
LOST = [Fault.DROPPED, Fault.TORN, Fault.SLOW]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serve(tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def lease(live: LiveServer) -> Lease:
    return new_host(live).run()


@pytest.fixture
def through(
    live: LiveServer, lease: Lease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[RoundStore, FaultyS3]]:
    """Between the worker and the server is something that breaks connections."""
    with faulty(live.url) as (address, plan):
        there = replace(live, url=address)
        with rank_socket(there, tmp_path, SecretValues({"KEY": "herring-herring"}), lease=lease) as path:
            monkeypatch.setenv("CORRAL_RANK_SOCKET", str(path))
            yield open_store("corral"), plan


def keys(lease: Lease) -> list[str]:
    return [one["key"] for one in lease.ok("GET", "kept")["objects"]]


@pytest.mark.parametrize("fault", LOST)
def test_a_condition_tells_the_truth_whatever_becomes_of_its_answer(
    through: tuple[RoundStore, FaultyS3], fault: Fault
) -> None:
    store, plan = through
    plan.plan(fault, fault, method="PUT")
    assert store.create("commit", b"first")
    assert plan.injected == 2 - (fault is Fault.SLOW)
    plan.plan(fault, method="PUT")
    assert not store.create("commit", b"second")
    found = store.get("commit")
    assert found is not None
    assert found[0] == b"first"
    plan.plan(fault, method="PUT")
    assert store.replace("commit", b"third", found[1])
    plan.plan(fault, method="PUT")
    assert not store.replace("commit", b"fourth", found[1])
    assert (store.get("commit") or (b"",))[0] == b"third"


@pytest.mark.parametrize("fault", LOST)
def test_large_objects_go_through_broken_connections(
    through: tuple[RoundStore, FaultyS3], lease: Lease, fault: Fault
) -> None:
    """The upload, the name that it is given, and reading it, from where it broke off."""
    store, plan = through
    data = secrets.token_bytes(5 * MIB)
    for part in ("blobs/query", "blobs", "kept"):
        plan.plan(fault, method="PUT" if part != "blobs/query" else "POST", path=part)
    etag = store.put("payload", (data[at : at + MIB] for at in range(0, len(data), MIB)))
    assert plan.injected == 3
    buffer = bytearray(3 * MIB)
    plan.plan(fault, fault, method="GET")
    assert store.read_into("payload", buffer, MIB) == 3 * MIB
    assert buffer == data[MIB : 4 * MIB]
    plan.plan(fault, method="GET")
    assert store.get("payload") == (data, etag)
    assert keys(lease) == ["payload"]


def test_an_object_that_is_written_over_while_it_is_read_is_read_anew(
    through: tuple[RoundStore, FaultyS3], lease: Lease
) -> None:
    """All bytes are of one version: what broke off does not go on with another one's."""
    store, plan = through
    old, new = secrets.token_bytes(4 * MIB), secrets.token_bytes(4 * MIB)
    store.put("payload", old)
    plan.plan(Fault.TORN, method="GET", path="kept/payload")

    taken = plan.take

    def take(method: str, path: str, conditional: bool = False) -> Fault | None:
        if method == "GET" and "start=2097152" in path:
            plan.take = taken  # type: ignore[method-assign]
            store.put("payload", new)
        return taken(method, path, conditional)

    plan.take = take  # type: ignore[method-assign]
    found = store.get("payload")
    assert found is not None
    assert found[0] == new
    assert plan.injected == 1


def test_it_needs_no_memory_for_what_it_carries(
    live: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Child, worker and server are threads of this process here, and hold a few pieces each."""
    with rank_socket(live, tmp_path) as path:
        monkeypatch.setenv("CORRAL_RANK_SOCKET", str(path))
        _carry_much()


def _carry_much() -> None:
    store, piece, count = open_store("corral"), secrets.token_bytes(MIB), 64
    store.put("warm", piece * 2)
    buffer = bytearray(count * MIB)
    tracemalloc.start()
    try:
        store.put("payload", (piece for _ in range(count)))
        _, written = tracemalloc.get_traced_memory()
        assert store.read_into("payload", buffer) == len(buffer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer == piece * count
    assert written < 24 * MIB
    assert peak < 24 * MIB


def test_a_secret_in_an_object_is_refused_however_it_is_cut(
    through: tuple[RoundStore, FaultyS3], lease: Lease
) -> None:
    """SEC-05: as in an artifact; what is large is searched by the worker."""
    store, _ = through
    with pytest.raises(StoreError, match="the value of the secret KEY"):
        store.put("payload", [b"x" * (2 * MIB), b"herring-", b"herring", b"x" * 10])
    assert keys(lease) == []


def test_the_hash_of_what_is_stored_is_not_a_key(through: tuple[RoundStore, FaultyS3]) -> None:
    """A child asks over its socket for what is its run's, by name."""
    store, _ = through
    for key in ("../../blobs/x", "..", "a/../../b"):
        with pytest.raises(StoreError, match="not a key"):
            store.get(key)


def test_outside_a_run_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORRAL_RANK_SOCKET", "CORRAL_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StoreError, match="this process is not a rank of a run") as caught:
        OuterLoop({"w": np.zeros(3, np.float32)}, store="corral", run="r", replica=0)
    assert "corral run --replicas" in caught.value.hint
    assert "folder" in caught.value.hint
