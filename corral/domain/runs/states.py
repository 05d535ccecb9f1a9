"""The state tables of runs and ranks. They drive the check, the SQL guards, the diagram and the tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from corral.domain.errors import IllegalTransition


class RunState(StrEnum):
    HELD = "held"
    QUEUED = "queued"
    PLACING = "placing"
    RUNNING = "running"
    STOPPING = "stopping"
    HALTING = "halting"
    YIELDING = "yielding"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunEvent(StrEnum):
    RELEASE = "release"
    HOLD = "hold"
    PLACE = "place"
    WITHDRAW = "withdraw"
    PLACEMENT_LOST = "placement_lost"
    CLAIM = "claim"
    REATTACH = "reattach"
    REQUEUE = "requeue"
    FAIL = "fail"
    FINISH = "finish"
    CANCEL = "cancel"
    HALT = "halt"
    PREEMPT = "preempt"
    STOPPED = "stopped"
    LEASE_EXPIRED = "lease_expired"
    STOP_DEADLINE = "stop_deadline"


_S, _E = RunState, RunEvent
_ENDS_OF_A_STOP = (_E.STOPPED, _E.FAIL, _E.LEASE_EXPIRED, _E.STOP_DEADLINE)

RUN_TRANSITIONS: Mapping[tuple[RunState, RunEvent], RunState] = {
    (_S.HELD, _E.RELEASE): _S.QUEUED,
    (_S.QUEUED, _E.HOLD): _S.HELD,
    (_S.HELD, _E.FAIL): _S.FAILED,
    (_S.QUEUED, _E.PLACE): _S.PLACING,
    (_S.PLACING, _E.WITHDRAW): _S.QUEUED,
    (_S.PLACING, _E.PLACEMENT_LOST): _S.QUEUED,
    (_S.QUEUED, _E.CLAIM): _S.RUNNING,
    (_S.PLACING, _E.CLAIM): _S.RUNNING,
    (_S.QUEUED, _E.REATTACH): _S.RUNNING,
    (_S.PLACING, _E.REATTACH): _S.RUNNING,
    (_S.RUNNING, _E.REQUEUE): _S.QUEUED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.QUEUED, _E.FAIL): _S.FAILED,
    (_S.PLACING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.FINISH): _S.SUCCEEDED,
    (_S.HELD, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.PLACING, _E.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _E.CANCEL): _S.STOPPING,
    (_S.RUNNING, _E.HALT): _S.HALTING,
    (_S.RUNNING, _E.PREEMPT): _S.YIELDING,
    # A real finish wins over any wish to stop.
    (_S.STOPPING, _E.FINISH): _S.SUCCEEDED,
    (_S.HALTING, _E.FINISH): _S.SUCCEEDED,
    (_S.YIELDING, _E.FINISH): _S.SUCCEEDED,
    **{(_S.STOPPING, event): _S.CANCELLED for event in _ENDS_OF_A_STOP},
    **{(_S.HALTING, event): _S.FAILED for event in _ENDS_OF_A_STOP},
    **{(_S.YIELDING, event): _S.QUEUED for event in _ENDS_OF_A_STOP},
    (_S.YIELDING, _E.CANCEL): _S.STOPPING,
    (_S.YIELDING, _E.HALT): _S.HALTING,
}

FINAL = frozenset(RunState) - {state for state, _ in RUN_TRANSITIONS}
LEASED = frozenset({_S.RUNNING, _S.STOPPING, _S.HALTING, _S.YIELDING})
STOPPING = frozenset({_S.STOPPING, _S.HALTING, _S.YIELDING})


class RankState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    RETIRING = "retiring"
    DONE = "done"
    ENDED = "ended"
    RETIRED = "retired"


class RankEvent(StrEnum):
    CLAIM = "claim"
    STOP = "stop"
    RETIRE = "retire"
    FINISH = "finish"
    FAIL = "fail"
    STOPPED = "stopped"
    LEASE_EXPIRED = "lease_expired"
    RESTART = "restart"
    REATTACH = "reattach"


_R, _K = RankState, RankEvent
_ENDS_OF_A_RANK = (_K.FAIL, _K.STOPPED, _K.LEASE_EXPIRED)

RANK_TRANSITIONS: Mapping[tuple[RankState, RankEvent], RankState] = {
    (_R.WAITING, _K.CLAIM): _R.RUNNING,
    (_R.WAITING, _K.RETIRE): _R.RETIRED,
    (_R.RUNNING, _K.STOP): _R.STOPPING,
    (_R.RUNNING, _K.RETIRE): _R.RETIRING,
    (_R.RUNNING, _K.FINISH): _R.DONE,
    (_R.STOPPING, _K.FINISH): _R.DONE,
    (_R.RETIRING, _K.FINISH): _R.DONE,
    **{(_R.RUNNING, event): _R.ENDED for event in _ENDS_OF_A_RANK},
    **{(_R.STOPPING, event): _R.ENDED for event in _ENDS_OF_A_RANK},
    **{(_R.RETIRING, event): _R.RETIRED for event in _ENDS_OF_A_RANK},
    (_R.ENDED, _K.RESTART): _R.WAITING,
    (_R.ENDED, _K.REATTACH): _R.RUNNING,
}

LIVE_RANKS = frozenset({_R.RUNNING, _R.STOPPING, _R.RETIRING})
# Those that another host may be given, where the run is elastic.
UNSTARTED_RANKS = frozenset({_R.WAITING, _R.ENDED})


class Fold(StrEnum):
    """What the ranks of one attempt say together."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    ENDED = "ended"


def step_run(state: RunState, event: RunEvent) -> RunState:
    try:
        return RUN_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a run that is {state} cannot {event}") from None


def step_rank(state: RankState, event: RankEvent) -> RankState:
    try:
        return RANK_TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a rank that is {state} cannot {event}") from None


def run_sources(event: RunEvent) -> frozenset[RunState]:
    """States that an UPDATE for this event may start from."""
    return frozenset(state for state, e in RUN_TRANSITIONS if e is event)


def fold(ranks: Iterable[RankState], *, minimum: int, elastic: bool) -> Fold:
    """The attempt's standing from its ranks.

    Finished when every unretired rank is done (and one is). In a fixed gang the first ended rank ends
    the attempt; in an elastic one only too few that can still run do. Running when the minimum runs.
    """
    states = list(ranks)
    kept = [s for s in states if s is not RankState.RETIRED]
    if kept and all(s is RankState.DONE for s in kept):
        return Fold.FINISHED
    ended = sum(s is RankState.ENDED for s in kept)
    if ended and (not elastic or len(kept) - ended < minimum):
        return Fold.ENDED
    running = sum(s in LIVE_RANKS or s is RankState.DONE for s in kept)
    return Fold.RUNNING if running >= minimum else Fold.WAITING
