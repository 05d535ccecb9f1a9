"""Lines that lose packets and lines that are thin."""

from __future__ import annotations

import random
import time

from support.local_cluster import FINAL_STATES, marked, wait_line
from support.waiting import eventually

from corral.wire.spec.tables import Resources, RetryBudgets
from fleet.fleet import Fleet, Host

LOST = 0.12
LOSSY_S = 60.0
# Slow enough that the upload takes several leases.
THIN_BYTES_PER_S = 200 << 10
LARGE_BYTES = 2 << 20


def test_runs_end_once_though_packets_are_lost_all_the_time(a_fleet: Fleet, dice: random.Random) -> None:
    """FL-D01, FL-D30, FL-C29: claims, beats, logs, uploads and results are repeated until they arrive."""
    fleet = a_fleet
    hosts = [fleet.add(name, slots=2) for name in ("one", "two", "three")]
    fleet.wait_ready()
    for host in hosts:
        host.line.lose(LOST)
    retries = RetryBudgets(infrastructure=1000)
    accepted = fleet.submit(*(fleet.work(n % 3 * 0.7, size=20_000, retries=retries) for n in range(12)))
    eventually(lambda: _flap(fleet, hosts, accepted, dice), "the runs to end", within_s=LOSSY_S)
    for host in hosts:
        host.line.mend()

    for run_id in accepted:
        fleet.finished(run_id)
    fleet.check_whole(accepted)


def _flap(fleet: Fleet, hosts: list[Host], accepted: list[str], dice: random.Random) -> bool:
    """Now and then a line is gone altogether for a moment. Whether all runs have ended."""
    line = dice.choice(hosts).line
    line.cut()
    time.sleep(dice.uniform(0.05, 0.4))
    line.lose(LOST)
    time.sleep(dice.uniform(0.2, 0.8))
    return all(fleet.corral.runs.get(each).state in FINAL_STATES for each in accepted)


def test_a_slow_upload_loses_no_beat_and_holds_nobody_up(a_fleet: Fleet) -> None:
    """FL-D20: it takes many leases; its own lease is kept, and others come and go meanwhile."""
    fleet = a_fleet
    slow = fleet.add("slow")
    fleet.add("quick")
    fleet.wait_ready()
    (large,) = fleet.submit(fleet.work(0.3, size=LARGE_BYTES, resources=Resources(hosts=["slow"])))
    wait_line(fleet.corral, large, "begun")
    slow.line.throttle(THIN_BYTES_PER_S)
    eventually(lambda: not marked(slow.worker.data_dir), "the child to end, and its upload to begin")
    others = fleet.submit(*(fleet.work(0.2) for _ in range(3)))
    for run_id in others:
        fleet.on_first_try(run_id)
    assert fleet.corral.runs.get(large).state == "running", "it was to be uploading still"

    run = fleet.on_first_try(large)

    assert not {"requeue", "reattach"} & set(fleet.kinds(large))
    assert run.attempts[0].ranks[0].host == "slow"
    slow.line.mend()
    fleet.check_whole([large, *others])
