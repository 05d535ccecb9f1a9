"""Why an attempt or a run ended, and what each reason costs."""

from __future__ import annotations

from collections.abc import Mapping
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
    HOST_FAULT = "host_fault"
    OUT_OF_MEMORY = "out_of_memory"
    CODE_ERROR = "code_error"
    DIVERGED = "diverged"
    STORE_AWAY = "store_away"
    BAD_DATA = "bad_data"
    BAD_OUTPUT = "bad_output"
    ENVIRONMENT = "environment"
    UNKNOWN = "unknown"
    WALL_LIMIT = "wall_limit"
    MONEY_LIMIT = "money_limit"
    CANCELLED = "cancelled"
    PARENT_FAILED = "parent_failed"
    POISON = "poison"


# What to do next; `{run}` is the run's id, and `{logs}` the command that shows what it printed.
HINTS: Mapping[Reason, str] = {
    Reason.HOST_LOST: "The host stopped answering. Queue it again with `corral requeue {run}`.",
    Reason.HOST_FAULT: "The host could not run it; `corral why {run}` says what it lacks.",
    Reason.POISON: "Find out what it does to its hosts, then queue it again with `corral requeue {run}`.",
    Reason.STALLED: "Raise `stall_limit`, or let the program print or report progress more often.",
    Reason.OUT_OF_MEMORY: "Lower the batch size, or ask for more with `resources.min_ram` or `min_vram`.",
    Reason.CODE_ERROR: "Read its last lines: `{logs} --tail 50`.",
    Reason.DIVERGED: "A replica learned nothing that is of use; lower the learning rate: `{logs} --tail 50`.",
    Reason.STORE_AWAY: "The store where the replicas meet could not be used; see the detail.",
    Reason.BAD_DATA: "Correct the inputs that the detail names, then submit again.",
    Reason.BAD_OUTPUT: "Correct what the program leaves in CORRAL_OUTPUT_DIR, then submit again.",
    Reason.ENVIRONMENT: "Correct `[environment]` in the run file; the installer's words are in the log.",
    Reason.UNKNOWN: "The cause is not known; read `{logs}` and `corral events {run}`.",
    Reason.MONEY_LIMIT: "See `corral usage`; an operator raises the limit with `corral quotas set`.",
    Reason.WALL_LIMIT: "Raise `wall_limit` in the run file and submit it again.",
}
