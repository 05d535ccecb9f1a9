"""What a request names: blobs, calls, chunks and parents of its own project and its own lease alone."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.fake_instance import FakeEndpoint, FakeInstance, as_blob, deploy, inline, outcome
from support.live_server import FakeHost, Json, LiveServer, error_of, named, record, sha

from corral.core.leases.fence import expire
from corral.domain.calls import CallState
from corral.domain.ids import CallId, Digest, LeaseId
from corral.store.transaction import Tx

SECRET = "correct-horse-battery"


def upload(live: LiveServer, project: str, data: bytes) -> None:
    live.ok("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data)


def call_of(live: LiveServer, call_id: str) -> Json:
    return dict(live.ok("GET", f"/v1/calls/{call_id}"))


@pytest.fixture
def endpoint(live: LiveServer, worker: FakeHost) -> FakeEndpoint:
    web = {"kind": "web", "path": "/", "method": "GET"}
    return deploy(live, worker, project=named("alpha"), functions={"f": {}, "page": web})


@pytest.fixture
def instance(endpoint: FakeEndpoint) -> FakeInstance:
    endpoint.call(b"first")
    made = endpoint.instance()
    made.exchange(outcomes=[outcome(made.next_call())])
    return made


@pytest.mark.parametrize("owner", ["another project", "another run of its own project"])
def test_a_result_names_no_bytes_that_its_instance_did_not_upload(
    live: LiveServer, endpoint: FakeEndpoint, instance: FakeInstance, owner: str
) -> None:
    """SEC-01, SEC-18: a digest and a size that somebody knows get them no bytes."""
    data = f"what beta keeps {named('x')}".encode()
    upload(live, endpoint.project if owner == "another run of its own project" else named("beta"), data)
    endpoint.call(b"1", b"2", b"3")
    calls = [instance.next_call(holding=[]) for _ in range(3)]

    instance.exchange(
        outcomes=[
            outcome(calls[0], result=as_blob(sha(data), len(data))),
            outcome(calls[2], b"others are kept"),
        ],
        chunks=[{"call_id": calls[1]["id"], "attempt": 1, "first": 1, "chunks": [as_blob(sha(data), 15)]}],
    )

    for call in calls[:2]:
        seen = call_of(live, call["id"])
        assert (seen["state"], seen["error"]["type"], seen["result"]) == ("failed", "ResultLost", None)
    assert call_of(live, calls[2]["id"])["state"] == "succeeded"
    reading = {"lease": instance.lease.about["id"], "epoch": instance.lease.about["epoch"]}
    token = endpoint.worker.token
    error_of(live.call("GET", f"/v1/blobs/{sha(data)}", token=token, params=reading), 404, "not_found")


def test_a_result_of_another_size_than_its_bytes_is_not_kept(
    live: LiveServer, endpoint: FakeEndpoint, instance: FakeInstance
) -> None:
    """SEC-01."""
    data = named("mine").encode()
    assert instance.lease.put(data).is_success
    endpoint.call(b"1", b"2")
    wrong, right = instance.next_call(), instance.next_call()

    instance.exchange(
        outcomes=[
            outcome(wrong, result=as_blob(sha(data), 1)),
            outcome(right, result=as_blob(sha(data), len(data))),
        ]
    )

    assert call_of(live, wrong["id"])["error"]["type"] == "ResultLost"
    assert call_of(live, right["id"])["result"]["blob"] == sha(data)


def test_the_gateway_reads_no_bytes_of_another_project(
    live: LiveServer, endpoint: FakeEndpoint, instance: FakeInstance
) -> None:
    """SEC-01: checked again when they are read, since an older server did not check what it wrote."""
    data = f"what beta keeps {named('x')}".encode()
    upload(live, named("beta"), data)
    assert live.loop is not None
    asked = asyncio.run_coroutine_threadsafe(
        asyncio.to_thread(live.call, "GET", f"/v1/web/{endpoint.project}/{endpoint.name}/"), live.loop
    )
    call = instance.next_call()
    settle_as_an_older_server(live, call["id"], sha(data), len(data))

    answer = asked.result(30)

    assert answer.status_code == 404, answer.text
    assert data not in answer.content


def settle_as_an_older_server(live: LiveServer, call_id: str, blob: str, size: int) -> None:
    def write(tx: Tx) -> None:
        kept = tx.calls.get(CallId(call_id))
        assert kept is not None
        done = kept._replace(
            state=CallState.SUCCEEDED,
            result_format="web1",
            result_blob=Digest(blob),
            result_bytes=size,
            ended_at=1.0,
        )
        tx.calls.save(done)
        tx.announce("call", call_id)

    live.write(write)


def test_a_lease_reads_nothing_by_naming_it_in_what_it_commits(live: LiveServer, worker: FakeHost) -> None:
    """SEC-18: in its output, in a volume, or as an argument of a call that it makes itself."""
    project = named("alpha")
    data = f"another run's {named('x')}".encode()
    upload(live, project, data)
    lease = worker.run(project=project)
    assert lease.ok("POST", "blobs/query", {"blobs": [sha(data)]})["missing"] == [sha(data)]

    manifest = {"kind": "output", "files": [record("a", data)]}
    error_of(lease.call("POST", "artifacts", manifest), 409, "blob_missing")

    assert lease.put(data).is_success
    assert lease.ok("POST", "blobs/query", {"blobs": [sha(data)]})["missing"] == []
    assert lease.ok("POST", "artifacts", manifest)["bytes"] == len(data)


def test_an_instance_names_only_its_own_bytes_elsewhere(live: LiveServer, worker: FakeHost) -> None:
    """SEC-18."""
    project = named("alpha")
    data = f"another run's {named('x')}".encode()
    upload(live, project, data)
    endpoint = deploy(live, worker, project=project, service={"volumes": {"data": "vol"}})
    endpoint.call()
    instance = endpoint.instance()
    change = {"base": 0, "files": [record("a", data)]}
    nested = {
        "what": "make",
        "endpoint": endpoint.name,
        "calls": [{"function": "f", "args": as_blob(sha(data), len(data))}],
    }

    error_of(instance.lease.call("POST", "volumes/vol/versions", change), 409, "blob_missing")
    error_of(instance.lease.call("POST", "nested", nested), 409, "blob_missing")

    assert instance.lease.put(data).is_success
    assert instance.lease.ok("POST", "volumes/vol/versions", change)["version"] == 1
    assert instance.lease.ok("POST", "nested", nested)["calls"]


def test_what_a_lease_uploaded_is_its_own_when_it_comes_back(live: LiveServer, worker: FakeHost) -> None:
    """SEC-18: a host that was away for longer than its lease names what it uploaded before."""
    data = named("mine").encode()
    lease = worker.run(project=named("alpha"))
    lease.ok("POST", "beat", {})
    assert lease.put(data).is_success
    lease_id, policy, shares = LeaseId(lease.about["id"]), live.services.policy, live.services.board.shares
    late = live.clock.now() + 1000
    live.write(lambda tx: expire(tx, lease_id, now=late, policy=policy, shares=shares))
    live.write(lambda tx: tx.blobs.expire_pins(late))

    made = lease.ok("POST", "artifacts", {"kind": "output", "files": [record("a", data)]})

    assert made["bytes"] == len(data)


def test_arguments_have_the_size_of_their_blob(live: LiveServer, endpoint: FakeEndpoint) -> None:
    """SEC-01: each of a request, though two name the same blob."""
    data = named("args").encode()
    upload(live, endpoint.project, data)
    calls = [{"function": "f", "args": as_blob(sha(data), size)} for size in (1, len(data))]
    body = {"project": endpoint.project, "endpoint": endpoint.name, "calls": calls}

    assert error_of(live.call("POST", "/v1/calls", body), 409, "blob_missing")


def test_an_instance_adds_chunks_to_calls_of_its_own_endpoint_alone(
    live: LiveServer, worker: FakeHost, instance: FakeInstance
) -> None:
    """SEC-06: a host that serves alpha wrote into beta's queued call, and failed it with a second chunk."""
    other = deploy(live, worker, project=named("beta"), resources={"hosts": ["nowhere"]})
    (call,) = other.call()

    for value in (b"a", b"b"):
        instance.exchange(chunks=[{"call_id": call, "attempt": 1, "first": 1, "chunks": [inline(value)]}])

    assert live.ok("GET", f"/v1/calls/{call}/chunks")["chunks"] == []
    assert call_of(live, call)["state"] == "queued"


def test_one_bad_call_does_not_harm_the_others_of_its_batch(
    live: LiveServer, endpoint: FakeEndpoint, instance: FakeInstance
) -> None:
    """SEC-17: a backoff beyond all numbers, an error that is no text, and chunks that never come."""
    options = {"retries": 1000, "backoff": 100.0, "delay_s": 1.0}
    endpoint.call(b"1", options=options)
    endpoint.call(b"2", b"3", b"4")
    calls = [instance.next_call() for _ in range(4)]

    def many_tries(tx: Tx) -> None:
        call = tx.calls.get(CallId(calls[0]["id"]))
        assert call is not None
        tx.calls.save(call._replace(state=CallState.QUEUED, attempt=200))

    live.write(many_tries)
    bad = [
        {"call_id": calls[0]["id"], "attempt": 201, "error": {"type": "E", "message": "m", "bases": ["E"]}},
        outcome(calls[1], error={"type": "E", "message": "m", "bases": 7, "odd": [[1e300, None]]}),
        outcome(calls[2], chunks=5),
    ]

    late = instance.lease.call("POST", "calls", {"outcomes": [*bad, outcome(calls[3])]})

    assert "chunk 1" in error_of(late, 422, "invalid_input").message
    states = [call_of(live, call["id"])["state"] for call in calls]
    assert (states[0], states[1], states[3]) == ("queued", "failed", "succeeded")
    queued = live.write(lambda tx: tx.calls.get(CallId(calls[0]["id"])))
    assert queued is not None
    assert queued.ready_at <= live.clock.now() + 60


def test_numbers_beyond_the_database_and_parents_of_others_are_refused(
    live: LiveServer, worker: FakeHost, endpoint: FakeEndpoint, instance: FakeInstance
) -> None:
    """SEC-22."""
    other = deploy(live, worker, project=named("beta"), resources={"hosts": ["nowhere"]})
    sibling = deploy(live, worker, project=endpoint.project, resources={"hosts": ["nowhere"]})
    (foreign,), (beside,), (own,) = other.call(), sibling.call(), endpoint.call()
    call = {"function": "f", "args": inline(b"x")}
    made = {"project": endpoint.project, "endpoint": endpoint.name, "calls": [call]}
    nested = {"what": "make", "endpoint": endpoint.name, "calls": [call]}

    after = {"after": 2**63}
    error_of(live.call("GET", f"/v1/calls/{own}/chunks", params=after), 422, "invalid_input")
    error_of(live.call("POST", "/v1/calls", {**made, "parent": foreign}), 404, "not_found")
    for parent in (foreign, beside):
        error_of(instance.lease.call("POST", "nested", {**nested, "parent": parent}), 404, "not_found")
    too_far = {"what": "chunks", "id": own, **after}
    error_of(instance.lease.call("POST", "nested", too_far), 422, "invalid_input")
    assert instance.lease.ok("POST", "nested", {**nested, "parent": own})["calls"][0]["parent"] == own


def test_errors_of_calls_are_kept_and_told_without_secrets(
    live: LiveServer, endpoint: FakeEndpoint, instance: FakeInstance
) -> None:
    """SEC-07, RF-D59: also a secret that the run does not name, which its worker does not know."""
    live.ok("PUT", f"/v1/projects/{endpoint.project}/secrets/DATABASE", {"value": SECRET})
    hook = {"name": named("hook"), "url": "https://1.1.1.1/", "events": ["call.*"]}
    live.ok("POST", "/v1/webhooks", {**hook, "project": endpoint.project})
    (call_id,) = endpoint.call()
    call = instance.next_call()
    encoded = inline(f"args {SECRET}".encode())["body"]
    error = {
        "type": "OperationalError",
        "message": f"cannot connect with {SECRET}",
        "bases": ["OperationalError", f"x.{SECRET}"],
        "traceback": f"connect({SECRET!r})",
        "args": encoded,
        "state": inline(b"nothing to hide")["body"],
    }

    instance.exchange(outcomes=[outcome(call, error=error)])

    seen = call_of(live, call_id)["error"]
    assert seen["message"] == "cannot connect with [secret DATABASE]"
    assert (seen["args"], seen["state"]) == (None, error["state"])

    def stored(tx: Tx) -> list[str]:
        kept = tx.calls.get(CallId(call_id))
        hooks = [one for one in tx.webhooks.of_calls() if one.name == hook["name"]]
        told = [one.body for one in tx.webhooks.deliveries(hooks[0].id, after=None, limit=10)]
        return [str(kept), *told]

    kept = live.write(stored)
    assert len(kept) == 2
    assert not [text for text in [*kept, json.dumps(seen)] if SECRET in text or encoded in text]
