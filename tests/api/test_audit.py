"""FL-D31: every change that an operator or a user makes says who made it, from where, and when."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import forked
from support.live_server import FakeHost, Json, LiveServer, error_of, named, record, sha

from corral.domain.audit import AuditChain
from corral.wire.audit import AuditView

CORRAL = str(Path(sys.executable).parent / "corral")
VALUE = "canary-NOT-A-REAL-SECRET-0077"


def _entries(live: LiveServer, **where: Any) -> list[Json]:
    items: list[Json] = live.ok("GET", "/v1/audit", params={"after": 0, "limit": 1000, **where})["items"]
    return items


def _of(live: LiveServer, actor: str) -> list[tuple[str, str]]:
    return [(entry["action"], entry["target"]) for entry in _entries(live, actor=actor)]


def test_what_an_operator_does_is_in_the_audit(live: LiveServer, worker: FakeHost) -> None:
    """FL-D31."""
    name = named("ops")
    token = live.token("operator", name)["token"]
    user = live.ok("POST", "/v1/tokens", {"scope": "user", "name": named("u")}, token=token)
    live.ok("DELETE", f"/v1/tokens/{user['id']}", token=token)
    worker.run().ok("POST", "finish", {})
    live.ok("POST", f"/v1/hosts/{worker.name}/drain", token=token)
    live.ok("POST", f"/v1/hosts/{worker.name}/resume", token=token)
    assert live.call("POST", "/v1/fsck", token=token).is_success

    assert _of(live, f"operator:{name}") == [
        ("token.create", f"token:{user['id']}"),
        ("token.revoke", f"token:{user['id']}"),
        ("host.drain", f"host:{worker.name}"),
        ("host.resume", f"host:{worker.name}"),
        ("fsck.run", "store"),
    ]
    assert {entry["origin"] for entry in _entries(live, actor=f"operator:{name}")} == {"127.0.0.1"}


def test_what_a_user_does_to_other_things_than_runs_is_in_the_audit(live: LiveServer) -> None:
    name, project = named("user"), named("p")
    token = live.token("user", name)["token"]
    secret = f"/v1/projects/{project}/secrets/KEY"
    live.ok("PUT", secret, {"value": VALUE}, token=token)
    live.ok("DELETE", secret, token=token)
    data = named("bytes").encode()
    live.ok("PUT", f"/v1/projects/{project}/blobs/{sha(data)}", content=data, token=token)
    manifest = {"kind": "input", "files": [record("a", data)]}
    artifact = live.ok("POST", f"/v1/projects/{project}/artifacts", manifest, token=token)["id"]
    live.ok("POST", f"/v1/artifacts/{artifact}/pin", token=token)
    live.ok("POST", f"/v1/artifacts/{artifact}/unpin", token=token)
    live.ok("DELETE", f"/v1/artifacts/{artifact}", token=token)

    assert _of(live, f"user:{name}") == [
        ("secret.set", f"secret:{project}/KEY"),
        ("secret.remove", f"secret:{project}/KEY"),
        ("artifact.pin", f"artifact:{artifact}"),
        ("artifact.unpin", f"artifact:{artifact}"),
        ("artifact.remove", f"artifact:{artifact}"),
    ]
    assert VALUE not in json.dumps(_entries(live))


def test_what_failed_is_not_in_the_audit(live: LiveServer) -> None:
    before = len(_entries(live))

    error_of(live.call("POST", "/v1/hosts/nobody-here/drain"), 404, "not_found")
    error_of(live.call("DELETE", "/v1/projects/default/secrets/NONE"), 404, "not_found")

    assert len(_entries(live)) == before


def test_only_operators_read_the_audit(live: LiveServer, worker: FakeHost) -> None:
    user = live.token("user")["token"]

    error_of(live.call("GET", "/v1/audit", token=user), 403, "forbidden")
    assert error_of(live.call("GET", "/v1/audit", token=worker.token), 403, "forbidden")


def test_pages_go_back_from_the_newest_and_forward_from_any(live: LiveServer) -> None:
    """FL-D35."""
    for _ in range(5):
        live.token("user")
    forward = [entry["n"] for entry in _entries(live)]

    back: list[int] = []
    cursor: int | None = None
    while True:
        params = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
        page = live.ok("GET", "/v1/audit", params=params)
        back += [entry["n"] for entry in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break

    assert back == forward[::-1]
    assert live.ok("GET", "/v1/audit", params={"after": 1, "limit": 2})["items"][0]["n"] == 2


def test_the_chain_can_be_recomputed_from_the_answers(live: LiveServer) -> None:
    live.token("user")
    chain = AuditChain()

    assert chain.follow(AuditView.model_validate(entry).entry() for entry in _entries(live)), chain.problem


def _corral(live: LiveServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}
    return forked.run(arguments, env)


def test_the_command_line_lists_and_verifies(live: LiveServer) -> None:
    live.token("user", "shown-in-the-list")

    shown = _corral(live, "audit", "ls", "--action", "token", "--limit", "3")
    listed = json.loads(_corral(live, "audit", "ls", "--since", "1h", "--json").stdout)
    head = _corral(live, "audit", "verify")

    assert "shown-in-the-list" in shown.stdout
    assert len(shown.stdout.splitlines()) == 4
    assert listed[-1]["data"]["name"] == "shown-in-the-list"
    assert head.stdout.startswith("verified "), head.stderr
    kept = head.stdout.split()[-1]
    assert _corral(live, "audit", "verify", "--head", kept).returncode == 0
    wrong = f"{kept.partition(':')[0]}:{'0' * 64}"
    assert "does not hold the entry" in _corral(live, "audit", "verify", "--head", wrong).stderr
    assert _corral(live, "audit", "verify", "--head", "nonsense").returncode == 2


def test_who_changes_the_table_by_hand_is_found_out(live: LiveServer) -> None:
    live.token("user", "made-by-ada")
    live.token("user")
    n = next(e["n"] for e in _entries(live) if e["data"].get("name") == "made-by-ada")
    with sqlite3.connect(live.home / "corral.db") as raw:
        ((actor,),) = raw.execute("SELECT actor FROM audit WHERE n = ?", [n])
        raw.execute("UPDATE audit SET actor = 'operator:eve' WHERE n = ?", [n])
    raw.close()
    try:
        verified = _corral(live, "audit", "verify")
        checked = live.call("POST", "/v1/fsck")
    finally:
        with sqlite3.connect(live.home / "corral.db") as raw:
            raw.execute("UPDATE audit SET actor = ? WHERE n = ?", [actor, n])
        raw.close()

    assert verified.returncode == 1
    assert f"entry {n} is not as it was written" in verified.stderr
    problems = [json.loads(line)["problem"] for line in checked.text.splitlines()]
    assert any(p and f"entry {n} is not as it was written" in p for p in problems)
    assert _corral(live, "audit", "verify").returncode == 0
