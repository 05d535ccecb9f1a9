"""The tutorial of functions, word for word, on a server without a worker and two enrolled hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.pages import DOCS, Command, steps
from docs.reader import GPUS, PATIENCE_S, Reader, check_page
from support.local_cluster import local_cluster
from support.remote_machine import remote_machines

from acceptance.test_hosts import join_token

PAGE = DOCS / "tutorial" / "functions.md"


@pytest.mark.timeout(PATIENCE_S + 120)
def test_the_tutorial_of_functions_on_two_enrolled_hosts(tmp_path: Path) -> None:
    """RF-C10, RF-D64, RF-D68, RF-D71: nothing but Python, no account and no container."""
    todo = [
        step
        for step in steps(PAGE)
        if not (isinstance(step, Command) and ("corral up" in step.text or "corral down" in step.text))
    ]
    home = tmp_path / "user" / ".corral"
    home.parent.mkdir()
    with (
        local_cluster(home, lease_s=3.0, CORRAL_TLS="on") as server,
        remote_machines(tmp_path, "north", "south") as (north, south),
    ):
        corral = server.client()
        for machine in (north, south):
            machine.extra = {**GPUS, "CORRAL_WORKER_SLOTS": "6"}
            machine.ok(
                *("host", "enroll", server.url, "--token", join_token(corral)),
                *("--name", machine.home.name, "--slots", "6"),
            )
        user = Reader(home.parent, {**GPUS, "CURL_CA_BUNDLE": str(home / "tls" / "ca.pem")})

        check_page(PAGE, todo, user, tmp_path)

        ran = [run for run in corral.runs.page(limit=200).items if run.kind == "service"]
        assert {run.host for run in ran if run.host} <= {"north", "south"}
        assert any(run.host for run in ran)
