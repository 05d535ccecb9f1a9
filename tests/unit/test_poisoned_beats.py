"""What one host says of its lease harms that lease alone, and never the loop that looks at all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

import pytest
from support.lease_sweeping import SweptHost

from corral.core.leases.usage import known_s
from corral.domain.quotas import by_month

NOW = 1_790_000_000.0


@pytest.fixture
def fleet() -> Iterator[SweptHost]:
    made = SweptHost()
    yield made
    made.db.end()


@pytest.mark.parametrize("said", [1e300, 1e12, 1.7e308])
def test_months_come_to_an_end_whatever_was_said(said: float) -> None:
    """ATK4-01: the months were counted back for ever, on the event loop."""
    months = list(islice(by_month(NOW, said), 2000))
    assert len(months) < 1000
    assert months[-1][0] == "1970-01"


@pytest.mark.parametrize("said", [1e300, 10**400, -5.0], ids=["huge", "whole", "below 0"])
def test_a_lease_whose_worker_said_nonsense_runs_out_as_any_other(fleet: SweptHost, said: float) -> None:
    """ATK4-01: one beat, and then silence, stopped the server for good."""
    run_id = fleet.submit()
    grant = fleet.claim()
    fleet.beat(grant)
    fleet.tick(8, beating=grant)
    lease = grant.lease._replace(sample=json.dumps({"ran_s": said}), beaten_at=1.0, granted_at=0.0)
    # Looked at first: without an end to it, the sweep would keep this test for ever.
    assert 0.0 <= known_s(lease) <= 1e10
    fleet.beat(grant, sample=lease.sample)
    fleet.tick(6)
    assert fleet.run(run_id).state == "queued"


def test_a_lease_that_cannot_be_ended_keeps_no_other_from_its_end(fleet: SweptHost) -> None:
    """ATK4-01: whatever else may be wrong with one, also limits and holds of others are seen to."""
    bad, good, late = fleet.submit(), fleet.submit(), fleet.submit(wall_s=60.0)
    grants = {grant.run.id: grant for grant in (fleet.claim(), fleet.claim(), fleet.claim())}
    for grant in grants.values():
        fleet.beat(grant)
    fleet.tick(8, beating=grants[late])
    fleet.beat(grants[good])
    fleet.beat(grants[bad], sample="no JSON")
    for _ in range(6):
        fleet.clock.advance(5.0)
        fleet.beat(grants[late])
        try:
            fleet.sweep()
        except ValueError:
            continue
    with pytest.raises(ValueError, match="Expecting value"):
        fleet.sweep()
    assert fleet.run(good).state == "queued"
    assert fleet.run(late).state == "halting"
