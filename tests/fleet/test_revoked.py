"""A host whose credential is taken away in the middle of its work."""

from __future__ import annotations

import pytest
from support.local_cluster import printed, wait_line
from support.waiting import eventually

from corral.domain.errors import Unauthenticated
from corral.wire.leases import BeatRequest, ClaimRequest, FinishRequest
from corral.wire.spec.tables import Resources
from fleet.fleet import LEASE_S, Fleet

AWAY_S = 2 * LEASE_S + 1.0


def test_a_revoked_host_can_do_nothing_more_and_its_run_goes_to_another(secure_fleet: Fleet) -> None:
    """FL-D31, FL-D35: from its next call on, whatever it still believes to hold."""
    fleet = secure_fleet
    first = fleet.add("one")
    (run_id,) = fleet.submit(fleet.work(AWAY_S + 4))
    wait_line(fleet.corral, run_id, "begun")
    old = fleet.corral.runs.get(run_id).attempts[0].ranks[0]
    lease_id = old.lease_id or ""
    fleet.corral.hosts.revoke("one")
    leases = fleet.plane.client(first.token).leases
    for call in (
        lambda: leases.beat(lease_id, old.epoch, BeatRequest()),
        lambda: leases.finish(lease_id, old.epoch, FinishRequest()),
        lambda: leases.claim(ClaimRequest(request_id="another-one", boot_id="another-one", slots=1)),
    ):
        with pytest.raises(Unauthenticated):
            call()
    fleet.add("two")

    run = fleet.finished(run_id)

    assert (run.attempt, run.attempts[1].ranks[0].host) == (2, "two")
    assert "done" not in printed(fleet.corral, run_id, attempt=1)
    shown = {host.name: host for host in fleet.corral.hosts.page().items}
    assert (shown["one"].alive, shown["two"].alive) == (False, True)


def test_a_host_that_is_let_in_again_goes_on_with_what_nobody_else_took(secure_fleet: Fleet) -> None:
    """FL-D01: a credential that was revoked by mistake costs no work; the run went on meanwhile."""
    fleet = secure_fleet
    host = fleet.add("one")
    mine = Resources(hosts=["one"])
    (run_id,) = fleet.submit(fleet.work(3, resources=mine))
    wait_line(fleet.corral, run_id, "begun")
    fleet.corral.hosts.revoke("one")
    eventually(lambda: "requeue" in fleet.kinds(run_id), "its lease to run out")
    record = next((host.worker.data_dir / "leases").glob("*/job.json"))
    eventually(lambda: '"finish"' in record.read_text(), "the child to end all the same")
    fleet.plane.kill_worker(host.worker)
    fleet.leave(host)
    fleet.enrol("one", host.line)
    fleet.plane.start_worker(host.worker)

    fleet.on_first_try(run_id)
    assert fleet.kinds(run_id).count("reattach") == 1
    fleet.check_whole([run_id])
