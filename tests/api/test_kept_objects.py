"""Objects that a run keeps over its attempts: conditions, whose they are, and where their bytes are."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import httpx
import pytest
from support.clock import JumpingClock
from support.live_server import FakeHost, Lease, LiveServer, error_of, fresh, new_host, sha

from corral.core.storage.gc import GarbageCollector
from corral.core.storage.kept_objects import PASSING_S
from corral.domain.artifacts import MAX_INLINE_BYTES
from corral.domain.ids import Digest
from corral.domain.runs.reasons import Reason


def put(lease: Lease, key: str, body: bytes, **options: Any) -> httpx.Response:
    return lease.call("PUT", f"kept/{key}", content=body, **options)


def named(lease: Lease, key: str, data: bytes, **params: Any) -> httpx.Response:
    """A large one: its bytes are there already."""
    about = {"sha256": sha(data), "size": len(data), **params}
    return lease.call("PUT", f"kept/{key}", params=about)


def get(lease: Lease, key: str, **params: Any) -> httpx.Response:
    return lease.call("GET", f"kept/{key}", params=params)


def listed(lease: Lease, **params: Any) -> list[tuple[str, int]]:
    return [(one["key"], one["size"]) for one in lease.ok("GET", "kept", params=params)["objects"]]


def has(live: LiveServer, data: bytes, project: str = "default") -> bool:
    digest = Digest(sha(data))
    row = live.write(lambda tx: tx.blobs.get(project, digest))
    try:
        live.services.blobs.size(digest)
    except KeyError:
        assert row is None
        return False
    return row is not None


def collected(live: LiveServer, later_s: float = 2 * PASSING_S) -> None:
    """A collection at a later time."""
    services, later = live.services, JumpingClock()
    later.ahead_s = later_s
    collector = GarbageCollector(services.store, services.blobs, services.segments, later, services.policy)
    assert live.loop is not None
    asyncio.run_coroutine_threadsafe(collector.collect(services.in_thread), live.loop).result(60)


@pytest.fixture
def lease(worker: FakeHost) -> Lease:
    return worker.run()


def test_conditions_are_kept_and_each_version_has_an_etag(lease: Lease) -> None:
    made = put(lease, "a/b", b"one", headers={"If-None-Match": "*"}).json()["etag"]
    error_of(put(lease, "a/b", b"two", headers={"If-None-Match": "*"}), 412, "precondition_failed")
    error_of(put(lease, "a/b", b"two", headers={"If-Match": '"other"'}), 412, "precondition_failed")
    error_of(put(lease, "z", b"two", headers={"If-Match": made}), 412, "precondition_failed")
    error_of(put(lease, "a/b", b"two", headers={"If-None-Match": '"x"'}), 422, "invalid_input")
    newer = put(lease, "a/b", b"0123456789", headers={"If-Match": made}).json()["etag"]
    assert newer != made
    whole, part = get(lease, "a/b"), get(lease, "a/b", start=3, length=4)
    assert (whole.content, whole.headers["etag"], part.content) == (b"0123456789", newer, b"3456")
    assert get(lease, "a/b", start=8, length=4).content == b"89"
    assert get(lease, "a/b", start=99).content == b""
    again = lease.call("GET", "kept/a/b", headers={"If-Match": made})
    error_of(again, 412, "precondition_failed")
    assert put(lease, "c", b"").is_success
    assert get(lease, "c").content == b""
    assert listed(lease) == [("a/b", 10), ("c", 0)]
    assert listed(lease, prefix="a/") == [("a/b", 10)]
    page = lease.ok("GET", "kept", params={"limit": 1})
    assert page["next"] == "a/b"
    assert listed(lease, after=page["next"]) == [("c", 0)]
    for _ in range(2):
        assert lease.call("DELETE", "kept/a/b").status_code == 204
    error_of(get(lease, "a/b"), 404, "no_object")


def test_a_write_whose_answer_was_lost_is_not_refused_when_it_is_sent_again(lease: Lease) -> None:
    once = {"headers": {"If-None-Match": "*"}, "params": {"request_id": fresh()}}
    first = put(lease, "commit", b"me", **once)
    assert put(lease, "commit", b"me", **once).json() == first.json()
    other = {**once, "params": {"request_id": fresh()}}
    error_of(put(lease, "commit", b"me", **other), 412, "precondition_failed")


def test_a_large_one_is_uploaded_before_it_is_named(live: LiveServer, lease: Lease) -> None:
    data = secrets.token_bytes(MAX_INLINE_BYTES + 1)
    error_of(put(lease, "payload", data), 413, "too_large")
    error_of(named(lease, "payload", data), 409, "blob_missing")
    assert lease.put(data, params={"passing": "true"}).status_code == 201
    error_of(named(lease, "payload", data, size=7), 409, "blob_missing")
    assert named(lease, "payload", data).is_success
    assert get(lease, "payload", start=1000, length=MAX_INLINE_BYTES).content == data[1000:]


def test_a_lease_names_only_what_it_uploaded(live: LiveServer, worker: FakeHost, lease: Lease) -> None:
    """A hash is not a key."""
    data = secrets.token_bytes(100)
    worker.run().put(data)
    assert error_of(named(lease, "mine", data), 409, "blob_missing")


@pytest.mark.parametrize("key", [".a", "a/.b", "a b", "x" * 513, "a//b", "%C3%A4"])
def test_a_key_of_another_form_is_refused(lease: Lease, key: str) -> None:
    assert error_of(put(lease, key, b""), 422, "invalid_input")


def test_nobody_else_reads_or_writes_them(live: LiveServer, worker: FakeHost, lease: Lease) -> None:
    put(lease, "a", b"mine")
    stranger = new_host(live)
    error_of(lease.call("GET", "kept/a", token=stranger.token), 404, "not_found")
    error_of(put(lease, "a", b"theirs", token=stranger.token), 404, "not_found")
    error_of(lease.call("DELETE", "kept/a", token=stranger.token), 404, "not_found")
    error_of(lease.call("GET", "kept", token=live.operator), 403, "forbidden")
    other = worker.run()
    error_of(get(other, "a"), 404, "no_object")
    assert listed(other) == []
    stale = {"epoch": lease.about["epoch"] - 1}
    error_of(put(lease, "a", b"late", params=stale), 410, "lease_lost")
    error_of(get(lease, "a", **stale), 410, "lease_lost")
    assert get(lease, "a").content == b"mine"


def test_a_secret_of_the_project_is_refused_and_not_stored(live: LiveServer, lease: Lease) -> None:
    live.ok("PUT", "/v1/projects/default/secrets/KEPT_KEY", {"value": "herring-herring"})
    try:
        error = error_of(put(lease, "a", b"it is herring-herring"), 422, "secret_exposed")
        assert "KEPT_KEY" in error.message
        assert not has(live, b"it is herring-herring")
    finally:
        live.call("DELETE", "/v1/projects/default/secrets/KEPT_KEY")


def test_what_is_refused_is_not_stored(live: LiveServer, lease: Lease) -> None:
    put(lease, "a", b"first")
    error_of(put(lease, "a", b"never stored", headers={"If-None-Match": "*"}), 412, "precondition_failed")
    assert not has(live, b"never stored")


def test_they_outlive_an_attempt_and_the_former_is_fenced(live: LiveServer) -> None:
    """DL-D10: every round is a checkpoint, whatever becomes of the attempt that made it."""
    one, other = new_host(live), new_host(live)
    live.submit(resources={"hosts": [one.name, other.name]})
    first = one.claim()
    put(first, "commits/1", b"round 1")
    first.ok("POST", "stopped", {"reason": Reason.RELEASED})
    second = other.claim()
    assert get(second, "commits/1").content == b"round 1"
    error_of(put(first, "commits/2", b"late"), 410, "lease_lost")
    error_of(first.call("DELETE", "kept/commits/1"), 410, "lease_lost")
    collected(live)
    assert get(second, "commits/1").content == b"round 1"
    second.ok("POST", "stopped", {"reason": Reason.RELEASED})


def test_bytes_stay_as_long_as_a_name_holds_them_and_go_when_none_does(
    live: LiveServer, worker: FakeHost
) -> None:
    """DL-D07: deleted, written over, never named, or the run has ended for good. Also while the lease lives:
    a run of weeks would keep the bytes of every round."""
    lease = worker.run()
    keep, twice, over, gone, never, ended = (secrets.token_bytes(100) for _ in range(6))
    for key, data in [("keep", keep), ("once", twice), ("again", twice), ("over", over), ("gone", gone)]:
        assert put(lease, key, data).is_success
    large = secrets.token_bytes(MAX_INLINE_BYTES + 5)
    for data in (large, never):
        assert lease.put(data, params={"passing": "true"}).status_code == 201
    assert named(lease, "large", large).is_success
    put(lease, "over", keep)
    for key in ("once", "gone"):
        lease.call("DELETE", f"kept/{key}")
    collected(live)
    assert [has(live, data) for data in (keep, twice, large)] == [True] * 3
    assert [has(live, data) for data in (over, gone, never)] == [False] * 3
    put(lease, "ended", ended)
    lease.ok("POST", "fail", {"reason": Reason.CODE_ERROR, "exit_code": 1})
    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "failed"
    collected(live)
    assert [has(live, data) for data in (keep, twice, large, ended)] == [False] * 4
    assert live.write(lambda tx: tx.kept.of_ended(1)) == []


def test_a_checkpoint_of_the_same_bytes_keeps_them(live: LiveServer, worker: FakeHost) -> None:
    """Both are uploaded; the object is named and deleted before the checkpoint is committed."""
    lease = worker.run()
    data = secrets.token_bytes(100)
    lease.put(data)
    lease.put(data, params={"passing": "true"})
    assert named(lease, "payload", data).is_success
    lease.call("DELETE", "kept/payload")
    collected(live)
    assert has(live, data)


def test_a_removed_run_leaves_nothing(live: LiveServer, worker: FakeHost) -> None:
    lease, data = worker.run(), secrets.token_bytes(100)
    put(lease, "a", data)
    lease.ok("POST", "fail", {"reason": Reason.CODE_ERROR, "exit_code": 1})
    assert live.call("DELETE", f"/v1/runs/{lease.run_id}").is_success
    assert live.write(lambda tx: tx.kept.of_ended(1)) == []
    collected(live)
    assert not has(live, data)


def test_they_count_towards_the_quota(live: LiveServer, worker: FakeHost) -> None:
    live.ok("PUT", "/v1/quotas/tight", {"max_bytes": 100_000})
    lease = worker.run(project="tight")
    assert put(lease, "one", b"x" * 60_000).is_success
    error_of(put(lease, "two", b"y" * 60_000), 507, "project_full")
    large = b"z" * 60_000
    error_of(lease.put(large, params={"passing": "true"}), 507, "project_full")
    assert put(lease, "same", b"x" * 60_000).is_success


def test_fsck_finds_one_whose_bytes_are_gone(live: LiveServer, lease: Lease) -> None:
    data = secrets.token_bytes(100)
    put(lease, "lost", data)
    found = [line for line in live.call("POST", "/v1/fsck").text.splitlines() if "kept objects" in line]
    assert len(found) == 1
    digest = Digest(sha(data))
    live.write(lambda tx: tx.blobs.unpin(f"kept:{lease.run_id}/lost"))
    live.write(lambda tx: tx.blobs.condemn(live.clock.now() + 1e6, live.clock.now(), 1000))
    live.write(lambda tx: tx.blobs.drop("default", digest))
    said = live.call("POST", "/v1/fsck").text
    assert f"run {lease.run_id}: its object lost has no blob of 100 bytes" in said
    lease.call("DELETE", "kept/lost")
