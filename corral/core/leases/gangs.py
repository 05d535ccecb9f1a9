"""What the end of one rank means for the others of its run.

In a fixed gang the first rank that ends closes the attempt and fences all. An elastic run goes on without it
while the minimum runs. A run that was told to stop is settled when its last rank has ended.
"""

from __future__ import annotations

from typing import NamedTuple

from corral.core.leases.usage import known_s, pay, pay_back
from corral.core.policy import ServerPolicy
from corral.core.queue.fair_share import Shares
from corral.core.runs.dependencies import move
from corral.core.runs.stop import settle_stop
from corral.core.runs.transitions import ready_key, record
from corral.core.topics import TOPIC_GROW, TOPIC_STOP
from corral.domain.artifacts import ArtifactKind
from corral.domain.errors import LeaseLost, found
from corral.domain.ids import ArtifactId
from corral.domain.leases import Lease, LeaseState
from corral.domain.runs.reasons import Reason
from corral.domain.runs.retries import BUDGET_OF, Budget
from corral.domain.runs.runs import Rank, Run
from corral.domain.runs.states import LIVE_RANKS, Fold, RankEvent, RankState, RunEvent, fold
from corral.store.transaction import Tx

# How a lease was closed whose rank ended for the sake of another.
FENCED = "fenced"
# So long what a lease uploaded stays after the lease ran out.
MAY_RETURN_S = 86400.0
# A rank that ended for one of these is no sign that the others would fail too.
_THE_RANKS_OWN = frozenset({Budget.INFRASTRUCTURE, Budget.FREE})


class RankEnd(NamedTuple):
    """Why a rank ended, for its run's history."""

    reason: Reason
    detail: str
    actor: str
    now: float


def end_rank(tx: Tx, lease: Lease, event: RankEvent, *, reason: Reason, exit_code: int | None = None) -> Rank:
    missing = f"run {lease.run_id} has no rank {lease.rank} in attempt {lease.attempt}"
    rank = found(tx.attempts.rank(lease.run_id, lease.attempt, lease.rank), missing)
    rank = rank.stepped(event)._replace(reason=reason, exit_code=exit_code)
    tx.attempts.save_rank(rank)
    return rank


def close_lease(
    tx: Tx, lease: Lease, *, outcome: str, now: float, digest: str | None = None, answer: str | None = None
) -> None:
    closed = lease._replace(state=LeaseState.CLOSED, closed_at=now)
    tx.leases.save(closed._replace(outcome=outcome, outcome_digest=digest, outcome_answer=answer))
    tx.blobs.unpin(f"lease:{lease.id}")


def let_go(tx: Tx, lease: Lease, *, now: float, outcome: str | None = None) -> None:
    """Its time is over; its host may come back, and names then what it uploaded before."""
    tx.leases.save(lease._replace(state=LeaseState.EXPIRED, closed_at=now, outcome=outcome))
    tx.blobs.let_go(f"lease:{lease.id}", at=now + MAY_RETURN_S)


def fence_gang(tx: Tx, run: Run, ended: Lease, shares: Shares, *, ran_s: float, now: float) -> Run:
    """A rank failed: the attempt is closed, and the other ranks hear at once that their leases are lost."""
    others = _others(tx, run, ended)
    for other in others:
        run = _fence(tx, run, other, shares, now=now)
        close_lease(tx, other, outcome=FENCED, now=now)
        tx.announce(TOPIC_STOP, other.id)
    return _attempt_closed(tx, run, ended, uncounted_s=ran_s if others else 0.0, now=now)


def fence_gang_for_now(tx: Tx, run: Run, lost: Lease, shares: Shares, *, ran_s: float, now: float) -> Run:
    """A rank's host is lost. It may bring all of them back, as long as no other has heard of it."""
    others = _others(tx, run, lost)
    for other in others:
        run = _fence(tx, run, other, shares, now=now)
        let_go(tx, other, now=now, outcome=FENCED)
    return _attempt_closed(tx, run, lost, uncounted_s=ran_s if others else 0.0, now=now)


def _others(tx: Tx, run: Run, lease: Lease) -> list[Lease]:
    if run.world_size == 1:
        return []
    return [other for other in tx.leases.live_of_run(run.id) if other.id != lease.id]


def _fence(tx: Tx, run: Run, other: Lease, shares: Shares, *, now: float) -> Run:
    end_rank(tx, other, RankEvent.STOPPED, reason=Reason.RELEASED)
    return pay(tx, run, other, shares, known_s(other), now=now)


def _attempt_closed(tx: Tx, run: Run, ended: Lease, *, uncounted_s: float, now: float) -> Run:
    """`uncounted_s` is its time where others were live: that did not count against the wall limit yet."""
    if run.world_size == 1:
        return run
    tx.attempts.close(run.id, ended.attempt, now)
    return run._replace(ran_s=run.ran_s + uncounted_s)


def brought_back(tx: Tx, run: Run, lease: Lease, *, now: float, policy: ServerPolicy) -> Run:
    """The lost rank is back in time: those that were fenced for its sake go on too. LeaseLost if one knew."""
    if run.world_size == 1:
        return run
    fenced = [one for one in tx.leases.of_attempt(run.id, lease.attempt) if one.outcome == FENCED]
    back = {lease.rank, *(one.rank for one in fenced if one.state is LeaseState.EXPIRED)}
    states = [
        RankState.RUNNING if rank.rank in back else rank.state
        for rank in tx.attempts.ranks(run.id, lease.attempt)
    ]
    whole = fold(states, minimum=run.min_ranks, elastic=run.elastic) is Fold.RUNNING
    if len(back) <= len(fenced) or not whole:
        raise LeaseLost(f"lease {lease.id} ran out, and other ranks of run {run.id} have ended since")
    for other in fenced:
        rank = found(tx.attempts.rank(run.id, other.attempt, other.rank), f"rank {other.rank} is gone")
        tx.attempts.save_rank(rank.stepped(RankEvent.REATTACH)._replace(reason=None))
        run = pay_back(tx, run, other)
        live_again(tx, other, now=now, policy=policy)
    tx.attempts.reopen(run.id, lease.attempt)
    return run


def live_again(tx: Tx, lease: Lease, *, now: float, policy: ServerPolicy) -> Lease:
    lease = lease._replace(
        state=LeaseState.LIVE, closed_at=None, outcome=None, expires_at=now + policy.lease_s
    )
    tx.leases.save(lease)
    tx.blobs.keep(f"lease:{lease.id}")
    return lease


def rank_stopped(tx: Tx, run: Run, lease: Lease, event: RunEvent, *, now: float, actor: str) -> Run:
    """A rank of a run that was told to stop has ended; the last one settles the run."""
    if any_live(tx, run, lease.attempt):
        data = {"rank": lease.rank, "lease": lease.id}
        return record(tx, run, "rank_stopped", at=now, actor=actor, data=data)
    return settle_stop(tx, run, event, now=now, actor=actor, data={"lease": lease.id})


def any_live(tx: Tx, run: Run, attempt: int) -> bool:
    return run.world_size > 1 and any(rank.state in LIVE_RANKS for rank in tx.attempts.ranks(run.id, attempt))


def goes_on(tx: Tx, run: Run, lease: Lease, reason: Reason) -> bool:
    """Whether an elastic run goes on without the rank that has just ended."""
    if not run.elastic:
        return False
    the_ranks_own = BUDGET_OF[reason] in _THE_RANKS_OWN or reason is Reason.DIVERGED
    if not the_ranks_own and not run.budgets.allows(run.used, reason):
        return False
    states = [rank.state for rank in tx.attempts.ranks(run.id, lease.attempt)]
    return fold(states, minimum=run.min_ranks, elastic=True) is Fold.RUNNING


def without_rank(tx: Tx, run: Run, lease: Lease, rank: Rank, end: RankEnd) -> tuple[Run, Rank]:
    """The rank waits for another host; where no retry is left, the run goes on with one rank fewer."""
    may_restart = run.budgets.allows(run.used, end.reason)
    if may_restart:
        run = run.charged(end.reason)
        tx.announce(TOPIC_GROW, ready_key(run))
    else:
        rank = rank.stepped(RankEvent.RESTART).stepped(RankEvent.RETIRE)
        tx.attempts.save_rank(rank)
    data = {"rank": lease.rank, "lease": lease.id, "reason": end.reason, "detail": end.detail[:2000]}
    run = record(tx, run, "rank_ended", at=end.now, actor=end.actor, data=data)
    if not may_restart and all_done(tx, run, lease.attempt):
        run = finish_run(tx, run, lease, now=end.now, actor=end.actor)
    return run, rank


def all_done(tx: Tx, run: Run, attempt: int) -> bool:
    """Whether every rank is done. Of an elastic run those that never began retire once nobody else works."""
    ranks = tx.attempts.ranks(run.id, attempt)
    busy = any(rank.state in LIVE_RANKS or rank.state is RankState.ENDED for rank in ranks)
    if run.elastic and not busy:
        unbegun = [rank.stepped(RankEvent.RETIRE) for rank in ranks if rank.state is RankState.WAITING]
        for rank in unbegun:
            tx.attempts.save_rank(rank)
        ranks = [*(rank for rank in ranks if rank.state is not RankState.WAITING), *unbegun]
    states = [rank.state for rank in ranks]
    return fold(states, minimum=run.min_ranks, elastic=run.elastic) is Fold.FINISHED


def finish_run(tx: Tx, run: Run, lease: Lease, *, now: float, actor: str) -> Run:
    tx.attempts.close(run.id, lease.attempt, now)
    run = run._replace(artifact_id=run.artifact_id or _result_of_another(tx, run, lease.attempt))
    run = run._replace(ended_at=now, reason=Reason.FINISHED, detail=None, exit_code=0, signal=None)
    run = run._replace(stop_deadline=None, stop_reason=None)
    data = {"lease": lease.id, "artifact": run.artifact_id}
    return move(tx, run, RunEvent.FINISH, at=now, actor=actor, data=data)


def _result_of_another(tx: Tx, run: Run, attempt: int) -> ArtifactId | None:
    """Replicas that trained one model together have all made it: without rank 0 another's is the result."""
    if run.kind != "train" or run.world_size == 1:
        return None
    done = {one.rank for one in tx.attempts.ranks(run.id, attempt) if one.state is RankState.DONE}
    made = [
        one
        for one in tx.artifacts.of_run(run.id)
        if one.kind is ArtifactKind.OUTPUT and one.attempt == attempt and one.rank in done
    ]
    return min(made, key=lambda one: one.rank or 0).id if made else None
