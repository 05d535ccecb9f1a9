"""Who may call what: tokens that are no good, of another scope, of another host, of another project."""

from __future__ import annotations

import stat
from collections.abc import Iterator

import pytest
from support.live_server import (
    FakeHost,
    Json,
    Lease,
    LiveServer,
    error_of,
    fresh,
    named,
    new_host,
    record,
    serve,
    sha,
)


def test_a_path_that_is_not_there_needs_a_token_too(live: LiveServer) -> None:
    error_of(live.call("GET", "/v1/nowhere", token=None), 401, "unauthenticated")
    assert error_of(live.call("GET", "/v1/nowhere"), 404, "not_found")


def _spoilt(good: str) -> Iterator[tuple[str, str]]:
    prefix, token_id, secret = good.split("_", 2)
    yield "no scheme", good
    yield "other scheme", f"Basic {good}"
    yield "empty", "Bearer"
    yield "two spaces", f"Bearer  {good}"
    yield "wrong secret", f"Bearer {prefix}_{token_id}_{'A' * len(secret)}"
    yield "secret cut short", f"Bearer {good[:-1]}"
    yield "secret too long", f"Bearer {good}{'A' * 500}"
    yield "unknown id", f"Bearer {prefix}_t-bcdfghjkmnpq_{secret}"
    yield "id with ..", f"Bearer {prefix}_t-../../../etc_{secret}"
    yield "no secret", f"Bearer {prefix}_{token_id}_"
    yield "not ours", "Bearer eyJhbGciOiJub25lIn0.e30."
    yield "the hash of the secret", f"Bearer {prefix}_{token_id}_{sha(secret.encode())}"


def test_a_token_that_is_spoilt_in_any_way_is_refused_without_saying_how(live: LiveServer) -> None:
    messages = set()
    for what, header in _spoilt(live.operator):
        answer = live.call("GET", "/v1/runs", token=None, headers={"Authorization": header})
        assert answer.status_code == 401, what
        body = error_of(answer, 401, "unauthenticated")
        assert live.operator.split("_", 2)[2] not in answer.text
        messages.add(body.message)

    assert len(messages) <= 2, messages


@pytest.mark.parametrize("scope", ["user", "operator", "host"])
def test_an_expired_token_is_refused_from_that_second_on(scope: str, live: LiveServer) -> None:
    token = str(live.token(scope, expires_in_s=60)["token"])
    path = "/v1/artifacts/a-bcdfghjkmnpq"
    error_of(live.call("GET", path, token=token), 404, "not_found")
    live.clock.ahead_s += 61
    try:
        assert error_of(live.call("GET", path, token=token), 401, "unauthenticated")
    finally:
        live.clock.ahead_s -= 61


def test_a_revoked_token_is_refused_at_the_next_call(live: LiveServer) -> None:
    made = live.token("user")
    assert live.call("GET", "/v1/runs", token=made["token"]).status_code == 200

    assert live.call("DELETE", f"/v1/tokens/{made['id']}").status_code == 204

    error_of(live.call("GET", "/v1/runs", token=made["token"]), 401, "unauthenticated")
    error_of(live.call("DELETE", "/v1/tokens/t-bcdfghjkmnpq"), 404, "not_found")
    listed = {t["id"]: t for t in live.ok("GET", "/v1/tokens", params={"limit": 1000})["items"]}
    assert listed[made["id"]]["revoked_at"] is not None


@pytest.mark.parametrize("scope", ["operator", "host"])
def test_only_a_users_token_can_be_bound_to_a_project(scope: str, live: LiveServer) -> None:
    body = {"scope": scope, "name": named("t"), "project": "p"}

    assert error_of(live.call("POST", "/v1/tokens", body), 422, "invalid_input")


def _lease_calls(lease: Lease) -> list[tuple[str, str, Json | None, bytes | None]]:
    """Each call that a lease is good for. FL-D38: one token covers them all."""
    data = b"bytes"
    manifest = {"kind": "output", "files": []}
    return [
        ("POST", "secrets", None, None),
        ("POST", "events", {"seq": 1, "notes": ["hello"]}, None),
        ("POST", "blobs/query", {"blobs": [sha(data)]}, None),
        ("PUT", f"blobs/{sha(data)}", None, data),
        ("POST", "blobs/pack", None, b""),
        ("POST", "artifacts", manifest, None),
        ("POST", "checkpoints", {**manifest, "kind": "checkpoint"}, None),
        ("PUT", "objects/key", None, data),
        ("GET", "objects/key", None, None),
        ("GET", "objects", None, None),
        ("POST", "finish", {}, None),
        ("POST", "fail", {"reason": "code_error"}, None),
        ("POST", "stopped", {"reason": "cancelled"}, None),
    ]


def test_a_host_can_touch_only_its_own_leases(live: LiveServer, worker: FakeHost) -> None:
    """FL-D31: each host has its own credential."""
    lease = worker.run()
    stranger = new_host(live)
    before = live.ok("GET", f"/v1/runs/{lease.run_id}")

    for method, verb, body, content in [("POST", "beat", {}, None), *_lease_calls(lease)]:
        answer = lease.call(method, verb, body, content=content, token=stranger.token)
        error_of(answer, 404, "not_found")

    assert live.ok("GET", f"/v1/runs/{lease.run_id}") == before
    assert live.ok("GET", f"/v1/runs/{lease.run_id}/events")["items"][-1]["actor"] != stranger.token
    assert lease.ok("POST", "finish", {})["run_state"] == "succeeded"


def test_another_epoch_is_refused_by_every_call_of_a_lease(live: LiveServer, worker: FakeHost) -> None:
    """FL-D29, FL-D38."""
    lease = worker.run()
    stale = Lease(worker, {**lease.about, "epoch": lease.about["epoch"] + 1})

    assert stale.ok("POST", "beat", {})["action"] == "lost"
    for method, verb, body, content in _lease_calls(lease):
        error_of(stale.call(method, verb, body, content=content), 410, "lease_lost")

    assert live.ok("GET", f"/v1/runs/{lease.run_id}")["state"] == "running"
    assert live.ok("GET", f"/v1/runs/{lease.run_id}/artifacts")["items"] == []


def test_a_host_reads_only_what_its_live_leases_name(live: LiveServer, worker: FakeHost) -> None:
    """MT-D02."""
    mine, other = b"an input of my run", b"an input of somebody else's run"
    ids = []
    for data in (mine, other):
        live.ok("PUT", f"/v1/projects/default/blobs/{sha(data)}", content=data)
        body = {"kind": "input", "files": [record("f", data)]}
        ids.append(live.ok("POST", "/v1/projects/default/artifacts", body)["id"])
    lease = worker.run(inputs={"x": ids[0]})
    params = {"lease": str(lease.about["id"]), "epoch": lease.about["epoch"]}

    def read(data: bytes, params: dict[str, str | int]) -> int:
        return live.call("GET", f"/v1/blobs/{sha(data)}", token=worker.token, params=params).status_code

    assert (read(mine, params), read(other, params)) == (200, 404)
    assert read(mine, {"project": "default"}) == 422
    assert live.call("GET", f"/v1/artifacts/{ids[0]}", token=worker.token).status_code == 200
    assert live.call("GET", f"/v1/artifacts/{ids[1]}", token=worker.token).status_code == 404
    lease.ok("POST", "finish", {})
    assert read(mine, params) == 410
    assert live.call("GET", f"/v1/artifacts/{ids[0]}/files", token=worker.token).status_code == 404


class Fence:
    """Two projects: `token` is bound to `own`; everything named here is in `other`."""

    def __init__(self, live: LiveServer) -> None:
        self.live = live
        self.own, self.other = named("own"), named("other")
        self.token = str(live.token("user", project=self.own)["token"])
        self.data = b"belongs to another project: " + fresh().encode()
        live.ok("PUT", f"/v1/projects/{self.other}/blobs/{sha(self.data)}", content=self.data)
        body = {"kind": "input", "files": [record("f", self.data)]}
        self.artifact = str(live.ok("POST", f"/v1/projects/{self.other}/artifacts", body)["id"])
        self.run = live.submit(project=self.other, inputs={"x": self.artifact}, name="theirs")

    def status(self, method: str, path: str, body: object = None, **options: object) -> int:
        return self.live.call(method, path, body, token=self.token, **options).status_code  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fence(live: LiveServer) -> Fence:
    return Fence(live)


def test_a_bound_user_finds_nothing_of_another_project_by_id(fence: Fence) -> None:
    """MT-D03."""
    run, artifact = f"/v1/runs/{fence.run}", f"/v1/artifacts/{fence.artifact}"
    reads = ["", "/events", "/logs", "/metrics", "/artifacts", "/checkpoints", "/why"]
    calls: list[tuple[str, str, Json | None]] = [("GET", f"{run}{verb}", None) for verb in reads]
    calls += [
        ("GET", f"{run[:-6]}", None),
        ("GET", f"{run}/logs?follow=true", None),
        ("POST", f"{run}/cancel", {}),
        ("POST", f"{run}/requeue", {"request_id": fresh()}),
        ("GET", artifact, None),
        ("GET", f"{artifact}/files", None),
        ("POST", f"{artifact}/verify", None),
        ("POST", f"{artifact}/pin", None),
        ("POST", f"{artifact}/unpin", None),
        ("DELETE", artifact, None),
    ]

    for method, path, body in calls:
        assert fence.status(method, path, body) == 404, (method, path)
    assert fence.live.ok("GET", run)["state"] == "queued"


def test_a_bound_user_sees_nothing_of_another_project_in_lists(fence: Fence) -> None:
    for path in ("/v1/runs", "/v1/artifacts", "/v1/events"):
        listed = fence.live.call("GET", f"{path}?limit=1000", token=fence.token)
        assert listed.json()["items"] == [], path
    for path in ("/v1/runs", "/v1/artifacts"):
        assert fence.status("GET", f"{path}?project={fence.other}") == 403, path


def test_a_bound_user_cannot_write_into_another_project(fence: Fence) -> None:
    run = {"argv": ["true"], "project": fence.other}
    base = f"/v1/projects/{fence.other}"

    assert fence.status("POST", "/v1/runs", {"request_id": fresh(), "runs": [run]}) == 403
    assert fence.status("POST", "/v1/runs", {"request_id": fresh(), "runs": [run], "dry_run": True}) == 403
    assert fence.status("PUT", f"{base}/blobs/{sha(b'x')}", content=b"x") == 403
    assert fence.status("POST", f"{base}/blobs/query", {"blobs": []}) == 403
    assert fence.status("POST", f"{base}/blobs/pack", content=b"") == 403
    assert fence.status("POST", f"{base}/artifacts", {"kind": "input", "files": []}) == 403
    assert fence.status("GET", f"{base}/secrets") == 403
    assert fence.status("PUT", f"{base}/secrets/A", {"value": "x" * 10}) == 403
    assert fence.status("DELETE", f"{base}/secrets/A") == 403


def test_a_hash_is_not_a_key_to_the_bytes_of_another_project(fence: Fence) -> None:
    """MT-D03: whoever knows only the digest can neither read the blob, nor learn of it, nor name it."""
    digest, own = sha(fence.data), f"/v1/projects/{fence.own}"

    assert fence.status("GET", f"/v1/blobs/{digest}?project={fence.other}") == 403
    assert fence.status("GET", f"/v1/blobs/{digest}?project={fence.own}") == 404
    assert fence.status("GET", f"/v1/blobs/{digest}") == 404
    asked = fence.live.ok("POST", f"{own}/blobs/query", {"blobs": [digest]}, token=fence.token)
    assert asked == {"missing": [digest], "offsets": {}}
    manifest = {"kind": "input", "files": [record("f", fence.data)]}
    answer = fence.live.call("POST", f"{own}/artifacts", manifest, token=fence.token)
    error_of(answer, 409, "blob_missing")
    run = {"argv": ["true"], "project": fence.own, "inputs": {"x": fence.artifact}}
    answer = fence.live.call("POST", "/v1/runs", {"request_id": fresh(), "runs": [run]}, token=fence.token)
    error_of(answer, 422, "invalid_input")


def test_an_empty_upload_does_not_unlock_a_known_hash(fence: Fence) -> None:
    """FL-D19: only the bytes themselves prove that one has them."""
    path = f"/v1/projects/{fence.own}/blobs/{sha(fence.data)}"

    assert fence.status("PUT", path, content=b"") == 422
    assert fence.status("PUT", path, content=b"", params={"offset": len(fence.data)}) in (409, 422)
    assert fence.status("GET", f"/v1/blobs/{sha(fence.data)}?project={fence.own}") == 404


def test_no_tokens_secret_is_in_the_database(live: LiveServer) -> None:
    made = [live.token(scope)["token"] for scope in ("user", "operator", "read", "host", "join")]
    made += [live.operator, live.host]
    stored = b"".join(path.read_bytes() for path in live.home.glob("corral.db*"))

    assert all(str(token).split("_", 2)[1].encode() in stored for token in made)
    assert not any(str(token).split("_", 2)[2].encode() in stored for token in made)


def test_token_and_key_files_are_their_owners_alone(live: LiveServer) -> None:
    """MT-C09."""
    names = ("operator.token", "key", "worker/token", "worker/host.json")

    assert {name: stat.S_IMODE((live.home / name).stat().st_mode) for name in names} == dict.fromkeys(
        names, 0o600
    )


def test_a_token_of_an_earlier_start_is_good_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    home = tmp_path_factory.mktemp("restarted")
    with serve(home) as first:
        run = first.submit()
    with serve(home) as second:
        assert second.operator == first.operator
        assert second.ok("GET", f"/v1/runs/{run}")["state"] == "queued"


def test_runs_are_reached_by_every_token_of_their_project(live: LiveServer) -> None:
    """MT-D06: after a token was replaced, and by a colleague."""
    project = named("project")
    lost = live.token("user", project=project)
    run = live.submit(project=project, token=str(lost["token"]))
    live.ok("DELETE", f"/v1/tokens/{lost['id']}")

    new, colleague = (str(live.token("user", project=project)["token"]) for _ in range(2))

    listed = live.ok("GET", "/v1/runs", params={"project": project}, token=colleague)["items"]
    assert [one["id"] for one in listed] == [run]
    assert live.ok("POST", f"/v1/runs/{run}/cancel", {}, token=new)["state"] == "cancelled"


def test_every_change_of_a_run_names_its_actor(live: LiveServer, worker: FakeHost) -> None:
    """FL-D31."""
    name = named("somebody")
    token = str(live.token("user", name)["token"])
    run = live.submit(token=token)
    live.ok("POST", f"/v1/runs/{run}/cancel", {"reason": "enough"}, token=token)

    events = live.ok("GET", f"/v1/runs/{run}/events")["items"]
    assert {event["actor"] for event in events} == {f"user:{name}"}
