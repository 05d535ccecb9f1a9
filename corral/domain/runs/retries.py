"""What each reason costs, and how many retries of each kind a run has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from corral.domain.runs.reasons import Reason


class Budget(StrEnum):
    """What a retry is paid from."""

    INFRASTRUCTURE = "infrastructure"
    MEMORY = "memory"
    CODE = "code"
    FREE = "free"
    NEVER = "never"


class MemoryKind(StrEnum):
    """Which memory ran out."""

    HOST = "host"
    GPU = "gpu"


# Each is a field of RetryLimits.
_COUNTED = frozenset({Budget.INFRASTRUCTURE, Budget.MEMORY, Budget.CODE})
# Total: every reason has a row, so a new one cannot be forgotten.
BUDGET_OF: Mapping[Reason, Budget] = {
    Reason.FINISHED: Budget.NEVER,
    Reason.HOST_LOST: Budget.INFRASTRUCTURE,
    Reason.PREEMPTED: Budget.INFRASTRUCTURE,
    Reason.PLACEMENT_LOST: Budget.INFRASTRUCTURE,
    Reason.NO_CAPACITY: Budget.INFRASTRUCTURE,
    Reason.STALLED: Budget.INFRASTRUCTURE,
    # Given back before or without work being lost to a fault: a drain, a lost reply, a restarted worker.
    Reason.RELEASED: Budget.FREE,
    # Asked to make room: for a run of higher priority, or because its host is drained.
    Reason.YIELDED: Budget.FREE,
    # The host has no space, no permission, no Python: nothing that a run could do about it.
    Reason.HOST_FAULT: Budget.FREE,
    Reason.OUT_OF_MEMORY: Budget.MEMORY,
    Reason.CODE_ERROR: Budget.CODE,
    # Of one of several replicas: a guard ended it, or its weights are no numbers. The others may go on.
    Reason.DIVERGED: Budget.CODE,
    # The store where replicas meet.
    Reason.STORE_AWAY: Budget.INFRASTRUCTURE,
    Reason.BAD_DATA: Budget.CODE,
    Reason.BAD_OUTPUT: Budget.CODE,
    Reason.ENVIRONMENT: Budget.CODE,
    # A cause that is not known is retried as the user asked for his own errors, no more.
    Reason.UNKNOWN: Budget.CODE,
    Reason.WALL_LIMIT: Budget.NEVER,
    Reason.MONEY_LIMIT: Budget.NEVER,
    Reason.CANCELLED: Budget.NEVER,
    Reason.PARENT_FAILED: Budget.NEVER,
    Reason.POISON: Budget.NEVER,
}


@dataclass(frozen=True)
class RetryLimits:
    """How many retries of each kind a run has; the same shape counts those that were used."""

    infrastructure: int = 3
    memory: int = 0
    code: int = 0

    def allows(self, used: RetryLimits, reason: Reason) -> bool:
        budget = BUDGET_OF[reason]
        return budget is Budget.FREE or (budget in _COUNTED and getattr(used, budget) < getattr(self, budget))

    def charged(self, reason: Reason, amount: int = 1) -> RetryLimits:
        """A copy with one more of the reason's budget counted; `amount=-1` refunds."""
        budget = BUDGET_OF[reason]
        if budget not in _COUNTED:
            return self
        return replace(self, **{budget: max(0, getattr(self, budget) + amount)})
