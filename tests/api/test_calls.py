"""Calls over HTTP, with instances that speak the worker's protocol."""

from __future__ import annotations

import asyncio

from support.fake_instance import deploy, outcome
from support.live_server import FakeHost, LiveServer
from support.waiting import eventually

from corral.core.endpoints.scaling import Scaler
from corral.domain.calls import CallState
from corral.domain.ids import CallId
from corral.server.new_runs import instance_run
from corral.store.transaction import Tx


def scale(live: LiveServer) -> None:
    """One round of a scaler."""
    assert live.loop is not None
    scaler = Scaler(live.services.calls, live.services.board.shapes, instance_run)
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
