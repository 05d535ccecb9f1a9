"""What placements cost, as both databases keep it and add it up."""

from __future__ import annotations

from contract.conftest import Database
from contract.samples import a_run
from corral.domain.ids import RunId, new_placement_id
from corral.domain.placements.placements import ExecutorCosts, Placement, PlacementState

HOUR = 3600.0


def a_placement(run_id: RunId, executor: str, **given: object) -> Placement:
    placement_id = new_placement_id()
    made = Placement(
        placement_id, run_id, "default", executor, 1, f"corral-{placement_id}", PlacementState.LAUNCHED, 0.0
    )
    return made._replace(**given)  # type: ignore[arg-type]


def test_what_an_executor_held_is_added_up_and_what_has_no_price_is_counted(db: Database) -> None:
    run = a_run()
    ended = a_placement(
        run.id, "hpc", price_per_hour=2.0, held_at=HOUR, closed_at=3 * HOUR, state=PlacementState.CLOSED
    )
    goes_on = a_placement(run.id, "hpc", price_per_hour=1.0, chosen="the cheapest")
    unpriced = a_placement(run.id, "hpc", held_at=0.0)
    never_held = a_placement(run.id, "hpc", price_per_hour=99.0)
    elsewhere = a_placement(run.id, "other", price_per_hour=99.0, held_at=0.0)
    db.write(lambda tx: tx.runs.insert(run, "{}"))
    for one in (ended, goes_on, unpriced, never_held, elsewhere):
        db.write(lambda tx, one=one: tx.placements.insert(one))  # type: ignore[misc]
    # As when the cluster is seen to have given it a place.
    db.write(lambda tx: tx.placements.save(goes_on._replace(held_at=2 * HOUR)))

    assert db.read(lambda tx: tx.placements.costs("hpc", 5 * HOUR)) == ExecutorCosts(7.0, 1)
    assert db.read(lambda tx: tx.placements.costs("none", 5 * HOUR)) == ExecutorCosts(None, 0)
    assert db.read(lambda tx: tx.placements.get(goes_on.id)) == goes_on._replace(held_at=2 * HOUR)
