"""How a host joins, keeps its credential and loses it, as calls to a real server on either database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.live_server import FakeHost, Json, LiveServer, error_of, fresh, named, serve
from support.postgres import private_postgres

from corral.client.hosts.key import make_key
from corral.domain.hosts.hosts import Host
from corral.domain.ids import new_host_id

WEEK_S = 7 * 86400.0


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    home = tmp_path_factory.mktemp("home")
    if request.param == "sqlite":
        with serve(home, host_token_s=WEEK_S) as server:
            yield server
        return
    with (
        private_postgres().fresh() as url,
        serve(home, database=url, host_token_s=WEEK_S) as it,
    ):
        yield it


def join_token(live: LiveServer, name: str | None = None, **more: Any) -> Json:
    made: Json = live.ok("POST", "/v1/tokens", {"scope": "join", "name": name, **more})
    return made


def enroll(live: LiveServer, token: str, **more: Any) -> httpx.Response:
    body = {"request_id": fresh(), "hostname": named("machine"), **more}
    return live.call("POST", "/v1/hosts/enroll", body, token=token)


def joined(live: LiveServer, name: str | None = None) -> FakeHost:
    made = enroll(live, join_token(live)["token"], name=name or named("host")).json()
    return FakeHost(live, made["name"], made["token"])


def actions(live: LiveServer, host: str) -> list[tuple[str, str]]:
    entries = live.ok("GET", "/v1/audit", params={"limit": 1000})["items"]
    entries.sort(key=lambda entry: entry["n"])
    return [(e["action"], e["actor"]) for e in entries if e["target"] == f"host:{host}"]


def test_a_join_token_makes_one_host_with_a_credential_of_its_own(live: LiveServer) -> None:
    """FL-C12, FL-D31: joined, it takes what is for it, and what it did has an actor."""
    token = join_token(live, labels=["lab", "north"])
    name = named("host")

    made = enroll(live, token["token"], name=name).json()

    assert (made["name"], made["labels"], made["expires_in_s"]) == (name, ["lab", "north"], WEEK_S)
    assert FakeHost(live, name, made["token"]).run().run_id
    assert actions(live, name) == [("host.enroll", f"join:{token['id']}")]
    error_of(enroll(live, token["token"]), 403, "token_used")
    listed = {t["id"]: t for t in live.ok("GET", "/v1/tokens", params={"limit": 1000})["items"]}
    assert listed[token["id"]]["used_at"] is not None


def test_a_lost_answer_does_not_lose_the_token(live: LiveServer) -> None:
    """FL-D30 in spirit: the same request again gets the same host; only the newest credential works."""
    token = join_token(live)["token"]
    again = {"request_id": fresh(), "name": named("host")}

    first, second = enroll(live, token, **again).json(), enroll(live, token, **again).json()

    assert first["host_id"] == second["host_id"]
    assert first["token"] != second["token"]
    error_of(live.call("GET", "/v1/hosts/self", token=first["token"]), 401, "unauthenticated")
    assert live.ok("GET", "/v1/hosts/self", token=second["token"])["name"] == again["name"]


def test_of_many_machines_with_one_token_one_joins(live: LiveServer) -> None:
    token = join_token(live)["token"]
    gate = threading.Barrier(6)

    def one(_: int) -> int:
        gate.wait()
        return enroll(live, token).status_code

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(one, range(6))) == [201, 403, 403, 403, 403, 403]


def test_an_expired_or_revoked_join_token_says_so(live: LiveServer) -> None:
    expired, revoked = join_token(live, expires_in_s=30), join_token(live)
    live.call("DELETE", f"/v1/tokens/{revoked['id']}")
    live.clock.ahead_s += 31
    try:
        said = error_of(enroll(live, expired["token"]), 401, "unauthenticated")
        assert "expired" in said.message
        assert "corral tokens join" in said.hint
    finally:
        live.clock.ahead_s -= 31
    assert "revoked" in error_of(enroll(live, revoked["token"]), 401, "unauthenticated").message


def test_a_join_token_lasts_minutes_unless_told_otherwise(live: LiveServer) -> None:
    made = join_token(live)
    assert made["expires_at"] - made["created_at"] == 900
    body = {"scope": "join", "expires_in_s": WEEK_S + 1}
    error_of(live.call("POST", "/v1/tokens", body), 422, "invalid_input")


def test_a_name_that_is_taken_is_refused_and_the_token_stays_good(live: LiveServer) -> None:
    taken = joined(live)
    token = join_token(live)["token"]

    said = error_of(enroll(live, token, name=taken.name), 409, "name_taken")

    assert f"corral tokens join {taken.name}" in said.hint
    assert enroll(live, token, name=named("host")).status_code == 201
    assert live.call("GET", "/v1/hosts/self", token=taken.token).status_code == 200


def test_a_token_for_a_name_replaces_the_identity_of_that_host(live: LiveServer) -> None:
    before = joined(live)
    token = join_token(live, before.name)["token"]
    error_of(enroll(live, token, name=named("other")), 422, "invalid_input")

    made = enroll(live, token, hostname="whatever").json()

    assert made["name"] == before.name
    error_of(live.call("GET", "/v1/hosts/self", token=before.token), 401, "unauthenticated")
    assert live.ok("GET", "/v1/hosts/self", token=made["token"])["id"] == made["host_id"]


def test_a_host_that_a_manifest_declared_is_taken_by_the_first_that_joins_as_it(live: LiveServer) -> None:
    name = named("declared")
    host = Host(
        new_host_id(), name, None, None, 0, None, False, None, 1.0, declared="{}", declared_by="default/m"
    )
    live.write(lambda tx: tx.hosts.insert(host))

    made = enroll(live, join_token(live)["token"], name=name).json()

    assert made["host_id"] == host.id
    error_of(enroll(live, join_token(live)["token"], name=name), 409, "name_taken")


@pytest.mark.parametrize("name", ["self", "enroll"])
def test_no_host_takes_a_name_that_an_address_needs(name: str, live: LiveServer) -> None:
    assert error_of(enroll(live, join_token(live)["token"], name=name), 422, "invalid_input")


def test_a_revoked_host_can_do_nothing_from_its_next_call_on(live: LiveServer) -> None:
    """FL-D35, FL-D31: its late writes change nothing; its run goes to another when the lease has run out."""
    host = joined(live)
    lease = host.run()
    assert lease.ok("POST", "beat", {})["action"] == "continue"

    view = live.ok("POST", f"/v1/hosts/{host.name}/revoke")

    assert view["revoked_at"] is not None
    assert not view["alive"]
    before = live.ok("GET", f"/v1/runs/{lease.run_id}")
    calls: list[tuple[str, Json]] = [
        ("beat", {}),
        ("finish", {}),
        ("fail", {"reason": "code_error"}),
        ("events", {"seq": 1, "notes": ["late"]}),
        ("artifacts", {"kind": "output", "files": []}),
        ("secrets", {}),
    ]
    for verb, body in calls:
        error_of(lease.call("POST", verb, body), 401, "unauthenticated")
    error_of(live.call("POST", "/v1/claims", host.ask(), token=host.token), 401, "unauthenticated")
    error_of(live.call("POST", "/v1/hosts/self/rotate", {}, token=host.token), 401, "unauthenticated")
    assert live.ok("GET", f"/v1/runs/{lease.run_id}") == before
    assert actions(live, host.name)[-1][0] == "host.revoke"
    # Twice is once; and it is not drained or resumed behind its back.
    live.ok("POST", f"/v1/hosts/{host.name}/revoke")
    assert [action for action, _ in actions(live, host.name)].count("host.revoke") == 1
    error_of(live.call("POST", f"/v1/hosts/{host.name}/resume"), 409, "conflict")


def test_a_claim_that_waits_while_its_host_is_revoked_gets_nothing(live: LiveServer) -> None:
    host = joined(live)
    answers: list[httpx.Response] = []
    asked = host.ask(wait_s=20)
    waiting = threading.Thread(
        target=lambda: answers.append(live.call("POST", "/v1/claims", asked, token=host.token))
    )
    waiting.start()
    while len(live.services.long_polls) == 0:
        assert waiting.is_alive()
    live.ok("POST", f"/v1/hosts/{host.name}/revoke")

    run = live.submit(host=host.name)
    waiting.join(timeout=60)

    error_of(answers[0], 403, "forbidden")
    assert live.ok("GET", f"/v1/runs/{run}")["state"] == "queued"


def test_a_credential_is_replaced_while_a_run_goes_on(live: LiveServer) -> None:
    """The old one holds until the host has shown the new one, then for a short overlap."""
    host = joined(live)
    lease = host.run()
    fresh_token = live.ok("POST", "/v1/hosts/self/rotate", {}, token=host.token)["token"]
    for token in (host.token, fresh_token):
        assert lease.ok("POST", "beat", {}, token=token)["action"] == "continue"

    live.call("POST", "/v1/hosts/self/settle", token=fresh_token)

    assert lease.ok("POST", "beat", {}, token=host.token)["action"] == "continue"
    live.clock.ahead_s += live.services.policy.rotation_overlap_s + 1
    try:
        error_of(live.call("GET", "/v1/hosts/self", token=host.token), 401, "unauthenticated")
        assert live.call("GET", "/v1/hosts/self", token=fresh_token).status_code == 200
    finally:
        live.clock.ahead_s -= live.services.policy.rotation_overlap_s + 1
    assert lease.ok("POST", "finish", {}, token=fresh_token)["run_state"] == "succeeded"


def test_a_rotation_whose_answer_is_lost_harms_nobody(live: LiveServer) -> None:
    host = joined(live)
    lost = live.ok("POST", "/v1/hosts/self/rotate", {}, token=host.token)["token"]
    kept = live.ok("POST", "/v1/hosts/self/rotate", {}, token=host.token)["token"]
    live.call("POST", "/v1/hosts/self/settle", token=kept)
    live.clock.ahead_s += live.services.policy.rotation_overlap_s + 1
    try:
        error_of(live.call("GET", "/v1/hosts/self", token=lost), 401, "unauthenticated")
        assert live.call("GET", "/v1/hosts/self", token=kept).status_code == 200
    finally:
        live.clock.ahead_s -= live.services.policy.rotation_overlap_s + 1


def test_a_credential_ends_by_itself(live: LiveServer) -> None:
    host = joined(live)
    live.clock.ahead_s += WEEK_S + 1
    try:
        assert error_of(live.call("GET", "/v1/hosts/self", token=host.token), 401, "unauthenticated")
    finally:
        live.clock.ahead_s -= WEEK_S + 1


def test_a_host_leaves_and_its_name_is_free_for_a_token_made_for_it(live: LiveServer) -> None:
    host = joined(live)
    assert live.call("POST", "/v1/hosts/self/leave", token=host.token).status_code == 204
    error_of(live.call("GET", "/v1/hosts/self", token=host.token), 401, "unauthenticated")
    error_of(enroll(live, join_token(live)["token"], name=host.name), 409, "name_taken")

    made = enroll(live, join_token(live, host.name)["token"]).json()

    assert live.ok("GET", f"/v1/hosts/{host.name}")["revoked_at"] is None
    assert FakeHost(live, host.name, made["token"]).run().run_id


def test_a_leaked_host_token_shows_nothing_of_others(live: LiveServer) -> None:
    """FL-D31: neither runs, hosts, tokens nor secrets; what its own leases name is all it can read."""
    host = joined(live)
    run = live.submit(host="nobody")
    for path in ("/v1/runs", f"/v1/runs/{run}", "/v1/hosts", "/v1/tokens", "/v1/audit", "/v1/events"):
        error_of(live.call("GET", path, token=host.token), 403, "forbidden")
    error_of(live.call("GET", f"/v1/hosts/{host.name}", token=host.token), 403, "forbidden")
    error_of(live.call("GET", "/v1/projects/default/secrets", token=host.token), 403, "forbidden")
    own = live.ok("GET", "/v1/hosts/self", token=host.token)
    assert own["name"] == host.name


def test_drain_and_resume_are_noted_with_who_did_it(live: LiveServer) -> None:
    """FL-D35, FL-C09."""
    host = joined(live)
    assert live.ok("POST", f"/v1/hosts/{host.name}/drain")["draining"]
    run = live.submit(host=host.name)
    assert live.ok("POST", "/v1/claims", host.ask(), token=host.token)["leases"] == []
    assert not live.ok("POST", f"/v1/hosts/{host.name}/resume")["draining"]

    assert host.claim().run_id == run
    assert actions(live, host.name)[1:] == [
        ("host.drain", "operator:operator"),
        ("host.resume", "operator:operator"),
    ]


def test_without_an_authority_a_request_for_a_certificate_is_passed_over(live: LiveServer) -> None:
    made = enroll(live, join_token(live)["token"], certificate_request=make_key().request_pem).json()
    assert made["certificate"] is None
    assert live.ok("GET", "/v1/ca", token=None) == {"ca": None}


def test_health_says_the_time_of_the_server(live: LiveServer, tmp_path: Path) -> None:
    assert abs(live.ok("GET", "/v1/health", token=None)["now"] - live.clock.now()) < 60


def test_a_revoked_worker_of_the_server_itself_stays_out_until_it_is_let_in(tmp_path: Path) -> None:
    """A restart must not let it in again, nor keep the server from starting."""

    def own(live: LiveServer) -> httpx.Response:
        return live.call("GET", "/v1/hosts/self", token=(live.home / "worker" / "token").read_text().strip())

    with serve(tmp_path, worker_name="own") as live:
        assert own(live).status_code == 200
        live.ok("POST", "/v1/hosts/own/revoke")
    with serve(tmp_path, worker_name="own") as live:
        assert own(live).status_code == 401
        live.token("host", "own")
    with serve(tmp_path, worker_name="own") as live:
        assert own(live).status_code == 200


def test_a_revoked_host_can_be_removed_and_its_name_is_free(live: LiveServer) -> None:
    """NEW-33: a list has all that a single host has, and what is revoked can go."""
    made = live.token("host", named("gone"), expires_in_s=3600)
    name, host_id = made["name"], made["host_id"]
    listed = {host["id"]: host for host in live.ok("GET", "/v1/hosts", params={"limit": 1000})["items"]}
    assert listed[host_id] == live.ok("GET", f"/v1/hosts/{name}")
    assert listed[host_id]["credential_expires_at"] == made["expires_at"]
    worker = FakeHost(live, name, made["token"])
    live.ok("POST", "/v1/claims", worker.ask(), token=worker.token)
    error_of(live.call("DELETE", f"/v1/hosts/{name}"), 409, "conflict")

    live.ok("POST", f"/v1/hosts/{name}/revoke")
    assert live.call("DELETE", f"/v1/hosts/{name}").status_code == 204

    error_of(live.call("GET", f"/v1/hosts/{name}"), 404, "not_found")
    assert live.token("host", name)["host_id"] != host_id


def test_runs_and_events_keep_the_name_of_a_host_that_was_removed(live: LiveServer) -> None:
    """HOUR4-21: they showed its id, by which nobody knew it."""
    made = live.token("host", named("known"))
    worker = FakeHost(live, made["name"], made["token"])
    lease = worker.run()
    lease.ok("POST", "finish", {})
    live.ok("POST", f"/v1/hosts/{worker.name}/revoke")
    assert live.call("DELETE", f"/v1/hosts/{worker.name}").status_code == 204

    run = live.ok("GET", f"/v1/runs/{lease.run_id}")
    assert run["host"] == worker.name
    assert [rank["host"] for rank in run["attempts"][0]["ranks"]] == [worker.name]
    events = live.ok("GET", f"/v1/runs/{lease.run_id}/events")["items"]
    assert f"host:{worker.name}" in [event["actor"] for event in events]
