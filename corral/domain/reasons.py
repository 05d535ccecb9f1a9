"""Why an attempt or a run ended, and what each reason costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum


class Reason(StrEnum):
    FINISHED = "finished"
    HOST_LOST = "host_lost"
    PREEMPTED = "preempted"
    PLACEMENT_LOST = "placement_lost"
    NO_CAPACITY = "no_capacity"
    STALLED = "stalled"
    RELEASED = "released"
    YIELDED = "yielded"
    OUT_OF_MEMORY = "out_of_memory"
    CODE_ERROR = "code_error"
    BAD_DATA = "bad_data"
    BAD_OUTPUT = "bad_output"
    ENVIRONMENT = "environment"
    UNKNOWN = "unknown"
    WALL_LIMIT = "wall_limit"
    MONEY_LIMIT = "money_limit"
    CANCELLED = "cancelled"
    PARENT_FAILED = "parent_failed"
    POISON = "poison"


class Budget(StrEnum):
    """What a retry is paid from."""

    INFRASTRUCTURE = "infrastructure"
    MEMORY = "memory"
    CODE = "code"
    FREE = "free"
    NEVER = "never"


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
    Reason.OUT_OF_MEMORY: Budget.MEMORY,
    Reason.CODE_ERROR: Budget.CODE,
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
class Retries:
    """How many retries of each kind a run has; the same shape counts those that were used."""

    infrastructure: int = 3
    memory: int = 0
    code: int = 0

    def allows(self, used: Retries, reason: Reason) -> bool:
        budget = BUDGET_OF[reason]
        if budget is Budget.FREE:
            return True
        if budget is Budget.NEVER:
            return False
        left = {
            Budget.INFRASTRUCTURE: self.infrastructure - used.infrastructure,
            Budget.MEMORY: self.memory - used.memory,
            Budget.CODE: self.code - used.code,
        }[budget]
        return left > 0

    def charged(self, reason: Reason, amount: int = 1) -> Retries:
        """A copy with one more of the reason's budget counted; `amount=-1` refunds."""
        match BUDGET_OF[reason]:
            case Budget.INFRASTRUCTURE:
                return replace(self, infrastructure=max(0, self.infrastructure + amount))
            case Budget.MEMORY:
                return replace(self, memory=max(0, self.memory + amount))
            case Budget.CODE:
                return replace(self, code=max(0, self.code + amount))
            case Budget.FREE | Budget.NEVER:
                return self


# What to do next, shown beside the reason; `{run}` is the run's id.
HINTS: Mapping[Reason, str] = {
    Reason.HOST_LOST: "The host stopped answering. Queue it again with `corral requeue {run}`.",
    Reason.POISON: "Find out what it does to its hosts, then queue it again with `corral requeue {run}`.",
    Reason.STALLED: "Raise `stall_limit`, or let the program print or report progress more often.",
    Reason.OUT_OF_MEMORY: "Lower the batch size, or ask for more with `resources.min_ram` or `min_vram`.",
    Reason.CODE_ERROR: "Read its last lines: `corral logs {run} --tail 50`.",
    Reason.BAD_DATA: "Correct the inputs that the detail names, then submit again.",
    Reason.BAD_OUTPUT: "Correct what the program leaves in CORRAL_OUTPUT_DIR, then submit again.",
    Reason.ENVIRONMENT: "Correct `[environment]` in the run file; the installer's words are in the log.",
    Reason.UNKNOWN: "The cause is not known; read `corral logs {run}` and `corral events {run}`.",
    Reason.MONEY_LIMIT: "See `corral usage`; an operator raises the limit with `corral quotas set`.",
    Reason.WALL_LIMIT: "Raise `wall_limit` in the run file and submit it again.",
}
