"""Ending placements: those whose run needs them no more, and those that ended without having served it."""

from __future__ import annotations

from corral.core.placements.costs import closed
from corral.core.placements.pauses import pause_s
from corral.core.placements.told import MOST_CHARS
from corral.core.placements.wanted import may_be_placed_again, need_of, own_hosts_may_take
from corral.core.runs.dependencies import move
from corral.core.topics import TOPIC_TOKEN
from corral.domain.ids import PlacementId
from corral.domain.placements.placements import Placement, PlacementState
from corral.domain.runs.holds import HoldKind
from corral.domain.runs.reasons import Reason
from corral.domain.runs.runs import INSTANCE, Run
from corral.domain.runs.states import FINAL, RunEvent, RunState
from corral.store.transaction import Tx

LONGEST_BACKOFF_S = 300.0


def needless(tx: Tx) -> list[Placement]:
    """Open placements whose run has ended or is gone, or is held back for long."""
    return [one for one in tx.placements.open() if one.state in _MAY_CLOSE and not is_needed(tx, one)]


_MAY_CLOSE = (PlacementState.INTENDED, PlacementState.LAUNCHED)


def is_needed(tx: Tx, placement: Placement) -> bool:
    """Whether its run has not ended yet."""
    run = tx.runs.get(placement.run_id)
    return run is not None and run.state not in FINAL


def begin_close(tx: Tx, placement_id: PlacementId, *, why: str) -> Placement | None:
    """Written before anything is taken away: whoever comes next goes on with it."""
    placement = tx.placements.lock(placement_id)
    if placement is None or placement.state not in _MAY_CLOSE:
        return placement
    placement = placement._replace(state=PlacementState.CLOSING, why=why, tries=0, try_at=None)
    tx.placements.save(placement)
    return placement


def end_close(tx: Tx, placement_id: PlacementId, *, now: float) -> None:
    """Nothing of it is left at the executor. Its tokens stay for what its workers have yet to report; they
    end with the hosts of the run."""
    placement = tx.placements.lock(placement_id)
    if placement is not None and placement.state is not PlacementState.CLOSED:
        tx.placements.save(closed(tx, placement, now))


def lose(
    tx: Tx, placement_id: PlacementId, reason: Reason, why: str, *, now: float, final: bool = False
) -> None:
    """It ended before its run did, or never came up: the run waits again, or has failed if it was tried often
    enough or nothing else could come of it."""
    placement = tx.placements.lock(placement_id)
    if placement is None or placement.state is PlacementState.CLOSED:
        return
    why = why[:MOST_CHARS]
    # Begun here and finished by whoever takes away what may be left.
    closing = placement._replace(state=PlacementState.CLOSING, why=why, lost=True, tries=0, try_at=None)
    tx.placements.save(closing)
    for token in tx.tokens.of_run(placement.run_id):
        if token.name.startswith(placement.launch_key):
            tx.tokens.revoke(token.id, now)
            tx.announce(TOPIC_TOKEN, token.id)
    run = tx.runs.lock(placement.run_id)
    if run is None:
        return
    if run.state is RunState.PLACING:
        _wait_again(tx, run, closing, reason, why, now=now, final=final)
    elif run.state is RunState.QUEUED and reason is Reason.OUT_OF_MEMORY:
        _ran_out_of_memory(tx, run, closing, why, now=now)


def _ran_out_of_memory(tx: Tx, run: Run, placement: Placement, why: str, *, now: float) -> None:
    """The run is queued again as after a lost host: workers that a cluster kills for want of memory cannot
    tell of it. Without this it would be placed, and killed, for as long as hosts may be lost."""
    if run.budgets.allows(run.used, Reason.OUT_OF_MEMORY):
        tx.runs.save(run.charged(Reason.OUT_OF_MEMORY))
        return
    said = f"executor {placement.executor}: {why}"
    data: dict[str, object] = {"reason": Reason.OUT_OF_MEMORY, "placement": placement.id, "detail": said}
    changes: dict[str, object] = {"reason": Reason.OUT_OF_MEMORY, "detail": said}
    move(tx, run._replace(ended_at=now), RunEvent.FAIL, at=now, actor="corral", data=data, **changes)


def _wait_again(
    tx: Tx, run: Run, placement: Placement, reason: Reason, why: str, *, now: float, final: bool
) -> None:
    said = f"executor {placement.executor}: {why}"
    data: dict[str, object] = {"reason": reason, "placement": placement.id, "detail": said[:2000]}
    changes: dict[str, object] = {"reason": reason, "detail": said}
    # An executor refuses a run once, and nothing was lost by it: own hosts or another executor may take it.
    is_free = placement.was_refused
    if final or not (is_free or may_be_placed_again(tx, run, reason)):
        run = run._replace(ended_at=now)
        move(tx, run, RunEvent.FAIL, at=now, actor="corral", data=data, **changes)
        return
    if run.kind != INSTANCE and not is_free:
        run = run.charged(reason)
    run = move(tx, run, RunEvent.PLACEMENT_LOST, at=now, actor="corral", data=data, **changes)
    if own_hosts_may_take(need_of(tx, run)):
        # Held back it would be kept from them too; the executors are asked again after a pause.
        return
    wait_s = pause_s(run.used_infrastructure, most_s=LONGEST_BACKOFF_S)
    move(
        tx,
        run,
        RunEvent.HOLD,
        at=now,
        actor="corral",
        data={"hold_reason": HoldKind.BACKOFF.value, "for_s": wait_s},
        hold_reason=run.hold_reason or HoldKind.BACKOFF.value,
        not_before=now + wait_s,
    )
