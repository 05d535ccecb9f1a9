"""Small named objects over HTTP: conditions, bounds, whose they are, and waiting for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.live_server import FakeHost, Lease, LiveServer, error_of, fresh, new_host
from support.waiting import eventually

from corral.core.storage.objects import MAX_BYTES, MAX_WAITING
from corral.domain.ids import LeaseId
from corral.domain.runs.reasons import Reason


def put(lease: Lease, key: str, body: bytes, **options: Any) -> httpx.Response:
    return lease.call("PUT", f"objects/{key}", content=body, **options)


def get(lease: Lease, key: str, **params: Any) -> httpx.Response:
    return lease.call("GET", f"objects/{key}", params=params)


def watched(live: LiveServer, lease: Lease) -> int:
    return live.services.object_waits._waiting[LeaseId(lease.about["id"])]


def two_attempts(live: LiveServer, between: Callable[[Lease], object]) -> tuple[Lease, Lease]:
    """The leases of a run that a second host takes after the first one has given it back."""
    one, other = new_host(live), new_host(live)
    live.submit(resources={"hosts": [one.name, other.name]})
    first = one.claim()
    between(first)
    first.ok("POST", "stopped", {"reason": Reason.RELEASED})
    second = other.claim()
    assert (second.run_id, second.about["attempt"]) == (first.run_id, 2)
    return first, second


@pytest.fixture
def lease(worker: FakeHost) -> Lease:
    return worker.run()


@pytest.fixture
def waiting() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8)


def test_conditions_are_kept_and_each_version_has_an_etag(lease: Lease) -> None:
    made = put(lease, "a/b", b"one", headers={"If-None-Match": "*"})
    etag = made.json()["etag"]
    error_of(put(lease, "a/b", b"two", headers={"If-None-Match": "*"}), 412, "precondition_failed")
    error_of(put(lease, "a/b", b"two", headers={"If-Match": '"other"'}), 412, "precondition_failed")
    error_of(put(lease, "a/b", b"two", headers={"If-None-Match": '"x"'}), 422, "invalid_input")
    read = get(lease, "a/b")
    assert (read.content, read.headers["etag"]) == (b"one", etag)
    newer = put(lease, "a/b", b"\x00\xff", headers={"If-Match": etag}).json()["etag"]
    assert newer != etag
    assert get(lease, "a/b").content == b"\x00\xff"
    put(lease, "c", b"")
    assert lease.ok("GET", "objects") == {"keys": ["a/b", "c"], "next": None}
    assert lease.ok("GET", "objects", params={"prefix": "a/"})["keys"] == ["a/b"]
    gone = lease.call("DELETE", "objects/a/b", headers={"If-Match": etag})
    error_of(gone, 412, "precondition_failed")
    for _ in range(2):
        assert lease.call("DELETE", "objects/a/b").status_code == 204
    error_of(get(lease, "a/b"), 404, "no_object")


def test_a_write_whose_answer_was_lost_is_not_refused_when_it_is_sent_again(lease: Lease) -> None:
    once = {"headers": {"If-None-Match": "*"}, "params": {"request_id": fresh()}}
    first = put(lease, "leader", b"me", **once)
    assert put(lease, "leader", b"me", **once).json() == first.json()
    other = {**once, "params": {"request_id": fresh()}}
    error_of(put(lease, "leader", b"me", **other), 412, "precondition_failed")


def test_one_that_is_too_large_is_refused(lease: Lease) -> None:
    assert put(lease, "a", b"x" * MAX_BYTES).is_success
    error_of(put(lease, "a", b"x" * (MAX_BYTES + 1)), 413, "too_large")
    assert len(get(lease, "a").content) == MAX_BYTES


def test_a_secret_of_the_project_is_refused(live: LiveServer, lease: Lease) -> None:
    live.ok("PUT", "/v1/projects/default/secrets/OBJECT_KEY", {"value": "swordfish-swordfish"})
    error = error_of(put(lease, "a", b"it is swordfish-swordfish"), 422, "secret_exposed")
    assert "OBJECT_KEY" in error.message
    live.call("DELETE", "/v1/projects/default/secrets/OBJECT_KEY")


def test_nobody_else_reads_or_writes_them(live: LiveServer, worker: FakeHost, lease: Lease) -> None:
    """Another host's token, another run's lease, a user, an old epoch: none of them."""
    put(lease, "a", b"mine")
    stranger = new_host(live)
    error_of(lease.call("GET", "objects/a", token=stranger.token), 404, "not_found")
    error_of(put(lease, "a", b"theirs", token=stranger.token), 404, "not_found")
    error_of(lease.call("DELETE", "objects/a", token=stranger.token), 404, "not_found")
    error_of(lease.call("GET", "objects", token=live.operator), 403, "forbidden")
    other = worker.run(project="elsewhere")
    error_of(get(other, "a"), 404, "no_object")
    assert other.ok("GET", "objects")["keys"] == []
    stale = {"epoch": lease.about["epoch"] - 1}
    error_of(put(lease, "a", b"late", params=stale), 410, "lease_lost")
    error_of(get(lease, "a", **stale), 410, "lease_lost")
    assert get(lease, "a").content == b"mine"


def test_the_next_attempt_begins_with_none_and_the_former_is_fenced(live: LiveServer) -> None:
    """DL-D27: two cohorts never meet in one place."""
    first, second = two_attempts(live, lambda lease: put(lease, "a", b"old"))
    error_of(get(second, "a"), 404, "no_object")
    error_of(get(first, "a"), 410, "lease_lost")
    error_of(put(first, "a", b"late"), 410, "lease_lost")
    assert second.ok("GET", "objects")["keys"] == []


def wait(pool: ThreadPoolExecutor, lease: Lease, key: str, **params: Any) -> Future[httpx.Response]:
    return pool.submit(get, lease, key, wait_s=50, **params)


def test_a_read_waits_until_it_is_there_and_until_it_changes(
    live: LiveServer, lease: Lease, waiting: ThreadPoolExecutor
) -> None:
    """DL-D05: nobody polls. One that is deleted has changed too; others wake nobody."""
    early = wait(waiting, lease, "a")
    eventually(lambda: watched(live, lease) == 1, "the call to wait")
    put(lease, "b", b"")
    put(lease, "a", b"one")
    assert early.result(30).content == b"one"
    etag = get(lease, "a").headers["etag"]
    changed = wait(waiting, lease, "a", changed_from=etag)
    eventually(lambda: watched(live, lease) == 1, "the call to wait")
    assert not changed.done()
    put(lease, "a", b"two")
    assert changed.result(30).content == b"two"
    etag = get(lease, "a").headers["etag"]
    gone = wait(waiting, lease, "a", changed_from=etag)
    eventually(lambda: watched(live, lease) == 1, "the call to wait")
    lease.call("DELETE", "objects/a")
    error_of(gone.result(30), 404, "no_object")
    error_of(get(lease, "a", changed_from=etag, wait_s=50), 404, "no_object")


def test_a_wait_ends_with_its_time_and_with_what_is_there(lease: Lease) -> None:
    error_of(get(lease, "a", wait_s=0.05), 404, "no_object")
    etag = put(lease, "a", b"one").json()["etag"]
    same = get(lease, "a", wait_s=0.05, changed_from=etag)
    assert (same.content, same.headers["etag"]) == (b"one", etag)
    error_of(get(lease, "a", wait_s=61), 422, "invalid_input")


def test_a_wait_whose_lease_is_lost_is_told_so_when_it_wakes(
    live: LiveServer, waiting: ThreadPoolExecutor
) -> None:
    """What comes after its end is not told to it."""
    begun: list[Future[httpx.Response]] = []

    def begin(lease: Lease) -> None:
        begun.append(wait(waiting, lease, "a"))
        eventually(lambda: watched(live, lease) == 1, "the call to wait")

    first, second = two_attempts(live, begin)
    put(second, "a", b"new")
    live.services.hub.wake(f"object:{first.run_id}/1/a")
    assert error_of(begun[0].result(30), 410, "lease_lost")


def test_only_so_many_calls_of_a_lease_wait(live: LiveServer, worker: FakeHost, lease: Lease) -> None:
    held = live.services.object_waits
    lease_id = LeaseId(lease.about["id"])
    held._waiting[lease_id] = MAX_WAITING
    error_of(get(lease, "a", wait_s=50), 429, "rate_limited")
    put(lease, "a", b"")
    assert get(lease, "a", wait_s=50).is_success
    error_of(get(worker.run(), "a", wait_s=0.01), 404, "no_object")
    del held._waiting[lease_id]
