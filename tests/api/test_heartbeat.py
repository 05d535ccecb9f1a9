"""Beats of a worker, against a live server."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from support.live_server import LiveServer, new_host
from support.waiting import eventually

from corral.client.corral import Corral
from corral.wire.leases import LeaseView
from corral.worker.heartbeat import Heartbeat, Vitals
from corral.worker.lease import LeaseControl


def test_a_lease_that_was_silent_is_confirmed_before_the_server_holds_a_beat(live: LiveServer) -> None:
    """STO-05: the worker claims again after it; the server would hold the answer for a third of a lease."""
    host = new_host(live)
    lease = LeaseView.model_validate(host.run().about)
    control = LeaseControl(lease.id, wall_left_s=None, grace_s=1.0)
    with Corral(live.url, host.token) as corral:
        link: Any = SimpleNamespace(corral=corral, look_again=lambda: None)
        beater = Heartbeat(link, lease, control, Vitals(()))

        beater.resume()

        eventually(lambda: beater.silent_s < math.inf, "an answer", within_s=lease.lease_s / 6)
        beater.end()
        corral.transport.hang_up()
    assert not control.lost
