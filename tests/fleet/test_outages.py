"""Promise 6 with several hosts: the server is away for many leases, or dies again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.local_cluster import marked, wait_final, wait_line
from support.waiting import eventually

from corral.wire.spec.tables import Resources
from fleet.conftest import relay_network
from fleet.fleet import Fleet, fleet

LEASE_S = 1.5
# Of a lease of the default length that would be five minutes.
OUTAGE_S = 10 * LEASE_S
KILLS = 6


def test_an_outage_of_many_leases_costs_no_run_anything(tmp_path: Path) -> None:
    """Promise 6; FL-D01, FL-D12, FL-D37, FL-D43, FL-C21.

    Three hosts train and finish while the server is away. What was done is accepted once, to the last
    line, and nothing is done again.
    """
    with fleet(tmp_path, relay_network(), lease_s=LEASE_S, CORRAL_TLS="on") as made:
        for name in ("one", "two", "three"):
            made.add(name, slots=3)
        made.wait_ready()
        lengths = (1.0, OUTAGE_S / 2, OUTAGE_S + 3)
        specs = [
            made.work(seconds, size=3000, resources=Resources(hosts=[name]))
            for name in made.hosts
            for seconds in lengths
        ]
        accepted = made.submit(*specs)
        for run_id in accepted:
            wait_line(made.corral, run_id, "begun")
        waiting = made.submit(made.work(0.2))
        made.plane.kill_server()
        time.sleep(OUTAGE_S)
        assert sum(made.started().values()) == len(accepted)
        made.plane.start_server()

        for run_id in accepted + waiting:
            made.on_first_try(run_id)
            assert not {"requeue", "reattach"} & set(made.kinds(run_id))
        assert sum(made.started().values()) == len(accepted + waiting)
        made.check_whole(accepted + waiting)


def test_a_server_killed_again_and_again_costs_no_run_anything(tmp_path: Path, dice: random.Random) -> None:
    """Promises 1 to 4 and 6; FL-C29, FL-C30, FL-D30: at whatever moment it dies, nothing is done twice."""
    # Longer than elsewhere: a busy machine must not be taken for a host that is lost.
    with fleet(tmp_path, relay_network(), lease_s=5 * LEASE_S) as made:
        for name in ("one", "two", "three"):
            made.add(name, slots=2)
        made.wait_ready()
        accepted: list[str] = []
        for _ in range(KILLS):
            accepted += made.submit(*(made.work(dice.uniform(0.1, 3), size=2000) for _ in range(3)))
            time.sleep(dice.uniform(0, 0.6))
            made.plane.kill_server()
            time.sleep(dice.choice([0, 0.2, 1.5 * LEASE_S]))
            made.plane.start_server()

        for run_id in accepted:
            made.on_first_try(run_id)
        assert sum(made.started().values()) == len(accepted)
        made.check_whole(accepted)


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Fleet]:
    """With leases that do not run out within a test."""
    with fleet(tmp_path, relay_network(), lease_s=120) as made:
        yield made


def test_a_host_that_dies_and_one_that_reboots_give_their_runs_back_free_of_charge(patient: Fleet) -> None:
    """FL-D33, FL-D41, FL-D44, FL-C26: their next start says what they no longer hold."""
    made = patient
    dying, rebooting = made.add("dying", slots=2), made.add("rebooting", slots=2)
    made.wait_ready()
    runs = made.submit(*(made.work(2, resources=Resources(hosts=[name])) for name in made.hosts))
    for run_id in runs:
        wait_line(made.corral, run_id, "begun")

    made.plane.kill_worker(dying.worker)
    rebooting.reboot()
    for host in (dying, rebooting):
        eventually(lambda host=host: not marked(host.worker.data_dir), "its processes to end")  # type: ignore[misc]
        made.plane.start_worker(host.worker)

    for run_id in runs:
        run = made.finished(run_id)
        assert run.attempt == 2
        assert run.retries_used["infrastructure"] == 0
        assert [rank.reason for rank in run.attempts[0].ranks] == ["released"]
        assert len(set(printed_hosts(made, run_id))) == 1
    made.check_whole(runs)


def printed_hosts(made: Fleet, run_id: str) -> list[str | None]:
    return [rank.host for attempt in made.corral.runs.get(run_id).attempts for rank in attempt.ranks]


def test_a_cancel_reaches_a_host_before_its_next_beat(patient: Fleet) -> None:
    """FL-D35: beats are 40 s apart here, but the answer to each is held back until there is news."""
    host = patient.add("one")
    (run_id,) = patient.submit(patient.work(300, grace=1))
    wait_line(patient.corral, run_id, "begun")
    patient.corral.runs.cancel(run_id, reason="enough")

    run = wait_final(patient.corral, run_id, within_s=30)

    assert run.state == "cancelled"
    eventually(lambda: not marked(host.worker.data_dir), "its processes to end")


def test_the_log_and_result_of_a_host_that_is_gone_for_good_stay(near_fleet: Fleet) -> None:
    """FL-D12, FL-D15: whatever it had said when it went is kept, and the next host's is whole."""
    made = near_fleet
    gone = made.add("gone")
    (run_id,) = made.submit(made.work(5))
    wait_line(made.corral, run_id, "step 10")
    gone.reboot()
    made.add("heir")

    run = made.finished(run_id)

    assert (run.attempt, run.attempts[1].ranks[0].host) == (2, "heir")
    first = [line.text for line in made.corral.runs.iter_logs(run_id) if line.attempt == 1]
    assert first[:12] == ["begun", *(f"step {n}" for n in range(11))]
    assert run.retries_used["infrastructure"] == 1
