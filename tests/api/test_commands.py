"""Commands against a live server: what they take, and what they offer to complete."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import forked
from support.fake_instance import deploy
from support.live_server import FakeHost, LiveServer, named, sha

from corral.cli import complete

CLEAN = {key: value for key, value in os.environ.items() if "CORRAL" not in key}


@pytest.fixture
def settings(live: LiveServer, tmp_path: Path) -> dict[str, str]:
    return {"CORRAL_HOME": str(tmp_path), "CORRAL_URL": live.url, "CORRAL_TOKEN": live.operator}


def corral(settings: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run(arguments, {**CLEAN, **settings})


def test_a_token_is_revoked_by_its_name(live: LiveServer, settings: dict[str, str]) -> None:
    """HOUR4-15: hosts, secrets and schedules go by name; so do tokens, where one alone has it."""
    name = named("bob")
    first, second = live.token("user", name)["id"], live.token("user", name)["id"]
    done = corral(settings, "tokens", "revoke", name)
    assert done.returncode == 1
    assert f"2 tokens are named '{name}'" in done.stderr
    assert first in done.stderr
    assert corral(settings, "tokens", "revoke", first).returncode == 0
    assert corral(settings, "tokens", "revoke", name).stdout == f"{second} ({name}) is revoked\n"
    assert f"there is no valid token '{name}'" in corral(settings, "tokens", "revoke", name).stderr


def test_several_secrets_are_removed_at_once(live: LiveServer, settings: dict[str, str]) -> None:
    """HOUR4-16: as runs and endpoints are."""
    for name in ("ONE", "TWO"):
        live.ok("PUT", f"/v1/projects/default/secrets/{name}", {"value": "a-long-value"})
    done = corral(settings, "secrets", "rm", "ONE", "TWO")
    assert done.stdout == "ONE is removed from default\nTWO is removed from default\n"


def test_nobody_is_asked_whether_to_remove_what_has_not_ended(
    live: LiveServer, settings: dict[str, str]
) -> None:
    """HOUR4-16: `--yes` was asked for first, and refused then."""
    run = live.submit()
    done = corral(settings, "rm", run)
    assert done.returncode == 1
    assert f"run {run} is queued, and only runs that have ended can be removed" in done.stderr
    assert "--yes" not in done.stderr


def test_what_can_be_named_is_offered(
    live: LiveServer, worker: FakeHost, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HOUR4-22: secrets and artifacts; and of endpoints those that are listed."""
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    live.ok("PUT", "/v1/projects/default/secrets/OFFERED", {"value": "a-long-value"})
    assert [word for word, _ in complete.secrets("OFF")] == ["OFFERED"]
    lease = worker.run()
    lease.put(b"weights")
    files = [{"path": "w", "sha256": sha(b"weights"), "size": 7, "mode": 0o644}]
    made = lease.ok("POST", "artifacts", {"kind": "output", "files": files})["id"]
    assert made in [word for word, _ in complete.artifacts_or_runs("a-")]
    assert lease.run_id in [word for word, _ in complete.artifacts_or_runs("r-")]
    endpoint = deploy(live, worker)
    of_a_program = deploy(live, worker, name=f"live.{endpoint.name}", live_one=True)
    assert endpoint.name in [word for word, _ in complete.endpoints("")]
    assert of_a_program.name not in [word for word, _ in complete.endpoints("")]
    assert of_a_program.name in [word for word, _ in complete.endpoints("live.")]
