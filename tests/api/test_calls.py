"""Calls over HTTP, with instances that speak the worker's protocol."""

from __future__ import annotations

import asyncio

from support.fake_instance import deploy, inline, outcome
from support.live_server import FakeHost, Json, LiveServer
from support.waiting import eventually

from corral.core.endpoints.scaling import MOST_FAILED, Scaler
from corral.core.leases.fence import expire
from corral.domain.calls import CallState
from corral.domain.ids import CallId, LeaseId
from corral.server.new_runs import instance_run
from corral.store.transaction import Tx


def scale(live: LiveServer) -> None:
    """One round of a scaler."""
    assert live.loop is not None
    scaler = Scaler(live.services.calls, live.services.board, instance_run)
    asyncio.run_coroutine_threadsafe(scaler.look(), live.loop).result(60)


def end_unheard(live: LiveServer, *call_ids: str) -> None:
    """End calls as another server does whose announcement is lost."""

    def unit(tx: Tx) -> None:
        for call in tx.calls.many([CallId(one) for one in call_ids]):
            tx.calls.save(call._replace(state=CallState.CANCELLED, ended_at=live.clock.now()))

    live.write(unit)
    for call_id in call_ids:
        # It is read again, as it is where it was not accepted.
        assert live.loop is not None
        live.loop.call_soon_threadsafe(live.services.dispatch.forget, CallId(call_id))


def test_cancelled_calls_in_a_queue_cost_the_next_one_nothing(live: LiveServer, worker: FakeHost) -> None:
    """FNX-01: an instance that asks once is given the call behind all that were cancelled."""
    endpoint = deploy(live, worker)
    endpoint.call()
    instance = endpoint.instance()
    held = instance.next_call()
    heard, unheard = (endpoint.call(*(b"%d" % n for n in range(20))) for _ in range(2))
    for call_id in heard:
        live.ok("POST", f"/v1/calls/{call_id}/cancel")
    end_unheard(live, *unheard)
    (wanted,) = endpoint.call(b"wanted")

    given = instance.exchange(want=1, outcomes=[outcome(held)])["calls"]

    assert [call["id"] for call in given] == [wanted]


def test_no_instance_is_made_for_a_call_that_was_cancelled(live: LiveServer, worker: FakeHost) -> None:
    """NEW-01: it was made and cancelled every few seconds for ever, where no host could take it."""
    endpoint = deploy(live, worker, resources={"hosts": ["nowhere"]})
    heard, unheard = endpoint.call(b"1", b"2")
    eventually(endpoint.runs, "the instance of the calls")
    live.ok("POST", f"/v1/calls/{heard}/cancel")
    end_unheard(live, unheard)
    live.clock.ahead_s += 10
    eventually(lambda: endpoint.runs()[0]["state"] == "cancelled", "it to be cancelled")

    for _ in range(3):
        scale(live)

    assert len(endpoint.runs()) == 1


def test_a_new_version_of_a_program_that_nobody_calls_gets_no_instance(
    live: LiveServer, worker: FakeHost
) -> None:
    """HOUR-03: it stayed queued for ever, and a new one was made when it was cancelled."""
    nowhere = {"hosts": ["nowhere"]}
    endpoint = deploy(live, worker, resources=nowhere, live_one=True)
    for number in (2, 3):
        entry = {"entry": {"number": number}}
        deploy(live, worker, name=endpoint.name, live_one=True, service=entry, resources=nowhere)
    scale(live)
    assert endpoint.runs() == []

    (call,) = endpoint.call(version=3)
    eventually(lambda: len(endpoint.runs()) == 1, "the instance of the call")
    live.ok("POST", f"/v1/calls/{call}/cancel")
    live.clock.ahead_s += 10
    eventually(lambda: endpoint.runs()[0]["state"] == "cancelled", "it to be cancelled")
    scale(live)

    assert len(endpoint.runs()) == 1


def test_a_call_that_no_host_can_take_says_what_they_lack(live: LiveServer, worker: FakeHost) -> None:
    """HOUR-10: the reason itself, and not only where to ask for it."""
    endpoint = deploy(live, worker, resources={"hosts": [worker.name], "gpus": 64})
    (call,) = endpoint.call()

    def waits() -> str:
        return str(live.ok("GET", f"/v1/calls/{call}")["waiting"])

    said = eventually(lambda: "needs 64 GPUs" in waits() and waits(), "the reason")

    assert worker.name in str(said)


def test_a_host_that_was_cut_off_keeps_the_calls_that_nobody_took(live: LiveServer, worker: FakeHost) -> None:
    """STO-08: as a run keeps its work. A second instance, or the same one, is not given them again."""
    endpoint = deploy(live, worker, scaling={"concurrency": 4})
    endpoint.call(b"1", b"2")
    instance = endpoint.instance()
    instance.lease.ok("POST", "beat", {})
    held = [instance.next_call(), instance.next_call()]
    holding = [call["id"] for call in held]
    eventually(
        lambda: all(live.ok("GET", f"/v1/calls/{one}")["state"] == "assigned" for one in holding),
        "the assignments to be written",
    )
    lose(live, instance.lease.about["id"])
    eventually(
        lambda: all(live.ok("GET", f"/v1/calls/{one}")["lost"] == 1 for one in holding), "them to be lost"
    )
    instance.lease.ok("POST", "beat", {})

    back = instance.exchange(want=2, holding=holding)

    assert (back["calls"], back["cancelled"]) == ([], [])
    for call_id in holding:
        seen = live.ok("GET", f"/v1/calls/{call_id}")
        assert (seen["state"], seen["attempt"], seen["lost"]) == ("assigned", 1, 0)
    instance.exchange(outcomes=[outcome(call) for call in held])
    assert [live.ok("GET", f"/v1/calls/{one}")["state"] for one in holding] == ["succeeded"] * 2


def lose(live: LiveServer, lease_id: str) -> None:
    """Let the lease run out, as the sweeper does."""
    policy, shares = live.services.policy, live.services.board.shares
    late = live.clock.now() + 1000
    live.write(lambda tx: expire(tx, LeaseId(lease_id), now=late, policy=policy, shares=shares))


def test_an_instance_that_cannot_begin_is_tried_with_pauses_and_then_its_calls_fail(
    live: LiveServer, worker: FakeHost
) -> None:
    """FNX-03: for one set of parameters, once its version has served; it was restarted for ever."""
    endpoint = deploy(live, worker, scaling={"max": 4})
    endpoint.call(params=inline(b"good"))
    serving = endpoint.instance()
    serving.exchange(outcomes=[outcome(serving.next_call())])
    (call,) = endpoint.call(params=inline(b"bad"))
    failed = {"reason": "code_error", "detail": "RuntimeError: no such berth\nTraceback ...", "ran_s": 0.1}

    def seen() -> Json:
        return dict(live.ok("GET", f"/v1/calls/{call}"))

    for times in range(1, MOST_FAILED):
        endpoint.instance().lease.ok("POST", "fail", failed)
        why = f"its instance, which failed to start {times} times: RuntimeError: no such berth"
        eventually(lambda: seen()["waiting"] == why, why)  # noqa: B023
    endpoint.instance().lease.ok("POST", "fail", failed)
    eventually(lambda: seen()["state"] == "failed", "the call to fail")

    assert seen()["error"]["type"] == "CannotStart"
    assert "RuntimeError: no such berth" in seen()["error"]["message"]
    (good,) = endpoint.call(params=inline(b"good"))
    assert serving.next_call()["id"] == good


def test_an_instance_ends_though_it_asks_more_often_than_its_idle_time(
    live: LiveServer, worker: FakeHost
) -> None:
    """HOUR3-01: each answer without calls began the idle time again."""
    endpoint = deploy(live, worker, scaling={"min": 0, "max": 1, "idle_s": 1.0})
    endpoint.call()
    instance = endpoint.instance()
    call = instance.next_call()

    answer = instance.exchange(want=1, wait_s=0.1, outcomes=[outcome(call)])

    assert not answer["stop"]
    eventually(lambda: instance.exchange(want=1, wait_s=0.1)["stop"], "it to be told to end", within_s=120)


def test_calls_of_one_request_are_given_out_in_their_order(live: LiveServer, worker: FakeHost) -> None:
    """HOUR4-07: a map's calls wait equally long, and began in random order."""
    endpoint = deploy(live, worker)
    made = endpoint.call(*(b"%d" % n for n in range(20)))
    instance = endpoint.instance()
    first = instance.next_call()
    given = instance.exchange(want=9, outcomes=[outcome(first)])["calls"]
    rest = instance.exchange(want=20, outcomes=[outcome(call) for call in given])["calls"]
    assert [call["id"] for call in (first, *given, *rest)] == made
