"""Hosts that are cut off: while they claim, while they train, and after their run went to another.

Each only dials out (FL-C16): nothing listens on a host, and no container or database is needed there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.local_cluster import marked, printed, wait_line
from support.waiting import eventually

from corral.client.files.tree import FileEntry, Tree
from corral.domain.errors import LeaseLost
from corral.domain.runs.reasons import Reason
from corral.wire.leases import BeatRequest, FailRequest, FinishRequest, OutcomeReport, StoppedRequest
from corral.wire.logs import EventBatch, LogRecord
from corral.wire.spec.tables import Resources
from fleet.conftest import relay_network
from fleet.fleet import LEASE_S, Fleet, Host, fleet
from fleet.lines import Network
from fleet.relay import RelayLine

# For how long a host must be silent so that its lease is surely over and swept.
AWAY_S = 2 * LEASE_S + 1.0
# A worker gives up a claim that is not answered after 40 s, any other call sooner.
LONGER_THAN_EVERY_TIMEOUT_S = 42.0
FORGOTTEN_LEASE_S = 5.0


def waiting_host(fleet: Fleet, name: str) -> Host:
    """A host that asks for work at this moment, and has proven that it gets it."""
    host = fleet.add(name)
    fleet.on_first_try(fleet.submit(fleet.work(0.1, resources=Resources(hosts=[name])))[0])
    eventually(lambda: not list((host.worker.data_dir / "leases").glob("*")), "its first run to be put away")
    time.sleep(0.5)
    return host


def claimed(fleet: Fleet, run_id: str) -> str:
    """Wait until the server has given the run away; the lease's id."""
    attempts = eventually(lambda: fleet.corral.runs.get(run_id).attempts, f"{run_id} to be claimed")
    return attempts[-1].ranks[0].lease_id or ""


def test_a_claim_whose_answer_was_lost_is_answered_again_with_the_same_lease(a_fleet: Fleet) -> None:
    """FL-D30: the host asks again with the same request, and the run is started once."""
    fleet = a_fleet
    host = waiting_host(fleet, "one")
    host.line.deafen()
    (run_id,) = fleet.submit(fleet.work(0.5))
    lease_id = claimed(fleet, run_id)
    host.line.break_off()
    host.line.mend()

    run = fleet.on_first_try(run_id)

    assert run.attempts[0].ranks[0].lease_id == lease_id
    assert fleet.kinds(run_id).count("claim") == 1
    fleet.check_whole([each.id for each in fleet.corral.runs.iter()])


@pytest.fixture
def impatient(tmp_path: Path, network: Network) -> Iterator[Fleet]:
    """A server that soon takes back what is not beaten for."""
    with fleet(tmp_path, network, CORRAL_FIRST_BEAT_S="2") as made:
        yield made


@pytest.mark.parametrize("told", [True, False], ids=["broken-off", "silent"])
def test_a_lease_that_its_host_never_heard_of_goes_to_another_free_of_charge(
    impatient: Fleet, told: bool
) -> None:
    """FL-D30, FL-D41: the first host may hear of it much later; by then it is worth nothing."""
    fleet = impatient
    first = waiting_host(fleet, "one")
    first.line.deafen()
    (run_id,) = fleet.submit(fleet.work(1))
    lost = claimed(fleet, run_id)
    if told:
        # Whatever it asks from now on, it does not hear the answer.
        first.line.break_off()
    fleet.add("two")
    eventually(lambda: fleet.kinds(run_id).count("claim") == 2, "the other host to claim it")
    first.line.mend()

    run = fleet.finished(run_id)

    assert (run.attempt, run.attempts[1].ranks[0].host) == (2, "two")
    assert run.retries_used["infrastructure"] == 0
    eventually(lambda: not marked(first.worker.data_dir, CORRAL_LEASE_ID=lost), "the late child to be ended")
    assert "done" not in printed(fleet.corral, run_id, attempt=1)
    fleet.check_whole([each.id for each in fleet.corral.runs.iter()])


def test_a_host_cut_off_for_longer_than_every_timeout_keeps_its_work(far_fleet: Fleet) -> None:
    """FL-D01, FL-D37, FL-C21: one run ends meanwhile and one goes on; both are accepted on return.

    The second host may not take them: nobody claims them, so the first one's epoch stays the newest.
    """
    fleet = far_fleet
    first = fleet.add("one", slots=2, labels=["mine"])
    fleet.add("two")
    mine = Resources(labels=["mine"])
    meanwhile, later = fleet.submit(
        fleet.work(3, resources=mine), fleet.work(LONGER_THAN_EVERY_TIMEOUT_S + 5, resources=mine)
    )
    for run_id in (meanwhile, later):
        wait_line(fleet.corral, run_id, "begun")
    first.line.cut()
    (other,) = fleet.submit(fleet.work(0.5))
    assert fleet.on_first_try(other).attempts[0].ranks[0].host == "two"
    eventually(lambda: "requeue" in fleet.kinds(later), "the sweeper to give up its lease")
    time.sleep(LONGER_THAN_EVERY_TIMEOUT_S)
    assert [fleet.corral.runs.get(each).state for each in (meanwhile, later)] == ["queued", "queued"]
    first.line.mend()

    for run_id in (meanwhile, later):
        fleet.on_first_try(run_id)
        assert fleet.kinds(run_id).count("reattach") == 1
    fleet.check_whole([meanwhile, later, other])


def test_a_host_that_comes_back_after_its_run_went_to_another_changes_nothing(a_fleet: Fleet) -> None:
    """FL-D29, FL-D38, FL-D41, FL-C30: not by any call, and its child is stopped."""
    fleet = a_fleet
    first = fleet.add("one")
    (run_id,) = fleet.submit(fleet.work(AWAY_S + 6))
    wait_line(fleet.corral, run_id, "begun")
    old = fleet.corral.runs.get(run_id).attempts[0].ranks[0]
    lease_id = old.lease_id or ""
    first.line.cut()
    fleet.add("two")
    wait_line(fleet.corral, run_id, "begun", attempt=2)
    assert marked(first.worker.data_dir, CORRAL_LEASE_ID=lease_id), "nobody told it to stop"

    check_all_refused(fleet, first, run_id, lease_id, old.epoch)
    first.line.mend()
    eventually(
        lambda: not marked(first.worker.data_dir, CORRAL_LEASE_ID=lease_id), "the old child to be stopped"
    )

    run = fleet.finished(run_id)
    assert (run.attempt, run.attempts[1].ranks[0].host) == (2, "two")
    assert "done" not in printed(fleet.corral, run_id, attempt=1)
    fleet.check_whole([run_id])


def check_all_refused(fleet: Fleet, host: Host, run_id: str, lease_id: str, epoch: int) -> None:
    """With the host's own token, each call that a lease is good for."""
    before = state_of(fleet, run_id)
    leases = fleet.plane.client(host.token).leases
    digest = hashlib.sha256(b"late").hexdigest()
    tree = Tree.of([FileEntry("late", 4, 0o644, digest)])
    late = EventBatch(seq=1, logs=[LogRecord(at=0, stream="stdout", text="late")])
    seen = leases.send_events(lease_id, epoch, late)
    assert not seen.accepted
    late = late.model_copy(update={"seq": seen.next_seq})
    failed = FailRequest(reason=Reason.CODE_ERROR)
    stopped = StoppedRequest(reason=Reason.RELEASED)
    calls: dict[str, Callable[[], object]] = {
        "events": lambda: leases.send_events(lease_id, epoch, late),
        "secrets": lambda: leases.secrets(lease_id, epoch),
        "blob": lambda: leases.sink(lease_id, epoch).pack([(digest, b"late")]),
        "artifact": lambda: leases.commit_artifact(lease_id, epoch, tree),
        "checkpoint": lambda: leases.commit_checkpoint(lease_id, epoch, tree, step=1, metric=None),
        "object": lambda: leases.put_object(lease_id, epoch, "late", b"late"),
        "finish": lambda: leases.finish(lease_id, epoch, FinishRequest()),
        "fail": lambda: leases.fail(lease_id, epoch, failed),
        "stopped": lambda: leases.stopped(lease_id, epoch, stopped),
    }
    assert leases.beat(lease_id, epoch, BeatRequest()).action == "lost"
    for what, call in calls.items():
        with pytest.raises(LeaseLost):
            print(what, call())
    ((answer, error),) = leases.outcomes(
        [OutcomeReport(lease_id=lease_id, epoch=epoch, finish=FinishRequest())]
    )
    assert answer is None
    assert isinstance(error, LeaseLost)
    assert state_of(fleet, run_id) == before


def state_of(fleet: Fleet, run_id: str) -> list[object]:
    """All that a late call could have changed; the new attempt's own log goes on."""
    corral = fleet.corral
    run = corral.runs.get(run_id)
    # The host of the new attempt goes on to say how busy it is.
    attempts = [
        one.model_copy(update={"ranks": [rank.model_copy(update={"sample": None}) for rank in one.ranks]})
        for one in run.attempts
    ]
    return [
        (run.state, run.attempt, attempts, run.retries_used, run.artifact_id),
        [(event.type, event.data) for event in fleet.events(run_id)],
        corral.runs.artifacts(run_id).items,
        corral.runs.checkpoints(run_id).items,
        printed(corral, run_id, attempt=1),
    ]


def test_connections_that_a_router_forgot_cost_no_lease(tmp_path: Path) -> None:
    """FL-D37: they lead nowhere and nobody is told; beats go on by a new one while the lease lasts."""
    with fleet(tmp_path, relay_network(), lease_s=FORGOTTEN_LEASE_S) as made:
        host = made.add("one")
        assert isinstance(host.line, RelayLine)
        (run_id,) = made.submit(made.work(FORGOTTEN_LEASE_S * 2 + 2))
        wait_line(made.corral, run_id, "begun")
        host.line.strand()
        time.sleep(FORGOTTEN_LEASE_S * 2)
        assert made.kinds(run_id) == ["submit", "claim"]
        # What else waits there for an answer would do so for half a minute more.
        host.line.break_off()

        made.on_first_try(run_id)
        made.check_whole([run_id])
